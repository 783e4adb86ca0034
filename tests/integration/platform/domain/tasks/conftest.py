from tests.unit.platform.domain.tasks.conftest import board, desk, desk_anywhere

__all__ = ["board", "desk", "desk_anywhere"]
