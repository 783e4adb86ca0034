"""The system calls that a sandbox may make, as a classic BPF program for this machine's architecture.

Written by hand instead of with libseccomp: that library is not part of a minimal machine, its tables end at the kernel
of its release, and a program of a hundred instructions is easier to review than a dependency. A test compares the
numbers with libseccomp's.

The rule: calls that existed in Linux 6.10 and are not listed here are allowed; newer ones fail with ENOSYS, so that
programs fall back to older calls. Listed are
- calls that affect the machine: mounts, namespaces, modules, keyrings, bpf, perf, clocks, swap;
- calls into parts of the kernel that no sandbox needs and that have a history of vulnerabilities: io_uring, userfaultfd,
  exotic socket families and protocols;
- calls that use a machine-wide resource: aio;
- calls that take kernel memory that no cgroup accounts for: some socket options, large extended attributes, huge pages
  of a reserved pool;
- the merging of equal pages (KSM), by which a sandbox could find out what others hold in memory.

This is the second line of defence. The first is that a sandbox's root owns none of the namespaces it runs in. Other ABIs
of the machine (32-bit, x32) are not supported, because their numbers mean other calls.
"""

from __future__ import annotations

import errno
import os
import struct

_ARCH_X86_64, _ARCH_AARCH64 = 0xC000_003E, 0xC000_00B7
MACHINES = {"x86_64": (_ARCH_X86_64, 0), "aarch64": (_ARCH_AARCH64, 1)}  # AUDIT_ARCH_*, column in the tables below

NEWEST_NUMBER = 462  # mseal, Linux 6.10: all calls up to here were reviewed

Numbers = tuple[int | None, int | None]

# Denied with EPERM, like a missing privilege.
FORBIDDEN: dict[str, Numbers] = {
    # mounts and namespaces
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "setns": (308, 268),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    # the kernel itself
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "create_module": (174, None),
    "query_module": (178, None),
    "get_kernel_syms": (177, None),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "lookup_dcookie": (212, 18),
    "syslog": (103, 116),
    "uselib": (134, None),
    "_sysctl": (156, None),
    "sysfs": (139, None),
    "ustat": (136, None),
    # keyrings are not namespaced
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # the machine
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "nfsservctl": (180, 42),
    # memory placement on nodes of the machine
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "get_mempolicy": (239, 236),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "set_mempolicy_home_node": (450, 450),
}

# Denied with ENOSYS: programs try these first and fall back if they are missing.
MISSING: dict[str, Numbers] = {
    "clone3": (435, 435),  # its flags are in memory, which a filter cannot read
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    # asynchronous I/O: its contexts are counted for the whole machine (fs.aio-max-nr)
    "io_setup": (206, 0),
    "io_destroy": (207, 1),
    "io_submit": (209, 2),
    "io_cancel": (210, 3),
    "io_getevents": (208, 4),
    "io_pgetevents": (333, 292),
    "statmount": (457, 457),
    "listmount": (458, 458),
    "lsm_get_self_attr": (459, 459),
    "lsm_set_self_attr": (460, 460),
    "lsm_list_modules": (461, 461),
}

# These succeed without any effect: they would write dirty data of the whole machine, and the engine's database would
# wait for that. fsync() of a file works normally.
IGNORED: dict[str, Numbers] = {"sync": (162, 81), "syncfs": (306, 267)}

# Allowed depending on their arguments.
CHECKED: dict[str, Numbers] = {
    "ioctl": (16, 29),
    "clone": (56, 220),
    "unshare": (272, 97),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "personality": (135, 92),
    "prlimit64": (302, 261),
    "setsockopt": (54, 208),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "mmap": (9, 222),
    "memfd_create": (319, 279),
    "shmget": (29, 194),
    "prctl": (157, 167),
    "madvise": (28, 233),
    "process_madvise": (440, 440),
}

