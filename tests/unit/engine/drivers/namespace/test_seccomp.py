"""Run the seccomp filter in a small interpreter for classic BPF to check its verdict for each architecture."""

from __future__ import annotations

import ctypes
import errno
import functools
import struct

import pytest

from sandyard.engine.drivers.namespace import seccomp

ALLOW, KILL = 0x7FFF_0000, 0x8000_0000
SUCCESS, EPERM, ENOSYS = (0x0005_0000 | code for code in (0, errno.EPERM, errno.ENOSYS))
FOREIGN = {"x86_64": 0x4000_0003, "aarch64": 0x4000_0028}  # i386, 32-bit arm
COMMON_CALLS = {
    "x86_64": {
        "read": 0,
        "openat": 257,
        "execve": 59,
        "ptrace": 101,
        "mknod": 133,
        "chroot": 161,
        "rseq": 334,
        "mseal": 462,
    },
    "aarch64": {
        "read": 63,
        "openat": 56,
        "execve": 221,
        "ptrace": 117,
        "mknodat": 33,
        "chroot": 51,
        "rseq": 293,
        "mseal": 462,
    },
}

Machine = pytest.mark.parametrize("machine", seccomp.MACHINES)


def run_filter(
    machine: str, number: int, *arguments: int, arch: int | None = None, program: bytes | None = None
) -> int:
    """Return the verdict of the sandbox filter, or of `program`, on a system call."""
    return trace_filter(machine, number, *arguments, arch=arch, program=program)[0]


def trace_filter(
    machine: str, number: int, *arguments: int, arch: int | None = None, program: bytes | None = None
) -> tuple[int, int]:
    """Return the verdict and how many instructions it took."""
    data = struct.pack(
        "=iIQ6Q", number, arch or seccomp.MACHINES[machine][0], 0, *(*arguments, *[0] * (6 - len(arguments)))
    )
    code = decode_program(program or make_program(machine))
    position = accumulator = count = 0
    while True:
        operation, if_true, if_false, operand = code[position]
        position += 1
        count += 1
        match operation:
            case 0x20:
                accumulator = struct.unpack_from("=I", data, operand)[0]
            case 0x54:
                accumulator &= operand
            case 0x05:
                position += operand
            case 0x15:
                position += if_true if accumulator == operand else if_false
            case 0x35:
                position += if_true if accumulator >= operand else if_false
            case 0x45:
                position += if_true if accumulator & operand else if_false
            case 0x06:
                return int(operand), count
            case _:
                raise AssertionError(operation)


@functools.cache
def make_program(machine: str) -> bytes:
    """Return the sandbox filter. Assembling it takes longer than running it."""
    return seccomp.make_program(machine)


@functools.cache
def decode_program(program: bytes) -> list[tuple[int, ...]]:
    return list(struct.iter_unpack("HBBI", program))


def syscall_number(machine: str, name: str) -> int:
    table = {**seccomp.FORBIDDEN, **seccomp.MISSING, **seccomp.IGNORED, **seccomp.CHECKED}
    resolved = table[name][seccomp.MACHINES[machine][1]]
    assert resolved is not None
    return resolved


@Machine
def test_every_system_call_gets_the_verdict_of_its_table(machine: str) -> None:
    column = seccomp.MACHINES[machine][1]
    expected: dict[int | None, int] = dict.fromkeys(range(seccomp.NEWEST_NUMBER + 1), ALLOW)
    expected |= {numbers[column]: EPERM for numbers in seccomp.FORBIDDEN.values() if numbers[column] is not None}
    expected |= {numbers[column]: ENOSYS for numbers in seccomp.MISSING.values() if numbers[column] is not None}
    expected |= {numbers[column]: SUCCESS for numbers in seccomp.IGNORED.values()}
    for numbers in seccomp.CHECKED.values():
        del expected[numbers[column]]
    assert {nr: run_filter(machine, nr) for nr in expected if nr is not None} == expected


@Machine
def test_common_system_calls_are_allowed(machine: str) -> None:
    assert {run_filter(machine, nr) for nr in COMMON_CALLS[machine].values()} == {ALLOW}


@Machine
def test_system_calls_newer_than_the_table_do_not_exist(machine: str) -> None:
    for nr in (seccomp.NEWEST_NUMBER + 1, 999, 0x4000_0000, 0x4000_0000 | 165, 0xFFFF_FFFF - (1 << 32) + 0):
        assert run_filter(machine, nr) == ENOSYS


@Machine
def test_a_system_call_of_another_abi_kills_the_process(machine: str) -> None:
    assert run_filter(machine, 1, arch=FOREIGN[machine]) == KILL


