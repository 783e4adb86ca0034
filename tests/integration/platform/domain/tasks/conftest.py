from tests.unit.platform.domain.tasks.conftest import board, harness, harness_on_each_database

__all__ = ["board", "harness", "harness_on_each_database"]