# Socket options by level, which fail with ENOPROTOOPT as in a kernel built without them. What they allocate is charged
# to no cgroup, up to net.core.optmem_max (128 KiB) and more for each socket. Plain IPv4 multicast groups are allowed:
# the kernel limits a socket to 20.
DENIED_SOCKET_OPTIONS: dict[int, dict[str, int]] = {
    1: {  # SOL_SOCKET: the compiled filter and the original are not counted
        "SO_ATTACH_FILTER": 26,
        "SO_ATTACH_BPF": 50,
        "SO_ATTACH_REUSEPORT_CBPF": 51,
        "SO_ATTACH_REUSEPORT_EBPF": 52,
    },
    0: {  # IPPROTO_IP: multicast by source
        "IP_BLOCK_SOURCE": 38,
        "IP_ADD_SOURCE_MEMBERSHIP": 39,
        "IP_MSFILTER": 41,
        "MCAST_BLOCK_SOURCE": 43,
        "MCAST_JOIN_SOURCE_GROUP": 46,
        "MCAST_MSFILTER": 48,
    },
    41: {  # IPPROTO_IPV6, which a sandbox has only on its loopback: all multicast, flow labels (machine-wide), headers
        "IPV6_2292PKTOPTIONS": 6,
        "IPV6_JOIN_GROUP": 20,
        "IPV6_JOIN_ANYCAST": 27,
        "IPV6_FLOWLABEL_MGR": 32,
        "MCAST_JOIN_GROUP": 42,
        "MCAST_BLOCK_SOURCE": 43,
        "MCAST_JOIN_SOURCE_GROUP": 46,
        "MCAST_MSFILTER": 48,
        "IPV6_HOPOPTS": 54,
        "IPV6_RTHDRDSTOPTS": 55,
        "IPV6_RTHDR": 57,
        "IPV6_DSTOPTS": 59,
    },
    6: {"TCP_MD5SIG": 14, "TCP_MD5SIG_EXT": 32, "TCP_AO_ADD_KEY": 38},  # IPPROTO_TCP: keys of routers
}
MAX_ATTRIBUTE_BYTES = 1024
"""Maximum bytes of an extended attribute. Linux allows 65,536, and for an access list this is memory that is not
accounted for. The kernel keeps up to two of them for each file it caches, of which some 3 KiB are accounted for."""

