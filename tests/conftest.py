"""What every test may ask for."""

from tests.databases import database, database_url
from tests.postgres import postgres, postgres_url

__all__ = ["database", "database_url", "postgres", "postgres_url"]
