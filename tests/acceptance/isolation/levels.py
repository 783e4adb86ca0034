"""Isolation levels as the scenarios see them, and from where in a sandbox they attack."""

from __future__ import annotations

from dataclasses import dataclass

ROOT = ""
AS_ROOT_OF_A_CONTAINER = "unshare --map-root-user --mount --net --ipc --uts --cgroup"
# The same with new mounts of everything that the kernel lets it mount, nothing of which is covered
WITH_ITS_OWN_PROC = f"""{AS_ROOT_OF_A_CONTAINER} --pid --fork --mount-proc sh -c '
  mount -t sysfs none /sys && mount -t tmpfs none /sys/fs/cgroup && cd /sys/fs/cgroup
  for name in $(awk "NR > 1 {{print \\$1}}" /proc/cgroups); do mkdir $name; mount -t cgroup -o $name none $name 2>/dev/null; done
  mkdir unified && mount -t cgroup2 none unified 2>/dev/null
  exec "$@"' -"""
IMAGE = "tiny"
MAKE_IMAGE = f"""
mkdir -p /tmp/image && cd /tmp/image && cp "$(which chroot)" . &&
for library in $(ldd chroot | grep -o '/[^ ]*'); do mkdir -p ".$(dirname "$library")" && cp -Ln "$library" ".$library"; done &&
tar -c . | docker import - {IMAGE}
"""
IN_A_PRIVILEGED_CONTAINER = f"docker run --rm --privileged --pid host --network host -v /:/host {IMAGE} /chroot /host"


@dataclass(frozen=True, slots=True)
class Level:
    """An isolation level, and the commands that a program in the sandbox puts before an attack to gain more rights for it."""

    name: str
    isolation: str
    positions: tuple[str, ...] = (ROOT,)

    @property
    def containers(self) -> bool:
        return len(self.positions) > 1

    @property
    def template(self) -> str | None:
        return "docker" if self.containers else None

    @property
    def metadata(self) -> dict[str, str]:
        return {"sandyard.isolation": self.isolation, "sandyard.containers": str(self.containers).lower()}


NAMESPACE = Level("namespace", "namespace")
NAMESPACE_CONTAINERS = Level(
    "namespace with containers",
    "namespace",
    (ROOT, AS_ROOT_OF_A_CONTAINER, WITH_ITS_OWN_PROC, IN_A_PRIVILEGED_CONTAINER),
)
GVISOR = Level("gvisor", "gvisor")
GVISOR_CONTAINERS = Level("gvisor with containers", "gvisor", (ROOT, IN_A_PRIVILEGED_CONTAINER))
LEVELS = (NAMESPACE, NAMESPACE_CONTAINERS, GVISOR, GVISOR_CONTAINERS)
