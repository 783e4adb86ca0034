from tests.unit.cli.tasks.conftest import scripted, short_pauses

__all__ = ["scripted", "short_pauses"]
