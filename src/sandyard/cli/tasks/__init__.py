"""`sandyard task` and `sandyard schedule`: tasks, their attempts and transcripts."""
