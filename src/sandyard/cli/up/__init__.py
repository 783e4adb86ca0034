"""`sandyard up`: the engine and the platform, kept running by one process that never leaves them behind."""
