from tests.unit.platform.domain.conftest import world

__all__ = ["world"]