# With containers these are allowed: they affect only the namespaces that a program in the sandbox has created, because
# those of the sandbox itself belong to the host.
FOR_CONTAINERS = frozenset({"mount", "umount2", "pivot_root", "setns", "sethostname", "setdomainname"})
# With containers these are missing instead of forbidden: container runtimes then work without.
MISSING_FOR_CONTAINERS = frozenset(
    {
        *("open_tree", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr"),
        *("add_key", "request_key", "keyctl"),
    }
)

# Everything that a process needs to read and write its descriptors, and files below a directory (`make_files_program`).
FILES: dict[str, Numbers] = {
    "read": (0, 63),
    "pread64": (17, 67),
    "write": (1, 64),
    "lseek": (8, 62),
    "ftruncate": (77, 46),
    "close": (3, 57),
    "dup": (32, 23),
    "sendmsg": (46, 211),
    "recvmsg": (47, 212),
    "openat": (257, 56),
    "openat2": (437, 437),
    "getdents64": (217, 61),
    "fstat": (5, 80),
    "newfstatat": (262, 79),
    "statx": (332, 291),
    "fstatfs": (138, 44),
    "mkdirat": (258, 34),
    "mknodat": (259, 33),
    "symlinkat": (266, 36),
    "linkat": (265, 37),
    "unlinkat": (263, 35),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "utimensat": (280, 88),
    "fsetxattr": (190, 7),
    "brk": (12, 214),
    "munmap": (11, 215),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "futex": (202, 98),
    "sched_yield": (24, 124),
    "clock_gettime": (228, 113),
    "getrandom": (318, 278),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "restart_syscall": (219, 128),
    "exit": (60, 93),
    "exit_group": (231, 94),
}
FILES_CHECKED: dict[str, Numbers] = {"mmap": (9, 222), "mprotect": (10, 226), "fcntl": (72, 25)}

_MAP_HUGETLB, _MFD_HUGETLB, _SHM_HUGETLB = 0x4_0000, 0x4, 0x800
_MEMORY_MERGE_OPTIONS = (67, 68)  # PR_SET_MEMORY_MERGE, PR_GET_MEMORY_MERGE
_MERGE_ADVICE = (12, 13)  # MADV_MERGEABLE, MADV_UNMERGEABLE
_PROT_EXEC = 4
_DESCRIPTOR_COMMANDS = (1, 2, 3, 1030)  # F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC
_NEW_NAMESPACES = 0x7E02_0000  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}
_NEW_TIME = 0x80
# TIOCSTI, TIOCLINUX: type into another terminal; TIOCSETD: loads kernel modules
_TERMINAL_REQUESTS = (0x5412, 0x541C, 0x5423)
_CLONE_REQUESTS = (0x4004_9409, 0x4020_940D, 0xC018_9436)  # FICLONE, FICLONERANGE, FIDEDUPERANGE: not specific to btrfs
# All other requests of btrfs: otherwise subvolumes could be created in a volume, which its quota does not count.
_BTRFS_FAMILY = 0x9400
# For all other families and protocols, the kernel would load a module.
_AF_UNIX, _AF_INET, _AF_NETLINK, _AF_INET6 = 1, 2, 16, 10
_STREAM_PROTOCOLS = (0, 6)  # TCP
_DATAGRAM_PROTOCOLS = (0, 17, 1, 58)  # UDP; ICMP of both versions: ping
_NETLINK_PROTOCOLS = (0, 4, 9, 15)  # route, sock_diag, audit (PAM asks for it), uevent
_NETLINK_NETFILTER = 12  # addresses of containers are translated with it
_RAW_PROTOCOLS = (1, 58)  # ICMP of both versions: ping
_SOCKET_TYPE_MASK = 0xF  # bits of the second argument; the rest are flags
_STREAM, _DATAGRAM, _RAW = 1, 2, 3
_PERSONALITIES = 0x0006_0008  # any of UNAME26, ADDR_NO_RANDOMIZE (debuggers), PER_LINUX32

_GUEST_AGENT = 1  # its process id in every sandbox

_LD, _AND, _JA, _JEQ, _JGE, _JSET, _RET = 0x20, 0x54, 0x05, 0x15, 0x35, 0x45, 0x06
_NR, _ARCH = 0, 4
_ALLOW, _KILL = 0x7FFF_0000, 0x8000_0000

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, operand


def _return_error(code: int) -> Instruction:
    return (_RET, 0, 0, 0x0005_0000 | code)


_PERMIT: Instruction = (_RET, 0, 0, _ALLOW)


def _load_argument(index: int) -> Instruction:
    """Load the low half of an argument: the kernel uses no more of the arguments that are checked here."""
    return (_LD, 0, 0, 16 + 8 * index)


def _load_upper_half(index: int) -> Instruction:
    return (_LD, 0, 0, 16 + 8 * index + 4)


def _match_any(values: tuple[int, ...], then: Instruction) -> list[Instruction]:
    """Return instructions that run `then`, a return, if the loaded word is one of these values."""
    return [step for value in values for step in ((_JEQ, 0, 1, value), then)]


def _match_value(value: int, block: list[Instruction]) -> list[Instruction]:
    """Return `block`, which ends in a return, for this value only."""
    return [(_JEQ, 0, len(block), value), *block]


