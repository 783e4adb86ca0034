"""`python -m sandyard.engine.images.adapt`: create the layer that turns a stack of image layers into a sandbox root.

The kernel combines the layers as it will in a sandbox: an overlay in a mount namespace of this process alone, whose
writable part is a tmpfs. A confined worker with the overlay as its root makes the changes (`image_changes.py`,
`confinement.py`), so that links resolve as they do in a sandbox. The writable part of the overlay then becomes the
layer.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from sandyard.engine.drivers.machine import kernel
from sandyard.engine.drivers.namespace import seccomp
from sandyard.engine.images import confinement
from sandyard.engine.images.image_changes import AdaptOptions, DirectoryAttributes, adapt_image, parse_adapt_options
from sandyard.engine.images.stream import LayerError
from sandyard.engine.images.worker import check_outcome, collect_outcome, initialize_process, report_outcome
from sandyard.kit.openat2 import open_without_links

_MEMORY_BYTES = 1 << 30
_SCRATCH_BYTES = 256 << 20
_SCRATCH_OPTIONS = f"mode=755,size={_SCRATCH_BYTES}"


def make_adapt_request(
    layers: Sequence[str], implied: Sequence[Sequence[str]], work: Path, options: AdaptOptions
) -> dict[str, Any]:
    """Return the request for this process. `layers` are topmost first, with the implied directories of each. `work`
    contains an empty directory `scratch`; the layer is created as `fs` in it."""
    return {
        "layers": list(layers),
        "implied": [list(paths) for paths in implied],
        "target": str(work / "fs"),
        "scratch": str(work / "scratch"),
        "options": asdict(options),
    }


def adapt(request: Mapping[str, Any]) -> dict[str, Any]:
    """Create the layer. Raises LayerError."""
    options = parse_adapt_options(request["options"])
    scratch = request["scratch"]
    try:
        _enter_namespaces(privileged=options.privileged)
        # opened after the change of namespace, so that the descriptors belong to its mounts
        layers = [os.open(path, os.O_PATH | os.O_DIRECTORY) for path in request["layers"]]
        kernel.mount("sandyard", scratch, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, _SCRATCH_OPTIONS)
        os.chdir(scratch)  # keeps paths out of the mount options, where ':' and ',' are special
        for name in ("upper", "work", "root", "none"):
            Path(name).mkdir(mode=0o755)
        lower = ":".join([*(f"/proc/self/fd/{fd}" for fd in layers), "none"])
        kind = "" if options.privileged else ",userxattr"
        data = f"lowerdir={lower},upperdir=upper,workdir=work,index=off,xino=off{kind}"
        kernel.mount("sandyard", "root", "overlay", kernel.MS_NODEV, data)
    except OSError as error:
        raise LayerError(f"cannot be assembled on this machine: {error.strerror}") from None
    folders = tuple(_find_implied_directories(layers, request["implied"], privileged=options.privileged))
    outcome = _run_in_root("root", replace(options, folders=folders))
    _copy_tree(Path("upper"), Path(request["target"]), privileged=options.privileged)
    return outcome


def _enter_namespaces(*, privileged: bool) -> None:
    if privileged:
        kernel.unshare(kernel.CLONE_NEWNS)
    else:
        uid, gid = os.getuid(), os.getgid()
        kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS)
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            Path("/proc/self", name).write_text(text)
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)


def _find_implied_directories(
    layers: Sequence[int], implied: Sequence[Sequence[str]], *, privileged: bool
) -> Iterator[DirectoryAttributes]:
    """Yield directories that a layer has entries in but does not describe: they must keep the mode of a lower layer
    instead of a default one. Raises LayerError if such a directory is a link in a lower layer, because the entries
    would be unreachable."""
    implied_sets = [frozenset(paths) for paths in implied]
    parents_first = sorted(frozenset().union(*implied_sets), key=lambda path: (path.count("/"), path))
    for path in parents_first:
        implied_above = False
        for layer, implied_paths in zip(layers, implied_sets, strict=True):
            status = _stat_entry(layer, path)
            if status is None:
                continue
            if stat.S_ISLNK(status.st_mode) and implied_above:
                raise LayerError(
                    f"has a layer with entries below /{path}, which is a link in a lower layer. Rebuild the image with a directory there"
                )
            if not stat.S_ISDIR(status.st_mode):
                break
            if path not in implied_paths:
                if implied_above:
                    mode = stat.S_IMODE(status.st_mode)
                    yield DirectoryAttributes(f"/{path}", mode, status.st_uid, status.st_gid, status.st_mtime_ns)
                break
            implied_above = True
            if _is_opaque(layer, path, privileged=privileged):
                break


def _stat_entry(layer: int, path: str) -> os.stat_result | None:
    folder, _, name = path.rpartition("/")
    try:
        parent = open_without_links(layer, folder, os.O_PATH | os.O_DIRECTORY)
        try:
            return os.stat(name, dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(parent)
    except OSError:
        return None


def _is_opaque(layer: int, path: str, *, privileged: bool) -> bool:
    fd = open_without_links(layer, path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return os.getxattr(fd, f"{'trusted' if privileged else 'user'}.overlay.opaque") == b"y"
    except OSError:
        return False
    finally:
        os.close(fd)


def _run_in_root(root: str, options: AdaptOptions) -> dict[str, Any]:
    """Run `adapt_image` in a worker whose root is the image, and return its outcome. Ids are not mapped, because
    overlayfs has no idmapped mounts."""
    rules = confinement.Rules(
        seccomp.make_program(),
        _MEMORY_BYTES,
        file_bytes=_SCRATCH_BYTES,
        capabilities=confinement.CHANGE_FILES,
        root=root,
        attributes=kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV,
        plain_ids=True,
    )
    worker = confinement.Confinement(privileged=options.privileged).start(
        lambda: collect_outcome(lambda: _adapt_in_worker(options)), rules
    )
    (outcome,) = confinement.wait_for_outcomes([worker], {}, lambda: None)
    check_outcome(outcome)
    user = outcome.get("user")
    return {"user": None if user is None else str(user)}


def _adapt_in_worker(options: AdaptOptions) -> dict[str, Any]:
    os.umask(0o022)
    try:
        return {"user": adapt_image(options)}
    except LayerError:
        raise
    except Exception as error:
        raise LayerError(f"could not be adapted ({type(error).__name__}: {error})") from None


def _copy_tree(source: Path, target: Path, *, privileged: bool) -> None:
    """Copy the writable part of the overlay: what `image_changes` created, and the directories that contain it. The
    source is on another file system."""
    status = source.lstat()
    if stat.S_ISLNK(status.st_mode):
        target.symlink_to(source.readlink())
        return
    if stat.S_ISDIR(status.st_mode):
        target.mkdir(mode=0o700)
        for entry in source.iterdir():
            _copy_tree(entry, target / entry.name, privileged=privileged)
        mark = f"{'trusted' if privileged else 'user'}.overlay.opaque"
        with contextlib.suppress(OSError):  # most have none
            os.setxattr(target, mark, os.getxattr(source, mark))
    elif stat.S_ISREG(status.st_mode):
        shutil.copyfile(source, target)
    else:
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:  # a whiteout
            os.mknod(target, status.st_mode, status.st_rdev)
        return
    os.chown(target, status.st_uid, status.st_gid)
    target.chmod(stat.S_IMODE(status.st_mode))
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def main() -> None:
    request = initialize_process(_MEMORY_BYTES)
    report_outcome(lambda: adapt(request), str(Path(request["target"]).parent))


if __name__ == "__main__":
    main()
