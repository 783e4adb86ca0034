from tests.unit.engine.sandboxes.conftest import harness

__all__ = ["harness"]