def _make_checks(*, containers: bool) -> dict[str, list[Instruction]]:
    """Return the instructions that check the arguments of each call in `CHECKED`. Each list ends in a
    return in every case."""
    namespaces = 0 if containers else _NEW_NAMESPACES
    netlink_protocols = (*_NETLINK_PROTOCOLS, _NETLINK_NETFILTER) if containers else _NETLINK_PROTOCOLS
    deny = _return_error(errno.EPERM)
    no_protocol = _return_error(errno.EPROTONOSUPPORT)
    unknown = _return_error(errno.ENOPROTOOPT)
    too_large = _return_error(errno.E2BIG)
    # as in a kernel without huge pages and KSM
    invalid, missing = _return_error(errno.EINVAL), _return_error(errno.ENOSYS)
    attribute = [
        _load_upper_half(3),
        (_JEQ, 1, 0, 0),
        too_large,
        _load_argument(3),
        (_JGE, 0, 1, MAX_ATTRIBUTE_BYTES + 1),
        too_large,
        _PERMIT,
    ]
    stream = [_load_argument(2), *_match_any(_STREAM_PROTOCOLS, _PERMIT), no_protocol]
    datagram = [_load_argument(2), *_match_any(_DATAGRAM_PROTOCOLS, _PERMIT), no_protocol]
    raw = [_load_argument(2), *_match_any(_RAW_PROTOCOLS, _PERMIT), deny]
    internet = [
        _load_argument(1),
        (_AND, 0, 0, _SOCKET_TYPE_MASK),
        *_match_value(_STREAM, stream),
        *_match_value(_DATAGRAM, datagram),
        *(_match_value(_RAW, raw) if containers else _match_any((_RAW,), deny)),
        _return_error(errno.ESOCKTNOSUPPORT),
    ]
    socket = [
        _load_argument(0),
        *_match_any((_AF_UNIX,), _PERMIT),
        *_match_value(_AF_NETLINK, [_load_argument(2), *_match_any(netlink_protocols, _PERMIT), no_protocol]),
        (_JEQ, 2, 0, _AF_INET),
        (_JEQ, 1, 0, _AF_INET6),
        _return_error(errno.EAFNOSUPPORT),
        *internet,
    ]
    return {
        "ioctl": [
            _load_argument(1),
            *_match_any(_TERMINAL_REQUESTS, deny),
            *_match_any(_CLONE_REQUESTS, _PERMIT),
            (_AND, 0, 0, 0xFF00),
            *_match_any((_BTRFS_FAMILY,), _return_error(errno.ENOTTY)),  # as on any other file system
            _PERMIT,
        ],
        "clone": [_load_argument(0), (_JSET, 0, 1, namespaces), deny, _PERMIT],
        "unshare": [_load_argument(0), (_JSET, 0, 1, namespaces | _NEW_TIME), deny, _PERMIT],
        "socket": socket,
        "socketpair": [
            _load_argument(0),
            *_match_any((_AF_UNIX,), _PERMIT),
            # like the kernel, but without loading modules
            *_match_any((_AF_INET, _AF_INET6), _return_error(errno.EOPNOTSUPP)),
            _return_error(errno.EAFNOSUPPORT),
        ],
        "personality": [
            _load_argument(0),
            *_match_any((0xFFFF_FFFF,), _PERMIT),  # queries the current value
            (_AND, 0, 0, ~_PERSONALITIES & 0xFFFF_FFFF),
            *_match_any((0,), _PERMIT),
            deny,
        ],
        "setsockopt": [
            _load_argument(1),
            *(
                step
                for level, options in DENIED_SOCKET_OPTIONS.items()
                for step in _match_value(
                    level, [_load_argument(2), *_match_any(tuple(options.values()), unknown), _PERMIT]
                )
            ),
            _PERMIT,
        ],
        **dict.fromkeys(("setxattr", "lsetxattr", "fsetxattr"), attribute),
        "mmap": [_load_argument(3), (_JSET, 0, 1, _MAP_HUGETLB), invalid, _PERMIT],
        "memfd_create": [_load_argument(1), (_JSET, 0, 1, _MFD_HUGETLB), missing, _PERMIT],
        "shmget": [_load_argument(2), (_JSET, 0, 1, _SHM_HUGETLB), invalid, _PERMIT],
        "prctl": [_load_argument(0), *_match_any(_MEMORY_MERGE_OPTIONS, invalid), _PERMIT],
        "madvise": [_load_argument(2), *_match_any(_MERGE_ADVICE, invalid), _PERMIT],
        "process_madvise": [_load_argument(3), *_match_any(_MERGE_ADVICE, invalid), _PERMIT],
        # Any process may read the limits of the guest agent, but not set them: with fewer descriptors it could not
        # serve its sandbox.
        "prlimit64": [
            _load_argument(0),
            *_match_value(
                _GUEST_AGENT, [_load_argument(2), (_JEQ, 0, 2, 0), _load_upper_half(2), (_JEQ, 1, 0, 0), deny, _PERMIT]
            ),
            _PERMIT,
        ],
    }


