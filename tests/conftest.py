"""What every test may ask for."""

import signal

from tests.databases import database, database_url
from tests.postgres import postgres, postgres_url

__all__ = ["database", "database_url", "postgres", "postgres_url"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell starts jobs in the background with Ctrl-C ignored, and programs that tests start would inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)
