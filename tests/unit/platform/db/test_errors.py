"""Errors of the database driver, as the rest of the platform sees them."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import InternalError

from sandyard.platform.db.database import DatabaseUnavailableError, translate_driver_errors


class DriverError(Exception):
    def __init__(self, message: str, sqlstate: str | None = None) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


def test_a_connection_that_breaks_during_an_operation_is_an_unavailable_database() -> None:
    broken = DriverError("cannot switch to state 11; another operation (2) is in progress")
    with pytest.raises(DatabaseUnavailableError), translate_driver_errors():
        raise InternalError("SELECT 1", {}, broken)


def test_an_internal_error_of_the_server_is_not_translated() -> None:
    with pytest.raises(InternalError), translate_driver_errors():
        raise InternalError("SELECT 1", {}, DriverError("cache lookup failed", "XX000"))
