"""Start the processes that unpack images, and collect their results."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any

from sandyard.kit.errors import InvalidInputError, NoSpaceError, SandyardError, UnsupportedError
from sandyard.kit.python import SAFE_FOLDER, make_python_command, make_python_environment

_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH")
_PACKAGE = "sandyard.engine.images"
_ERRORS: Mapping[str, type[SandyardError]] = {"full": NoSpaceError, "unconfined": UnsupportedError}


async def run_process(
    module: str, request: Mapping[str, Any], what: str, source: int | None = None, *, package: str = _PACKAGE
) -> dict[str, Any]:
    """Run `python -m <package>.<module>` with descriptor `source` as its input and return its result. It
    gets nothing of the engine's environment except the path of Python. Raises InvalidInputError, NoSpaceError, or
    UnsupportedError if it cannot be confined, with a message that starts with `what`. If cancelled, the process is
    killed and waited for."""
    pipe, stdin = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL if source is None else source
    request_fd = os.memfd_create("request")  # longer than an argument may be
    try:
        os.write(request_fd, json.dumps({**request, "parent": os.getpid()}).encode())
        command = make_python_command(f"{package}.{module}", str(request_fd))
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=stdin,
            stdout=pipe,
            stderr=pipe,
            pass_fds=(request_fd,),
            cwd=SAFE_FOLDER,
            env=make_python_environment({name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}),
        )
    finally:
        os.close(request_fd)
    try:
        output, errors = await process.communicate()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    try:
        outcome = json.loads(output)
    except ValueError:
        tail = errors.decode(errors="replace").strip().splitlines()[-1:] or [f"it ended with {process.returncode}"]
        raise SandyardError(f"{what} could not be processed: {tail[0][:300]}") from None
    if "error" in outcome:
        raise _ERRORS.get(outcome["kind"], InvalidInputError)(f"{what} {outcome['error']}.")
    return dict(outcome)
