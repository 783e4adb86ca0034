"""Output of commands that follow something: the screen, the feed of events, and transcripts."""
