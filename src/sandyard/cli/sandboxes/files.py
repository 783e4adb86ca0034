"""Transfer files between this machine and a sandbox. Everything is streamed: no file is held in memory."""

from __future__ import annotations

import contextlib
import os
import posixpath
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from sandyard.cli.connection import quote_segment
from sandyard.cli.errors import ApiError, CommandError
from sandyard.cli.output import echo
from sandyard.cli.sandboxes import archive
from sandyard.kit.ids import make_random_id

if TYPE_CHECKING:
    from sandyard.cli.client import Client
    from sandyard.cli.sandboxes.progress import Progress

CHUNK = 1 << 18
TAR_SECONDS = 600
MAX_NAMED = 20
"""How many skipped links a message names."""
Kind = Literal["file", "dir"]


class SandboxFiles:
    """The files of one sandbox."""

    def __init__(self, client: Client, sandbox_id: str, progress: Progress) -> None:
        self._client = client
        self._base = f"/sandboxes/{quote_segment(sandbox_id)}"
        self._progress = progress
        self._tar_found: bool | None = None

    def get_kind(self, path: str) -> Kind | None:
        """Return the entry at `path`, or None if there is none."""
        path = posixpath.normpath(path)
        if path in {"/", "."}:
            return "dir"
        try:
            entries = self._list_folder(posixpath.dirname(path) or ".")
        except ApiError as error:
            if error.http_status == 404:
                return None
            raise
        found = next((entry for entry in entries if entry["name"] == posixpath.basename(path)), None)
        if found is None or found["kind"] != "symlink":
            return found and _to_kind(found)
        try:
            self._list_folder(path)
        except ApiError as error:
            if error.http_status >= 500:
                raise
            return "file"
        return "dir"

    def put(self, source: Path, target: str) -> None:
        with source.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            self._progress.start_transfer(source.name, size)
            self._client.put(f"{self._base}/files", self._track_progress(_read_chunks(stream)), path=target)

    def put_stream(self, stream: IO[bytes], target: str) -> None:
        self._progress.start_transfer("-", None)
        self._client.put(f"{self._base}/files", self._track_progress(_read_chunks(stream)), path=target)

    def get(self, source: str, target: Path) -> None:
        """Download into a temporary file next to `target`, which replaces it when it is complete."""
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:80]}-")
        try:
            with os.fdopen(descriptor, "wb") as stream:
                self.get_stream(source, stream)
            Path(name).chmod(target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_get_umask())
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def get_stream(self, source: str, stream: IO[bytes]) -> None:
        with self._download(source) as chunks:
            for chunk in chunks:
                stream.write(chunk)
        stream.flush()

    def put_tree(self, source: Path, target: str) -> None:
        """Copy the contents of a directory to `target`, which is created if needed. Existing files are replaced."""
        if self.has_tar():
            with self._temporary_path() as name:
                self._progress.start_transfer(source.name, archive.estimate_size(source))
                self._client.put(f"{self._base}/files", self._track_progress(archive.pack(source)), path=name)
                folder = shlex.quote(target)
                self._run(f"mkdir -p -- {folder} && tar -xf {name} -C {folder} --no-same-owner")
            return
        for folder, _, names in os.walk(source):
            for name in sorted(names):
                file = Path(folder) / name
                if file.is_file():
                    self.put(file, posixpath.join(target, file.relative_to(source).as_posix()))

    def get_tree(self, source: str, target: Path) -> None:
        if self.has_tar():
            with self._temporary_path() as name:
                self._run(f"tar -cf {name} -C {shlex.quote(source)} .")
                with self._download(name, label=posixpath.basename(source)) as chunks:
                    skipped = archive.unpack(chunks, target)
            if skipped:
                more = f" and {len(skipped) - MAX_NAMED} more" if len(skipped) > MAX_NAMED else ""
                names = ", ".join(repr(link) for link in skipped[:MAX_NAMED])
                echo(f"Skipped links that can lead outside the copied directory: {names}{more}.", err=True)
            return
        self._get_files(source, target)

    def _get_files(self, source: str, target: Path) -> None:
        archive.refuse_link(target)
        target.mkdir(exist_ok=True)
        for entry in self._list_folder(source):
            name = entry["name"]
            if name in {"", ".", ".."} or "/" in name or "\0" in name:
                raise CommandError(f"The sandbox has a file with the name {name!r}, which cannot be copied.")
            if entry["kind"] not in {"file", "dir"}:
                continue
            if _to_kind(entry) == "dir":
                self._get_files(posixpath.join(source, name), target / name)
            else:
                self.get(posixpath.join(source, name), target / name)

    def _list_folder(self, path: str) -> list[Any]:
        entries: list[Any] = []
        cursor: str | None = None
        while True:
            query = {"cursor": cursor} if cursor else {}
            page = self._client.get(f"{self._base}/files/list", path=path, depth=1, limit=10_000, **query)
            entries += page["items"]
            cursor = page.get("nextCursor")
            if cursor is None:
                return entries

    @contextlib.contextmanager
    def _download(self, path: str, label: str | None = None) -> Iterator[Iterator[bytes]]:
        with self._client.stream(f"{self._base}/files", params={"path": path}) as response:
            length = response.headers.get("content-length", "")
            self._progress.start_transfer(label or posixpath.basename(path), int(length) if length.isdigit() else None)
            yield self._track_progress(response.iter_bytes(CHUNK))

    def _track_progress(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            yield chunk
            self._progress.advance(len(chunk))

    def has_tar(self) -> bool:
        if self._tar_found is None:
            try:
                self._tar_found = self._execute("command -v tar")["exitCode"] == 0
            except ApiError as error:
                if error.http_status != 403:  # refused by the project's policy: copy file by file
                    raise
                self._tar_found = False
            if not self._tar_found:
                echo(
                    "The sandbox has no tar. Copying file by file, without modes, links and empty directories.",
                    err=True,
                )
        return self._tar_found

    @contextlib.contextmanager
    def _temporary_path(self) -> Iterator[str]:
        """Yield a path in the sandbox for a temporary file, which is deleted afterwards."""
        name = f"/tmp/{make_random_id('sandyard-cp-')}.tar"  # noqa: S108 - in the sandbox, with an unguessable name
        try:
            yield name
        finally:
            with contextlib.suppress(ApiError):
                self._client.delete(f"{self._base}/files", path=name)

    def _run(self, command: str) -> None:
        done = self._execute(command)
        if done["exitCode"] != 0:
            reason = " ".join((done.get("stderr") or done["status"]).split())
            raise CommandError(f"Could not copy: {reason[:500].rstrip('.')}.")

    def _execute(self, command: str) -> Any:
        return self._client.post(f"{self._base}/execute", {"command": command, "timeout": TAR_SECONDS})


def _to_kind(entry: Any) -> Kind:
    return "dir" if entry["kind"] == "dir" else "file"


def _read_chunks(stream: IO[bytes]) -> Iterator[bytes]:
    while chunk := stream.read(CHUNK):
        yield chunk


def _get_umask() -> int:
    now = os.umask(0o077)
    os.umask(now)
    return now
