"""Write the files that an agent needs at its start."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator, Mapping

from sandyard.kit.errors import InvalidInputError
from sandyard.platform.domain.agents.profiles.model import Launch
from sandyard.platform.domain.sandboxes.e2b import EngineError, NotEnoughSpaceError, SandboxEngine

INLINE = 64 << 10
"""Larger files do not fit into an argument."""
BATCH = 512 << 10
TIMEOUT_S = 60.0

# Arguments: for each file its path, its hash and its content in base64. With - as content, print the hash if the file differs.
_PUT = """umask 077
while [ $# -ge 3 ]; do
  path=$1 hash=$2 data=$3
  shift 3
  if [ -f "$path" ] && ! [ -L "$path" ] && read -r found _ < <(sha256sum <"$path") && [ "$found" = "$hash" ]; then continue; fi
  if [ "$data" = - ]; then printf '%s\\n' "$hash"; continue; fi
  if [ -d "$path" ]; then echo "$path: Is a directory" >&2; exit 1; fi
  mkdir -p -- "${path%/*}" && printf %s "$data" | base64 -d >"$path.$$" && mv -f -- "$path.$$" "$path" || exit 1
done
"""


async def put_files(engine: SandboxEngine, engine_id: str, launch: Launch) -> None:
    """Write the files completely, readable only by the sandbox's user. Files that already have the same content are not
    touched.

    Idempotent. All small files are written in batches, each with one command in the sandbox.
    """
    for path in launch.files:
        if not path.startswith("/") or "\0" in path or path.endswith("/"):
            raise InvalidInputError(f"An agent's file needs an absolute path: {path!r}.")
    small = {path: content for path, content in launch.files.items() if len(content) <= INLINE}
    for batch in _split_into_batches(small):
        await _run_put_script(engine, engine_id, [_build_entry(path, content) for path, content in batch.items()])
    large = {path: content for path, content in launch.files.items() if len(content) > INLINE}
    if large:
        said = await _run_put_script(
            engine, engine_id, [(path, _hash(content), "-") for path, content in large.items()]
        )
        for path, content in large.items():
            if _hash(content) in said:
                await engine.write_file(engine_id, path, _iterate_chunks(content))


async def _run_put_script(engine: SandboxEngine, engine_id: str, entries: list[tuple[str, str, str]]) -> list[str]:
    argv = ["bash", "-c", _PUT, "sandyard", *(word for entry in entries for word in entry)]
    ran = await engine.run(engine_id, argv, timeout_s=TIMEOUT_S, idempotent=True)
    if ran.exit_code == 0:
        return ran.stdout.decode(errors="replace").split()
    said = ran.stderr.strip()[-500:]
    if "No space left on device" in said or "Disk quota exceeded" in said:
        raise NotEnoughSpaceError
    raise EngineError(f"The agent's files could not be written to the sandbox. It said: {said}")


def _split_into_batches(files: Mapping[str, bytes]) -> list[dict[str, bytes]]:
    batches: list[dict[str, bytes]] = []
    size = BATCH
    for path, content in files.items():
        if size + len(content) > BATCH:
            batches.append({})
            size = 0
        batches[-1][path] = content
        size += len(content)
    return batches


def _build_entry(path: str, content: bytes) -> tuple[str, str, str]:
    return path, _hash(content), base64.b64encode(content).decode()


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def _iterate_chunks(content: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(content), 1 << 20):
        yield content[at : at + (1 << 20)]
