"""`python -m sandyard.engine.images.unpack`: unpack one layer into one directory, in a separate process.

The request is a JSON object in the descriptor given as the argument, the layer's file is descriptor 0, and the outcome is
a JSON object on standard output: what was found, or `{"error": …}`. The process ends with its parent and has little
memory. When it is killed, the parent removes the directory.

It does not parse the layer itself. One confined worker (`confinement.py`) decompresses, and another reads the tar and
writes the tree. The bytes between them pass through here, where they are counted and hashed: a layer is stored under
its digest for all images, and no bug in a parser may put something else there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import socket
import stat
import tarfile
import threading
from dataclasses import dataclass
from typing import Any, cast

from sandyard.engine.drivers.namespace import seccomp
from sandyard.engine.images import confinement, zstd
from sandyard.engine.images.stream import CHUNK, LayerError, NoRoomError, Slice, Stream, decompress, forget_members
from sandyard.engine.images.tree import MAX_DEPTH, Meta, Tree
from sandyard.engine.images.worker import check_outcome, collect_outcome, initialize_process, report_outcome

_MEMORY_BYTES = 1 << 30
_DONE = b"+"
_SPACE_CHECK_BYTES = 64 << 20  # bytes between two checks of the free space
_MAX_MTIME_S = 1 << 40


@dataclass(frozen=True, slots=True)
class UnpackRequest:
    """`digest` is that of the stored file, None if unknown; `diff_id` is that of the tar in it."""

    target: str
    offset: int
    size: int
    digest: str | None
    diff_id: str
    max_bytes: int
    max_entries: int
    reserve_bytes: int


def unpack(request: UnpackRequest, source: int) -> dict[str, Any]:
    """Unpack the layer. Blocks; raises LayerError, ConfinementError. For a separate process: descriptors are left open
    on failure."""
    with contextlib.suppress(zstd.ZstdError):
        zstd.load()
    root = os.open(request.target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    confiner = confinement.Confinement()
    control, worker_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    (plain, plain_in), (tar, tar_in) = _make_pipe(), _make_pipe()
    program = seccomp.make_files_program()
    workers = [
        confiner.start(
            lambda: collect_outcome(lambda: _decompress(request, source, plain_in)),
            confinement.Rules(program, _MEMORY_BYTES),
            keep=(source, plain_in),
        ),
        confiner.start(
            lambda: collect_outcome(lambda: _write_tree(request, tar, worker_control if confiner.privileged else None)),
            confinement.Rules(
                program,
                _MEMORY_BYTES,
                file_bytes=request.max_bytes,
                capabilities=confinement.MAKE_FILES if confiner.privileged else confinement.NO_CAPABILITY,
                root=request.target,
            ),
            keep=(tar, worker_control.fileno()),
        ),
    ]
    for fd in (source, plain_in, tar, worker_control.detach()):
        os.close(fd)
    copier = _TarCopier(plain, tar_in, request.max_bytes)
    copier.start()
    outcomes = confinement.wait_for_outcomes(
        workers, {control.fileno(): lambda: _mark_opaque(control, root)}, lambda: _check_reserve(root, request)
    )
    copier.join()
    copier.check()
    for outcome in outcomes:
        check_outcome(outcome)
    if copier.digest != request.diff_id:
        raise LayerError("does not have the content that the image's configuration specifies (its digest differs)")
    os.close(root)
    return outcomes[1]


class _TarCopier(threading.Thread):
    """Copies the tar from one worker to the other."""

    def __init__(self, source: int, target: int, max_bytes: int) -> None:
        super().__init__(daemon=True)
        self._source, self._target, self._max_bytes = source, target, max_bytes
        self._sha, self._size = hashlib.sha256(), 0

    def run(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # the worker found an error and ended
            while data := os.read(self._source, CHUNK):
                self._size += len(data)
                if self._size > self._max_bytes:
                    break
                self._sha.update(data)
                _write(self._target, data)
        os.close(self._source)
        os.close(self._target)

    def check(self) -> None:
        if self._size > self._max_bytes:
            raise LayerError(
                f"is larger than the {self._max_bytes >> 20} MiB that are left for the image (setting images_max_mb)"
            )

    @property
    def digest(self) -> str:
        return f"sha256:{self._sha.hexdigest()}"


def _make_pipe() -> tuple[int, int]:
    read, write = os.pipe()
    with contextlib.suppress(OSError):  # more than a user is allowed
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, CHUNK)
    return read, write


def _mark_opaque(control: socket.socket, root: int) -> bool:
    """Mark the directory whose descriptor is received next, which only the host's root can do. It is always within the
    layer, because the worker can reach nothing else. Return False at the end of the stream."""
    try:
        message, fds, _, _ = socket.recv_fds(control, 1, 1, socket.MSG_CMSG_CLOEXEC)
        for fd in fds:
            status = os.fstat(fd)
            if stat.S_ISDIR(status.st_mode) and status.st_dev == os.fstat(root).st_dev:
                os.setxattr(fd, "trusted.overlay.opaque", b"y")
            os.close(fd)
        if message:
            control.send(_DONE, socket.MSG_DONTWAIT)
    except OSError as error:
        raise _translate_write_error(error) from None
    return bool(message)


def _check_reserve(root: int, request: UnpackRequest) -> None:
    """Check the free space, in case a worker does not check it itself."""
    disk = os.fstatvfs(root)
    if disk.f_bavail * disk.f_frsize < request.reserve_bytes:
        raise NoRoomError("does not fit on the disk next to the engine's reserve (setting disk_reserve_mb)")


def _translate_write_error(error: OSError) -> LayerError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoRoomError("does not fit on the disk")
    return LayerError(f"has an entry that cannot be created here: {error.strerror}")


# In the workers ---------------------------------------------------------------------------------------------------------------


def _decompress(request: UnpackRequest, source: int, target: int) -> dict[str, Any]:
    raw = Slice(source, request.offset, request.size)
    try:
        for data in decompress(raw):
            _write(target, data)
    except BrokenPipeError:  # the reader does not want the rest
        return {}
    os.close(target)
    if raw.finish() != request.digest and request.digest is not None:
        raise LayerError("does not match the digest it was requested by")
    return {}


def _write_tree(request: UnpackRequest, source: int, control: socket.socket | None) -> dict[str, Any]:
    """Write the tree. `control` marks opaque directories; None without root."""

    def mark(fd: int) -> None:
        if control is None:
            os.setxattr(fd, "user.overlay.opaque", b"y")
            return
        socket.send_fds(control, [_DONE], [fd])
        if control.recvmsg(1)[0] != _DONE:
            raise LayerError("could not be unpacked: the engine's process has ended")

    root = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    stream = Stream(source)
    tree = Tree(root, privileged=control is not None, mark_opaque=mark)
    try:
        _extract(stream, tree, _Usage(root, request))
        tree.finish()
    except OSError as error:
        raise _translate_write_error(error) from None
    except tarfile.TarError as error:
        raise LayerError(f"is not a valid tar ({error})") from None
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise LayerError(f"is not a valid tar ({type(error).__name__})") from None
    stream.finish()
    tally = tree.tally
    return {
        "entries": tally.entries,
        "bytes": tally.bytes,
        "devices": tally.devices,
        "strangers": tally.high_owners,
        "implied": sorted(tally.implied),
        "opaque_root": tally.opaque_root,
    }


class _Usage:
    """Counts the entries and bytes of a layer. Raises LayerError if they exceed the limits of the request."""

    def __init__(self, root: int, request: UnpackRequest) -> None:
        self._root, self._request = root, request
        self._entries = self._bytes = 0
        self._next_space_check = 0

    def add_entry(self, size: int) -> None:
        self._entries += 1
        self._bytes += size
        if size < 0 or self._bytes > self._request.max_bytes:  # sparse files count with their full size
            raise LayerError(
                f"unpacks to more than the {self._request.max_bytes >> 20} MiB that are left for the image (setting images_max_mb)"
            )
        if self._entries > self._request.max_entries:
            raise LayerError(
                f"has more files than the {self._request.max_entries} that are left for the image (setting images_max_files)"
            )
        if self._bytes >= self._next_space_check or self._entries % 4096 == 0:
            self._next_space_check = self._bytes + _SPACE_CHECK_BYTES
            disk = os.fstatvfs(self._root)
            if disk.f_bavail * disk.f_frsize < self._request.reserve_bytes + size:
                raise NoRoomError("does not fit on the disk next to the engine's reserve (setting disk_reserve_mb)")


def _extract(stream: Stream, tree: Tree, usage: _Usage) -> None:
    try:
        tar = tarfile.TarFile(
            fileobj=cast("Any", stream), mode="r", encoding="utf-8", errors="surrogateescape", tarinfo=tarfile.TarInfo
        )
    except tarfile.ReadError:
        if not stream.tell():  # an empty stream
            return
        raise
    while (member := tar.next()) is not None:
        usage.add_entry(member.size if member.isreg() else 0)
        _extract_member(stream, tree, tar, member)
        forget_members(tar)


def _extract_member(stream: Stream, tree: Tree, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    path = normalize_path(member.name)
    tally, meta = tree.tally, _parse_metadata(member)
    tally.entries += 1
    if tree.add_whiteout(path):
        return
    if member.isdir():
        tree.add_directory(path, meta)
    elif not path:
        raise LayerError("has an entry without a name")
    elif member.isreg():
        tally.bytes += member.size
        fd = tree.create_file(path, meta)
        try:
            if member.sparse is not None:
                _copy_sparse(fd, tar, member)
            else:
                _copy(fd, stream, member.size)
            tree.finish_file(fd, meta)
        finally:
            os.close(fd)
    elif member.issym():
        tree.add_symlink(path, member.linkname, meta)
    elif member.islnk():
        tree.add_hard_link(path, normalize_path(member.linkname))
    elif member.isfifo():
        tree.add_pipe(path, meta)
    else:
        tally.entries -= 1
        tally.devices += 1


def normalize_path(name: str) -> str:
    """Return a path within the layer, without a leading slash; the root itself is "". Raises LayerError if it leads out
    of the layer."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise LayerError(f"contains a path that leads out of it: {name[:200]!r}")
    if len(parts) > MAX_DEPTH:
        raise LayerError(f"has directories nested deeper than {MAX_DEPTH} levels")
    return "/".join(parts)


