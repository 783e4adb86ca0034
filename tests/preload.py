"""What programs that tests start have loaded already; see `tests.preloaded`."""

import gc

import sandyard.cli.engine
import sandyard.cli.platform
import sandyard.engine.app
import sandyard.platform.app  # noqa: F401

gc.freeze()
