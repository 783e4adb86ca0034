"""Modules that are imported before tests fork programs; see `tests.harness.processes`."""

import gc

import structlog  # noqa: F401 - the platform imports it when it opens its log
from sqlalchemy.orm import configure_mappers

import sandyard.cli.engine
import sandyard.cli.platform
import sandyard.engine.app
import sandyard.platform.app  # noqa: F401

configure_mappers()
gc.freeze()
