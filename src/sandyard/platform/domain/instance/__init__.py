"""This installation as a whole: its state, for administrators and for metrics."""