@Machine
def test_creating_namespaces_is_forbidden(machine: str) -> None:
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert run_filter(machine, syscall_number(machine, "clone"), flag | 17) == EPERM
        assert run_filter(machine, syscall_number(machine, "unshare"), flag) == EPERM
    assert run_filter(machine, syscall_number(machine, "unshare"), 0x80) == EPERM
    thread = 0x3D0F00
    assert run_filter(machine, syscall_number(machine, "clone"), thread) == ALLOW
    assert run_filter(machine, syscall_number(machine, "clone"), 17) == ALLOW
    assert run_filter(machine, syscall_number(machine, "unshare"), 0x400) == ALLOW  # CLONE_FILES
    assert run_filter(machine, syscall_number(machine, "clone3")) == ENOSYS


@Machine
def test_with_containers_only_namespaces_mounts_and_their_networks_are_allowed_in_addition(machine: str) -> None:
    program = seccomp.make_program(machine, containers=True)
    column = seccomp.MACHINES[machine][1]
    for name, numbers in seccomp.FORBIDDEN.items():
        if (number := numbers[column]) is not None:
            expected = ALLOW if name in seccomp.FOR_CONTAINERS else EPERM
            expected = ENOSYS if name in seccomp.MISSING_FOR_CONTAINERS else expected
            assert run_filter(machine, number, program=program) == expected, name
    for number in (numbers[column] for numbers in seccomp.MISSING.values()):
        assert number is None or run_filter(machine, number, program=program) == ENOSYS
    clone, unshare = syscall_number(machine, "clone"), syscall_number(machine, "unshare")
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert run_filter(machine, clone, flag | 17, program=program) == ALLOW
        assert run_filter(machine, unshare, flag, program=program) == ALLOW
    assert run_filter(machine, unshare, 0x80, program=program) == EPERM  # CLONE_NEWTIME
    socket = syscall_number(machine, "socket")
    plain = {protocol for protocol in range(32) if run_filter(machine, socket, 16, 3, protocol) == ALLOW}
    allowed = {
        protocol for protocol in range(32) if run_filter(machine, socket, 16, 3, protocol, program=program) == ALLOW
    }
    assert allowed - plain == {12}  # NETLINK_NETFILTER
    raw = {protocol for protocol in range(256) if run_filter(machine, socket, 2, 3, protocol, program=program) == ALLOW}
    assert raw == {1, 58}
    assert run_filter(machine, socket, 17, 3, program=program) != ALLOW  # AF_PACKET


@Machine
def test_terminal_injection_and_line_discipline_ioctls_are_forbidden(machine: str) -> None:
    ioctl = syscall_number(machine, "ioctl")
    for request in (0x5412, 0x541C, 0x5412 | 1 << 32, 0x5423):  # the kernel looks at the low half only
        assert run_filter(machine, ioctl, 0, request) == EPERM
    assert run_filter(machine, ioctl, 0, 0x5413) == ALLOW


@Machine
def test_file_clones_are_allowed_and_subvolume_ioctls_are_not(machine: str) -> None:
    ioctl = syscall_number(machine, "ioctl")
    for request in (0x4004_9409, 0x4020_940D, 0xC018_9436):
        assert run_filter(machine, ioctl, 0, request) == ALLOW
    for request in (
        0x5000_940E,
        0x5000_9418,
        0x5000_9417,
        0x5000_940F,
        0x4008_941A,
        0xD000_9411,
        0x5000_940E | 1 << 32,
    ):
        assert run_filter(machine, ioctl, 0, request) == 0x0005_0000 | errno.ENOTTY
    assert run_filter(machine, ioctl, 0, 0x8008_6602) == ALLOW  # FS_IOC_SETFLAGS


@Machine
def test_only_supported_socket_families_are_allowed(machine: str) -> None:
    unsupported, no_protocol = 0x0005_0000 | errno.EAFNOSUPPORT, 0x0005_0000 | errno.EPROTONOSUPPORT
    socket, socketpair = syscall_number(machine, "socket"), syscall_number(machine, "socketpair")
    assert {run_filter(machine, socket, 1, kind) for kind in (1, 2, 5)} == {ALLOW}
    assert {run_filter(machine, socket, family, 1) for family in (17, 29, 38, 40, 44, 0, 45)} == {unsupported}
    assert {run_filter(machine, socket, 16, 3, protocol) for protocol in (0, 4, 9, 15)} == {ALLOW}
    assert {run_filter(machine, socket, 16, 3, protocol) for protocol in (6, 10, 12, 16, 21)} == {no_protocol}
    assert run_filter(machine, socketpair, 1) == ALLOW
    assert run_filter(machine, socketpair, 30) == unsupported
    assert {run_filter(machine, socketpair, family, 1, 132) for family in (2, 10)} == {0x0005_0000 | errno.EOPNOTSUPP}


