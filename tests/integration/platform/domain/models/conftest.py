from tests.unit.platform.domain.models.conftest import upstream

__all__ = ["upstream"]
