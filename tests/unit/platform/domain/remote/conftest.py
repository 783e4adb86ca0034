from tests.unit.platform.domain.sandboxes.conftest import empty_database, engine_process, yard

__all__ = ["empty_database", "engine_process", "yard"]
