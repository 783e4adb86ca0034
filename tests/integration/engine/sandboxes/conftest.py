from tests.unit.engine.sandboxes.conftest import yard

__all__ = ["yard"]
