from tests.unit.engine.templates.conftest import folder, machine, put

__all__ = ["folder", "machine", "put"]