def _parse_metadata(member: tarfile.TarInfo) -> Meta:
    prefix = "SCHILY.xattr."
    xattrs = tuple(
        (key.removeprefix(prefix), value.encode("utf-8", "surrogateescape"))
        for key, value in member.pax_headers.items()
        if key.startswith(prefix)
    )
    mtime = member.mtime if 0 <= member.mtime < _MAX_MTIME_S else 0  # also for NaN
    return Meta(member.mode, member.uid, member.gid, int(mtime * 1_000_000_000), xattrs)


def _copy(fd: int, stream: Stream, size: int) -> None:
    while size:
        data = stream.read(min(size, CHUNK))
        if not data:
            raise LayerError("is truncated")
        size -= len(data)
        _write(fd, data)


def _copy_sparse(fd: int, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    """Copy a sparse file and keep its holes."""
    content = tar.extractfile(member)
    assert content is not None
    copied = 0
    while data := content.read(CHUNK):
        copied += len(data)
        if data.count(0) == len(data):
            os.lseek(fd, len(data), os.SEEK_CUR)
        else:
            _write(fd, data)
    if copied != member.size:
        raise LayerError("is truncated")
    os.ftruncate(fd, copied)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def main() -> None:
    request = UnpackRequest(**initialize_process(_MEMORY_BYTES))
    report_outcome(lambda: unpack(request, 0), request.target)


if __name__ == "__main__":
    main()
