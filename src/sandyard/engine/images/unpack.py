"""`python -m sandyard.engine.images.unpack`: unpack one layer into one directory, in a separate process. The layer is one
of an image, or the upper layer of a sandbox that `engine.layers.pack` has packed (`UnpackRequest.exact`).

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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from sandyard.engine.drivers.namespace import seccomp
from sandyard.engine.images import confinement
from sandyard.engine.images.stream import CHUNK, LayerError, NoRoomError, Slice, Stream, decompress, forget_members
from sandyard.engine.images.tree import MAX_DEPTH, Meta, Tree
from sandyard.engine.images.upper_tree import (
    MAX_REDIRECT,
    MAX_SPARSE_BYTES,
    MAX_UPPER_DEPTH,
    OPAQUE_ATTRIBUTE,
    REDIRECT_ATTRIBUTE,
    UpperTree,
    is_redirect,
    parse_upper_metadata,
)
from sandyard.engine.images.worker import check_outcome, collect_outcome, initialize_process, report_outcome

_MEMORY_BYTES = 1 << 30
_DONE = b"+"
_SPACE_CHECK_BYTES = 64 << 20  # bytes between two checks of the free space
_MAX_MTIME_S = 1 << 40


@dataclass(frozen=True, slots=True)
class UnpackRequest:
    """`digest` is that of the stored file, None if unknown; `diff_id` is that of the tar in it. `exact`: whiteouts are
    device nodes, names have no special meaning, and all extended attributes are kept (`UpperTree`)."""

    target: str
    offset: int
    size: int
    digest: str | None
    diff_id: str
    max_bytes: int
    max_entries: int
    reserve_bytes: int
    exact: bool = False

    @property
    def owner(self) -> str:
        """Return what the limits are those of, and the settings that they come from, for messages."""
        return "snapshots" if self.exact else "the image"

    @property
    def settings(self) -> tuple[str, str]:
        """Return the names of the settings for the maximum size and number of files."""
        return ("layer_max_mb", "layer_max_files") if self.exact else ("images_max_mb", "images_max_files")


def unpack(request: UnpackRequest, source: int) -> dict[str, Any]:
    """Unpack the layer. Blocks; raises LayerError, ConfinementError. For a separate process: descriptors are left open
    on failure."""
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
                # a sparse file may be larger than everything in the layer
                file_bytes=MAX_SPARSE_BYTES if request.exact else request.max_bytes,
                capabilities=confinement.MAKE_FILES if confiner.privileged else confinement.NO_CAPABILITY,
                root=request.target,
            ),
            keep=(tar, worker_control.fileno()),
        ),
    ]
    for fd in (source, plain_in, tar, worker_control.detach()):
        os.close(fd)
    copier = _TarCopier(plain, tar_in, request)
    copier.start()
    outcomes = confinement.wait_for_outcomes(
        workers,
        {control.fileno(): lambda: _mark_directory(control, root, request)},
        lambda: _check_reserve(root, request),
    )
    copier.join()
    copier.check()
    for outcome in outcomes:
        check_outcome(outcome)
    if copier.digest != request.diff_id:
        specified = "its manifest" if request.exact else "the image's configuration"
        raise LayerError(f"does not have the content that {specified} specifies (its digest differs)")
    os.close(root)
    return outcomes[1]


class _TarCopier(threading.Thread):
    """Copies the tar from one worker to the other."""

    def __init__(self, source: int, target: int, request: UnpackRequest) -> None:
        super().__init__(daemon=True)
        self._source, self._target, self._request = source, target, request
        self._sha, self._size = hashlib.sha256(), 0

    def run(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # the worker found an error and ended
            while data := os.read(self._source, CHUNK):
                self._size += len(data)
                if self._size > self._request.max_bytes:
                    break
                self._sha.update(data)
                _write(self._target, data)
        os.close(self._source)
        os.close(self._target)

    def check(self) -> None:
        if self._size > self._request.max_bytes:
            size, setting = self._request.max_bytes >> 20, self._request.settings[0]
            raise LayerError(
                f"is larger than the {size} MiB that are left for {self._request.owner} (setting {setting})"
            )

    @property
    def digest(self) -> str:
        return f"sha256:{self._sha.hexdigest()}"


def _make_pipe() -> tuple[int, int]:
    read, write = os.pipe()
    with contextlib.suppress(OSError):  # more than a user is allowed
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, CHUNK)
    return read, write


def _mark_directory(control: socket.socket, root: int, request: UnpackRequest) -> bool:
    """Set overlay's mark on the directory whose descriptor is received next, which only the host's root can do: that it
    is opaque, or where it was before it was renamed. It is always within the layer, because the worker can reach nothing
    else. Return False at the end of the stream."""
    try:
        message, fds, _, _ = socket.recv_fds(control, MAX_REDIRECT + 1, 1, socket.MSG_CMSG_CLOEXEC)
        for fd in fds:
            status = os.fstat(fd)
            if stat.S_ISDIR(status.st_mode) and status.st_dev == os.fstat(root).st_dev:
                if message == _DONE:
                    os.setxattr(fd, OPAQUE_ATTRIBUTE, b"y")
                elif request.exact and is_redirect(message):
                    os.setxattr(fd, REDIRECT_ATTRIBUTE, message)
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

    def mark(fd: int, redirect: bytes = b"") -> None:
        if control is None:
            if redirect:
                raise LayerError("contains a renamed directory, which needs an engine that runs as root")
            os.setxattr(fd, "user.overlay.opaque", b"y")
            return
        socket.send_fds(control, [redirect or _DONE], [fd])
        if control.recvmsg(1)[0] != _DONE:
            raise LayerError("could not be unpacked: the engine's process has ended")

    root = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    stream = Stream(source)
    kind = UpperTree if request.exact else Tree
    tree = kind(root, privileged=control is not None, mark=mark)
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
            size, setting = self._request.max_bytes >> 20, self._request.settings[0]
            raise LayerError(
                f"unpacks to more than the {size} MiB that are left for {self._request.owner} (setting {setting})"
            )
        if self._entries > self._request.max_entries:
            count, setting = self._request.max_entries, self._request.settings[1]
            raise LayerError(
                f"has more files than the {count} that are left for {self._request.owner} (setting {setting})"
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
        if isinstance(tree, UpperTree):
            usage.add_entry(_count_stored_bytes(member))
            _extract_upper_member(stream, tree, member)
        else:
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


def _extract_upper_member(stream: Stream, tree: UpperTree, member: tarfile.TarInfo) -> None:
    path = normalize_path(member.name, MAX_UPPER_DEPTH)
    tally, meta = tree.tally, parse_upper_metadata(member)
    tally.entries += 1
    if member.isdir():
        tree.add_directory(path, meta)
    elif not path:
        raise LayerError("has an entry without a name")
    elif member.isreg():
        tally.bytes += _count_stored_bytes(member)
        fd = tree.create_file(path, meta)
        try:
            extents = _get_extents(member)
            if extents is None:
                _copy(fd, stream, member.size)
            else:
                _copy_extents(fd, stream, extents, member.size)
            tree.finish_file(fd, meta)
        finally:
            os.close(fd)
    elif member.issym():
        tree.add_symlink(path, member.linkname, meta)
    elif member.islnk():
        tree.add_hard_link(path, normalize_path(member.linkname, MAX_UPPER_DEPTH))
    elif member.isfifo():
        tree.add_pipe(path, meta)
    elif member.ischr() and member.devmajor == member.devminor == 0:
        tree.add_whiteout_device(path)
    else:
        raise LayerError(f"has a device node: {path[:200]!r}")


def _count_stored_bytes(member: tarfile.TarInfo) -> int:
    if not member.isreg():
        return 0
    extents = _get_extents(member)
    return member.size if extents is None else sum(size for _, size in extents)


def _get_extents(member: tarfile.TarInfo) -> Sequence[tuple[int, int]] | None:
    """Return the parts of a sparse file that are not holes."""
    return cast("Sequence[tuple[int, int]] | None", member.sparse)


def _copy_extents(fd: int, stream: Stream, extents: Sequence[tuple[int, int]], size: int) -> None:
    """Copy the parts of a sparse file that are not holes, which follow each other in the stream."""
    end = 0
    for offset, length in extents:
        if offset < end or length < 0 or offset + length > size:
            raise LayerError("has a sparse file whose parts are not in order")
        end = offset + length
        os.lseek(fd, offset, os.SEEK_SET)
        _copy(fd, stream, length)
    if size > MAX_SPARSE_BYTES:
        raise LayerError("has a sparse file that is too large")
    os.ftruncate(fd, size)


def normalize_path(name: str, max_depth: int = MAX_DEPTH) -> str:
    """Return a path within the layer, without a leading slash; the root itself is "". Raises LayerError if it leads out
    of the layer."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise LayerError(f"contains a path that leads out of it: {name[:200]!r}")
    if len(parts) > max_depth:
        raise LayerError(f"has directories nested deeper than {max_depth} levels")
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
