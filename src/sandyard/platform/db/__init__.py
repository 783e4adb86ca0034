"""Database: models, migrations and access."""
