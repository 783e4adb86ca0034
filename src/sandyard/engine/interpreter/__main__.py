"""`python -m sandyard.engine.interpreter FOLDER`: the server, in a sandbox."""

import asyncio
import sys
from pathlib import Path

from sandyard.engine.interpreter.app import prepare_folder, serve

prepare_folder()
asyncio.run(serve(Path(sys.argv[1])))