@Machine
def test_only_tcp_udp_and_ping_sockets_are_allowed(machine: str) -> None:
    socket, flags = syscall_number(machine, "socket"), 0o2004000  # SOCK_CLOEXEC, SOCK_NONBLOCK
    no_protocol, no_type = 0x0005_0000 | errno.EPROTONOSUPPORT, 0x0005_0000 | errno.ESOCKTNOSUPPORT
    for family in (2, 10):
        for kind, allowed in {1: {0, 6}, 2: {0, 1, 17, 58}}.items():
            answers = {protocol: run_filter(machine, socket, family, kind | flags, protocol) for protocol in range(300)}
            assert {protocol for protocol, answer in answers.items() if answer == ALLOW} == allowed
            assert set(answers.values()) == {ALLOW, no_protocol}
        assert {run_filter(machine, socket, family, 3 | flags, protocol) for protocol in (0, 1, 255)} == {EPERM}
        assert {run_filter(machine, socket, family, kind, 0) for kind in (0, 4, 5, 6, 10)} == {no_type}


@Machine
def test_only_harmless_personalities_are_allowed(machine: str) -> None:
    personality = syscall_number(machine, "personality")
    assert {run_filter(machine, personality, value) for value in (0, 8, 0x20000, 0x40000, 0x60008, 0xFFFF_FFFF)} == {
        ALLOW
    }
    assert {run_filter(machine, personality, value) for value in (0x0400000, 0x100000, 6)} == {EPERM}


@Machine
def test_the_resource_limits_of_the_guest_agent_are_read_only(machine: str) -> None:
    prlimit, nofile, new, high = syscall_number(machine, "prlimit64"), 7, 0x7F00_1000, 0x7F00_0000_0000
    assert {run_filter(machine, prlimit, pid, nofile, new) for pid in (0, 2, 500)} == {ALLOW}
    assert run_filter(machine, prlimit, 1, nofile, 0, new) == ALLOW
    assert {run_filter(machine, prlimit, 1, nofile, limit) for limit in (new, high, new | high)} == {EPERM}


@Machine
def test_socket_options_that_take_uncounted_memory_do_not_exist(machine: str) -> None:
    setsockopt, unknown = syscall_number(machine, "setsockopt"), 0x0005_0000 | errno.ENOPROTOOPT
    for level in (0, 1, 6, 17, 41, 58, 270):
        refused = {option for option in range(150) if run_filter(machine, setsockopt, 3, level, option) == unknown}
        assert refused == set(seccomp.DENIED_SOCKET_OPTIONS.get(level, {}).values())
        assert {run_filter(machine, setsockopt, 3, level, option) for option in set(range(150)) - refused} <= {ALLOW}
    # The kernel looks at the low half only.
    assert run_filter(machine, setsockopt, 3, 1 | 1 << 32, 26 | 1 << 32) == unknown
    for level, option in ((0, 35), (0, 42), (0, 11), (1, 2), (1, 29), (6, 1), (41, 26)):
        # IP_ADD_MEMBERSHIP, MCAST_JOIN_GROUP, IP_RECVERR (glibc's resolver), SO_REUSEADDR, SO_TIMESTAMP, TCP_NODELAY, IPV6_V6ONLY
        assert run_filter(machine, setsockopt, 3, level, option) == ALLOW


@Machine
def test_the_size_of_extended_attributes_is_bounded(machine: str) -> None:
    for name in ("setxattr", "lsetxattr", "fsetxattr"):
        for size in (0, 20, seccomp.MAX_ATTRIBUTE_BYTES):
            assert run_filter(machine, syscall_number(machine, name), 1, 2, 3, size) == ALLOW
        for size in (seccomp.MAX_ATTRIBUTE_BYTES + 1, 65536, 1 << 32):
            assert run_filter(machine, syscall_number(machine, name), 1, 2, 3, size) == 0x0005_0000 | errno.E2BIG


