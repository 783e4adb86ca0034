from tests.unit.cli.tasks.conftest import quick, story

__all__ = ["quick", "story"]
