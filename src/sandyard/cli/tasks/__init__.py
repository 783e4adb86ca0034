"""`sandyard task` and `sandyard schedule`: cards, the attempts at them, and what was said and done on the way."""
