"""Limits of the kernel that count for the whole machine and that root of a container could exhaust.

They are raised so far that the memory behind them ends first, because memory is limited for each sandbox: terminals are
charged to its cgroup, and neighbours are watched (`kernel_memory`). Values stay until a reboot and are never lowered.
"""

from __future__ import annotations

from pathlib import Path

from sandyard.kit.logging import get_logger

log = get_logger(__name__)

_LIMITS = {
    "kernel/pty/max": 1 << 20,
    # Neighbours of all network namespaces together. From the second on, the kernel removes entries that are in use; at
    # the third it refuses new ones. Unused entries are still removed after the usual time.
    **{
        f"net/{family}/neigh/default/gc_thresh{number}": 1 << 30
        for family in ("ipv4", "ipv6")
        for number in (3, 2)  # the second must not exceed the third
    },
}


def raise_machine_limits(sysctl: Path = Path("/proc/sys")) -> None:
    """Raise the limits. What cannot be raised is logged."""
    for name, wanted in _LIMITS.items():
        path = sysctl / name
        try:
            if int(path.read_text()) < wanted:
                path.write_text(str(wanted))
        except FileNotFoundError:
            continue  # a kernel without IPv6; or an engine in a network namespace, where the limits are the machine's
        except (OSError, ValueError) as error:
            log.warning("machine_limit_not_raised", name=name.replace("/", "."), reason=str(error))