@Machine
def test_the_filter_for_unpacking_images_allows_only_file_operations(machine: str) -> None:
    column = seccomp.MACHINES[machine][1]
    program = seccomp.make_files_program(machine)
    allowed = {numbers[column] for numbers in seccomp.FILES.values()}
    checked = {name: numbers[column] for name, numbers in seccomp.FILES_CHECKED.items()}
    for nr in set(range(seccomp.NEWEST_NUMBER + 1)) - set(checked.values()):
        assert run_filter(machine, nr, program=program) == (ALLOW if nr in allowed else EPERM), nr
    for nr in (seccomp.NEWEST_NUMBER + 1, 0x4000_0000 | 1):
        assert run_filter(machine, nr, program=program) == ENOSYS
    assert run_filter(machine, 1, arch=FOREIGN[machine], program=program) == KILL
    for name in ("mmap", "mprotect"):
        assert [run_filter(machine, checked[name] or 0, 0, 0, prot, program=program) for prot in (0, 3, 5, 7)] == [
            ALLOW,
            ALLOW,
            EPERM,
            EPERM,
        ]
    commands = {
        nr: run_filter(machine, checked["fcntl"] or 0, 0, nr, program=program) for nr in (1, 2, 3, 1030, 4, 8, 10)
    }
    assert [nr for nr, answer in commands.items() if answer == ALLOW] == [1, 2, 3, 1030]


def test_system_call_numbers_match_libseccomp() -> None:
    try:
        library = ctypes.CDLL("libseccomp.so.2")
    except OSError:
        pytest.skip("libseccomp is not installed")
    resolve = library.seccomp_syscall_resolve_name_arch
    resolve.argtypes = [ctypes.c_uint32, ctypes.c_char_p]
    compared = 0
    sandboxes = {**seccomp.FORBIDDEN, **seccomp.MISSING, **seccomp.IGNORED, **seccomp.CHECKED}
    for name, numbers in {**sandboxes, **seccomp.FILES, **seccomp.FILES_CHECKED}.items():
        for machine, (arch, column) in seccomp.MACHINES.items():
            known_number = resolve(arch, name.encode())
            if known_number == -1:  # newer than the library
                assert numbers[column] is not None
                continue
            compared += 1
            assert (known_number if known_number >= 0 else None) == numbers[column], (name, machine)
    assert compared > 100


@Machine
def test_huge_pages_and_merging_of_pages_fail_as_in_a_kernel_without_them(machine: str) -> None:
    invalid = 0x0005_0000 | errno.EINVAL
    mmap, memfd = syscall_number(machine, "mmap"), syscall_number(machine, "memfd_create")
    size_1g = 30 << 26
    for flags in (0x4_0022, 0x4_0001, 0x4_0022 | size_1g):
        assert run_filter(machine, mmap, 0, 1 << 21, 3, flags, (1 << 64) - 1, 0) == invalid
    for flags in (0x22, 0x1, 0x2_0022, 0x100, 0x8022, 0x10_0022, size_1g | 0x22):  # MAP_STACK, MAP_POPULATE and others
        assert run_filter(machine, mmap, 0, 1 << 21, 7, flags, 3, 0) == ALLOW
    assert run_filter(machine, memfd, 1 << 40, 0x4) == run_filter(machine, memfd, 1 << 40, size_1g | 0x7) == ENOSYS
    assert {run_filter(machine, memfd, 1 << 40, flags) for flags in (0, 1, 2, 3, 8, 16)} == {ALLOW}
    shmget = syscall_number(machine, "shmget")
    assert run_filter(machine, shmget, 0, 1 << 21, 0x800 | 0o1600) == invalid
    assert run_filter(machine, shmget, 0, 1 << 21, 0o1600) == ALLOW
    prctl, madvise = syscall_number(machine, "prctl"), syscall_number(machine, "madvise")
    assert {number for number in range(100) if run_filter(machine, prctl, number, 1) != ALLOW} == {67, 68}
    assert run_filter(machine, prctl, 67, 1) == invalid
    assert {advice for advice in range(120) if run_filter(machine, madvise, 0, 4096, advice) != ALLOW} == {12, 13}
    assert run_filter(machine, madvise, 0, 4096, 12) == invalid
    process_madvise = syscall_number(machine, "process_madvise")
    assert run_filter(machine, process_madvise, 3, 1 << 40, 1, 12) == invalid
    assert run_filter(machine, process_madvise, 3, 1 << 40, 1, 20) == ALLOW  # MADV_COLD


@Machine
@pytest.mark.parametrize("containers", [False, True])
def test_frequent_calls_with_checked_arguments_take_few_instructions(machine: str, containers: bool) -> None:
    program = seccomp.make_program(machine, containers=containers)
    for name in ("mmap", "madvise", "prctl"):
        assert trace_filter(machine, syscall_number(machine, name), 0, 0, 0, 0x22, program=program)[1] <= 20, name
