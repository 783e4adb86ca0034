"""`sandyard up`: run the engine and the platform under one supervisor that never leaves them behind."""