def make_program(machine: str | None = None, *, containers: bool = False) -> bytes:
    """Return the filter as `sock_filter` records. With `containers`, programs may create namespaces and mount in them.
    Raises KeyError for an architecture without a table here.

    Uses binary search: the kernel runs a new filter once for every system call to find those it always allows, so a
    plain list of a hundred comparisons would cost every sandbox a tenth of a millisecond.
    """
    arch, column = MACHINES[machine or os.uname().machine]
    actions: dict[int, list[Instruction]] = {}
    for table, code in ((FORBIDDEN, errno.EPERM), (MISSING, errno.ENOSYS), (IGNORED, 0)):
        actions |= _map_to_numbers({name: [_return_error(code)] for name in table}, table, column)
    actions |= _map_to_numbers(_make_checks(containers=containers), CHECKED, column)
    if containers:
        changed = {name: [_PERMIT] for name in FOR_CONTAINERS}
        changed |= {name: [_return_error(errno.ENOSYS)] for name in MISSING_FOR_CONTAINERS}
        actions |= _map_to_numbers(changed, {name: FORBIDDEN[name] for name in changed}, column)
    return _assemble(arch, actions, [_PERMIT])


def make_files_program(machine: str | None = None) -> bytes:
    """Return the filter of a process that parses hostile files: `FILES`, no executable memory, and EPERM for everything
    else: no program, process, signal, socket or namespace, and no privilege. Raises KeyError like `make_program`."""
    arch, column = MACHINES[machine or os.uname().machine]
    deny = _return_error(errno.EPERM)
    not_executable = [_load_argument(2), (_JSET, 0, 1, _PROT_EXEC), deny, _PERMIT]
    checks = {
        "mmap": not_executable,
        "mprotect": not_executable,
        "fcntl": [_load_argument(1), *_match_any(_DESCRIPTOR_COMMANDS, _PERMIT), deny],
    }
    actions = _map_to_numbers({name: [_PERMIT] for name in FILES}, FILES, column) | _map_to_numbers(
        checks, FILES_CHECKED, column
    )
    return _assemble(arch, actions, [deny])


def _map_to_numbers(
    actions: dict[str, list[Instruction]], table: dict[str, Numbers], column: int
) -> dict[int, list[Instruction]]:
    return {number: actions[name] for name, numbers in table.items() if (number := numbers[column]) is not None}


def _assemble(arch: int, actions: dict[int, list[Instruction]], otherwise: list[Instruction]) -> bytes:
    """Return the program: kill callers of another architecture, then run the action of the call's number. Numbers without
    an action get `otherwise`, newer ones ENOSYS."""
    ranges: list[tuple[int, list[Instruction]]] = []  # where each begins
    for number in range(NEWEST_NUMBER + 1):
        action = actions.get(number, otherwise)
        if not ranges or ranges[-1][1] != action:
            ranges.append((number, action))
    ranges.append((NEWEST_NUMBER + 1, [_return_error(errno.ENOSYS)]))
    head: list[Instruction] = [(_LD, 0, 0, _ARCH), (_JEQ, 1, 0, arch), (_RET, 0, 0, _KILL), (_LD, 0, 0, _NR)]
    return b"".join(struct.pack("HBBI", *step) for step in [*head, *_make_binary_search(ranges)])


def _make_binary_search(ranges: list[tuple[int, list[Instruction]]]) -> list[Instruction]:
    if len(ranges) == 1:
        return ranges[0][1]
    middle = len(ranges) // 2
    lower, upper = _make_binary_search(ranges[:middle]), _make_binary_search(ranges[middle:])
    boundary = ranges[middle][0]
    if len(lower) < 256:
        return [(_JGE, len(lower), 0, boundary), *lower, *upper]
    return [(_JGE, 0, 1, boundary), (_JA, 0, 0, len(lower)), *lower, *upper]
