"""The scenarios: what each corresponds to, how it is tried, what counts as an escape, and its outcome at each level."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.acceptance.isolation import attempts
from tests.acceptance.isolation.attempts import Bench, Succeeded
from tests.acceptance.isolation.levels import GVISOR, GVISOR_CONTAINERS, LEVELS, NAMESPACE, NAMESPACE_CONTAINERS, Level

ESCAPE_BENCH, SANDBOX_BENCH = "SandboxEscapeBench", "SandboxBench"
SOURCES: Mapping[str, tuple[str, ...]] = {
    ESCAPE_BENCH: (
        *("privileged", "docker_socket", "pid_namespace", "sys_admin", "sys_module", "dac_read_search", "hostpath_etc"),
        *("cgroup_release_agent", "runc_overwrite", "bpf_privesc", "dirty_cow", "dirty_pipe", "packet_socket"),
        *("k8s_crio_escape", "k8s_malicious_binary", "k8s_rbac_permissions", "k8s_route_localnet", "k8s_runc"),
    ),
    SANDBOX_BENCH: (
        *("privileged_container", "docker_socket", "proc_writable", "capabilities", "kernel_module", "shared_pid"),
        *("cgroup_escape", "open_escape", "proxy_bypass", "dns_tunnel", "covert_channel"),
        *("env_secrets", "filesystem_creds", "cloud_metadata", "database_creds"),
    ),
}
"""Every scenario of both benchmarks."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """No attack of the scenario succeeds."""

    reason: str
    attacks: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Allowed:
    """These attacks succeed, which is no escape. All others fail."""

    reason: str
    attacks: frozenset[str]


Outcome = Stopped | Allowed


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    tries: str
    escaped: str
    """What counts as an escape."""
    outcomes: Mapping[Level, Outcome]
    sources: tuple[tuple[str, str], ...] = ()
    """Scenarios of the benchmarks that it corresponds to."""
    attacks: tuple[str, ...] = ()
    """Attacks of attacks.py, with names of `Bench.values` in braces."""
    attempt: Callable[[Bench], Succeeded] | None = None
    needs_internet: bool = False
    """Whether it needs an engine of its own that has a fake internet."""
    takes_long: bool = False

    def run(self, bench: Bench) -> Succeeded:
        succeeded = bench.run(*(attack.format(**bench.values) for attack in self.attacks)) if self.attacks else {}
        return succeeded | (self.attempt(bench) if self.attempt else {})


def outcomes(
    namespace: Outcome,
    gvisor: Outcome | None = None,
    *,
    namespace_containers: Outcome | None = None,
    gvisor_containers: Outcome | None = None,
) -> dict[Level, Outcome]:
    """Return an outcome for each level. Those that are left out are as for the same level without containers, or for namespace."""
    gvisor = gvisor or namespace
    return {
        NAMESPACE: namespace,
        NAMESPACE_CONTAINERS: namespace_containers or namespace,
        GVISOR: gvisor,
        GVISOR_CONTAINERS: gvisor_containers or gvisor,
    }


def escape_bench(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((ESCAPE_BENCH, name) for name in names)


def sandbox_bench(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((SANDBOX_BENCH, name) for name in names)


def allowed(reason: str, *attacks: str) -> Allowed:
    return Allowed(reason, frozenset(attacks))


OWN_KERNEL = Stopped("The call is served by gVisor's kernel and does not reach the host's")
OWN_MOUNTS = ("mount_tmpfs", "mount_bind", "mount_overlay", "set_hostname")
WITH_DOCKER = (
    *("new_user_namespace", "namespaces_by_the_kernels_own_count", "devices_present", "engine_sockets"),
    "foreign_processes",  # dockerd
)
ON_ITS_OWN_KERNEL = (
    *("init_environment", "init_executable", "init_files", "init_memory", "init_root"),
    *(
        "new_user_namespace",
        "asynchronous_io",
        "use_keyring",
        "kernel_log",
        "devices_present",
        "forwarding",
        "cgroup_limits",
    ),
    *("socket_filter", "filter_of_a_group_of_sockets", "multicast_from_a_source", "multicast_group_with_sources"),
    *("multicast_on_ipv6", "routing_header", "signature_key", "many_device_files", "many_files_in_memory"),
)

SCENARIOS = (
    Scenario(
        name="The machine's disks",
        sources=(*escape_bench("privileged"), *sandbox_bench("privileged_container")),
        tries=(
            "Creates device nodes for disks and memory and opens or mounts them, also in a privileged container of "
            "the sandbox's Docker"
        ),
        escaped="Data of a disk or of the kernel's memory can be read",
        attacks=("mount_disk", "memory_device", "disk_device", "kernel_log_device", "kernel_core"),
        outcomes=outcomes(
            Stopped("The user namespace is not the host's: device nodes cannot be created, and no disk can be mounted"),
            Stopped("The sandbox's kernel has no disks, and does not open the devices of the host"),
        ),
    ),
    Scenario(
        name="Control socket of a container engine",
        sources=(*escape_bench("docker_socket"), *sandbox_bench("docker_socket")),
        tries=(
            "Connects to the sockets of Docker, containerd, CRI-O and Podman, and starts a privileged container that "
            "mounts `/` and shares all namespaces"
        ),
        escaped="A file of the host is visible",
        attacks=("engine_sockets", "canary_by_path:{canary}"),
        outcomes=outcomes(
            Stopped("The sandbox has no such socket"),
            namespace_containers=allowed(
                "The socket belongs to the sandbox's own Docker; `/` is that of the sandbox", "engine_sockets"
            ),
            gvisor_containers=allowed(
                "The socket belongs to the sandbox's own Docker; `/` is that of the sandbox", "engine_sockets"
            ),
        ),
    ),
    Scenario(
        name="Processes of the machine",
        sources=(*escape_bench("pid_namespace"), *sandbox_bench("shared_pid")),
        tries=(
            "Looks for a process of the host in /proc, and for a file of the host below the root and the working "
            "directory of every process"
        ),
        escaped="The process or the file is found",
        attempt=attempts.find_processes_of_the_machine,
        outcomes=outcomes(Stopped("The sandbox has its own process ids")),
    ),
    Scenario(
        name="The sandbox's agent",
        tries="Reads the memory, variables and files of process 1, traces it, and lowers its limits",
        escaped="Another sandbox or the engine notices",
        attempt=attempts.attack_the_agent,
        outcomes=outcomes(
            Stopped("The agent belongs to the outer user namespace"),
            allowed(
                "The agent is a process on the sandbox's own kernel and holds nothing that the sandbox's root does not "
                "have. Root can make its own sandbox unreachable",
                *("init_environment", "init_files", "init_root", "init_executable", "init_memory", "init_limits"),
                "agent stopped",
            ),
        ),
    ),
    Scenario(
        name="Mounts as an administrator",
        sources=(*escape_bench("sys_admin"), *sandbox_bench("capabilities")),
        tries=(
            "Mounts file systems and changes the host name as root, as root of a new user namespace, and in a "
            "privileged container"
        ),
        escaped="A file of the host is visible, or a setting of the machine changes",
        attacks=(*OWN_MOUNTS, "canary_by_path:{canary}", "core_pattern"),
        outcomes=outcomes(
            Stopped("Root has no capabilities over the namespaces of its sandbox"),
            Stopped("Root has no SYS_ADMIN, not even on its own kernel"),
            namespace_containers=allowed(
                "Only in namespaces that a program has created itself, which show the sandbox's files", *OWN_MOUNTS
            ),
            gvisor_containers=allowed("On the sandbox's own kernel, which knows only the sandbox's files", *OWN_MOUNTS),
        ),
    ),
    Scenario(
        name="Kernel modules",
        sources=(*escape_bench("sys_module"), *sandbox_bench("kernel_module")),
        tries="Loads and unloads modules, loads a kernel, and replaces the program that loads modules",
        escaped="A call is accepted",
        attacks=("load_module", "load_module_file", "unload_module", "load_kernel", "modprobe_path"),
        outcomes=outcomes(
            Stopped("seccomp, and no capability over the host's kernel"),
            Stopped("The sandbox's kernel has no modules"),
        ),
    ),
    Scenario(
        name="Files by handle",
        sources=escape_bench("dac_read_search"),
        tries="Opens the root of the disk below the sandbox's files with open_by_handle_at",
        escaped="A handle is accepted",
        attacks=("open_by_handle",),
        outcomes=outcomes(
            Stopped("Needs a capability in the host's user namespace"),
            Stopped("The sandbox's kernel has no such call for its files"),
        ),
    ),
    Scenario(
        name="Mounts from the host",
        sources=escape_bench("hostpath_etc"),
        tries="Makes everything that is mounted read-only writable, and creates files there",
        escaped="A file is created, or a file of the host is visible",
        attacks=("write_read_only_mounts", "canary_by_path:{canary}"),
        outcomes=outcomes(
            Stopped("Such mounts are locked, and none of them leads to the host's files"),
            Stopped("The host mounts the agent's files read-only, whatever the sandbox's kernel says"),
        ),
    ),
    Scenario(
        name="Programs started by cgroups",
        sources=(*escape_bench("cgroup_release_agent"), *sandbox_bench("cgroup_escape")),
        tries="Mounts all cgroups and writes to every `release_agent` (CVE-2022-0492)",
        escaped="A write is accepted",
        attacks=("release_agents", "uevent_helper"),
        outcomes=outcomes(
            Stopped("No cgroup is mounted"),
            Stopped("The cgroups of the sandbox's kernel start no programs"),
            namespace_containers=Stopped(
                "Only the host's root may write to them, where the kernel lets the sandbox mount cgroups at all"
            ),
        ),
    ),
    Scenario(
        name="Limits of the sandbox",
        tries="Writes to every limit of memory that it sees or can mount",
        escaped="A limit on the host changes",
        attempt=attempts.change_limits,
        outcomes=outcomes(
            Stopped("No cgroup is mounted"),
            allowed("Only the limits that the sandbox's kernel sets itself. Those of the host stay", "cgroup_limits"),
            namespace_containers=Stopped("The files belong to the host's root"),
        ),
    ),
    Scenario(
        name="The runtime's program",
        sources=escape_bench("runc_overwrite"),
        tries=(
            "Opens the programs of the agent and the runtime for writing, through /proc and where they are mounted "
            "(CVE-2019-5736)"
        ),
        escaped="One of them can be written to",
        attacks=("replace_runtime",),
        outcomes=outcomes(
            Stopped("Nothing from the host is executed in a sandbox: the agent is forked, and /proc/1/exe is closed"),
            Stopped("The agent's program is on a mount that the host makes read-only"),
        ),
    ),
    Scenario(
        name="eBPF programs",
        sources=escape_bench("bpf_privesc"),
        tries="Passes a program to the verifier: the precondition of CVE-2017-16995",
        escaped="The host's kernel accepts the call",
        attacks=("load_bpf_program:{kernel}",),
        outcomes=outcomes(Stopped("seccomp"), OWN_KERNEL),
    ),
    Scenario(
        name="Dirty COW",
        sources=escape_bench("dirty_cow"),
        tries="Writes to a private read-only mapping through /proc/self/mem: the precondition of CVE-2016-5195",
        escaped="The file itself has changed",
        attempt=attempts.write_to_a_private_copy,
        outcomes=outcomes(
            allowed(
                "An ordinary feature of the shared kernel, which changes the private copy only. Linux 4.9 fixed the "
                "flaw, and the engine requires 5.15",
                "write_private_copy",
            ),
            OWN_KERNEL,
        ),
    ),
    Scenario(
        name="Dirty Pipe",
        sources=escape_bench("dirty_pipe"),
        tries="Moves a page of a file into a used pipe with splice: the precondition of CVE-2022-0847",
        escaped="The kernel of the host has the flaw; the test only shows whether it is reachable",
        attacks=("splice_from_file:{kernel}",),
        outcomes=outcomes(
            allowed(
                "An ordinary call of the shared kernel. Only a kernel with the fix (5.16.11, 5.15.25, or a "
                "distribution's) protects the host",
                "splice_from_file",
            ),
            OWN_KERNEL,
        ),
    ),
    Scenario(
        name="Packet sockets",
        sources=escape_bench("packet_socket"),
        tries="Opens a packet socket with a ring buffer: the precondition of CVE-2017-7308",
        escaped="The host's kernel creates it",
        attacks=("packet_ring:{kernel}",),
        outcomes=outcomes(Stopped("seccomp, also in containers"), OWN_KERNEL),
    ),
    Scenario(
        name="Settings of the kernel",
        sources=(*escape_bench("k8s_crio_escape"), *sandbox_bench("proc_writable")),
        tries=(
            "Writes to `core_pattern`, `modprobe`, `overcommit_memory` and sysrq, also with a new /proc and as a "
            "setting of a container (as in CVE-2022-0811)"
        ),
        escaped="A write is accepted, or the host's setting changes",
        attempt=attempts.change_settings_of_the_kernel,
        outcomes=outcomes(
            Stopped("/proc/sys is read-only"),
            Stopped("The sandbox's kernel does not have these settings, or refuses to change them"),
            namespace_containers=Stopped("Only the host's root may write to these files, in every /proc"),
        ),
    ),
    Scenario(
        name="Copying files out of the sandbox",
        sources=escape_bench("k8s_malicious_binary"),
        tries=(
            "Replaces `tar` and lays out links that lead out of the copied directory; a client then lists, reads and "
            "writes through the SDK (as in CVE-2019-1002101)"
        ),
        escaped="A file of the host is read or written, or a name contains a path",
        attempt=attempts.copy_out,
        outcomes=outcomes(Stopped("The agent serves files itself, inside the sandbox: links end at its root")),
    ),
    Scenario(
        name="Credentials of the control plane",
        sources=escape_bench("k8s_rbac_permissions"),
        tries=(
            "Searches variables for the engine's key, and uses the API without one. There is no "
            "Kubernetes: the engine's API takes its place"
        ),
        escaped="The key is found, or the API or another sandbox responds",
        attempt=attempts.use_the_control_plane,
        outcomes=outcomes(
            Stopped("A sandbox contains no credential for the API, which refuses every request without one")
        ),
    ),
    Scenario(
        name="Services on the host's loopback",
        sources=escape_bench("k8s_route_localnet"),
        tries=(
            "Sends packets for 127.0.0.1 to the host: by the interface, as raw packets and as frames (as in "
            "CVE-2020-8558)"
        ),
        escaped="A service that listens on 127.0.0.1 of the host receives one",
        attempt=attempts.reach_loopback_of_the_host,
        outcomes=outcomes(
            Stopped(
                "The host's loopback belongs to another network namespace, and the host accepts such addresses only from "
                "itself"
            )
        ),
    ),
    Scenario(
        name="Inherited directories",
        sources=escape_bench("k8s_runc"),
        tries=(
            "Uses every inherited descriptor as a way to the host's files, also as the working directory of a "
            "command (as in CVE-2024-21626)"
        ),
        escaped="A file of the host is read",
        attempt=attempts.start_in_an_inherited_directory,
        outcomes=outcomes(Stopped("No process in the sandbox has a descriptor of a directory outside")),
    ),
    Scenario(
        name="Everything at once",
        sources=sandbox_bench("open_escape"),
        tries=(
            "All attacks of the escape tests, as root and as the ordinary user, without regard to what they are "
            "aimed at. At the level gvisor, attacks by which a sandbox stops only itself are left out"
        ),
        escaped="An attack succeeds that is not listed for the level",
        attempt=attempts.attack_everything,
        takes_long=True,
        outcomes=outcomes(
            Stopped("Every attack fails"),
            allowed(
                "On the sandbox's own kernel: its process 1, user namespaces, asynchronous I/O, keyrings, socket "
                "options, its log, its settings and its limits",
                *ON_ITS_OWN_KERNEL,
            ),
            namespace_containers=allowed(
                "User namespaces, /dev/fuse and /dev/net/tun, and the sandbox's own Docker", *WITH_DOCKER
            ),
            gvisor_containers=allowed(
                "As for gvisor, and mounts, namespaces and sockets on the sandbox's own kernel, and its own Docker",
                *ON_ITS_OWN_KERNEL,
                *WITH_DOCKER,
                *OWN_MOUNTS,
                *("mount_proc", "mount_cgroup", "new_mount_namespace", "new_network_namespace", "join_init_namespaces"),
                *("packet_socket", "raw_socket"),
            ),
        ),
    ),
    Scenario(
        name="Ways around the network policy",
        sources=sandbox_bench("proxy_bypass"),
        tries=(
            "Requests a server that is not allowed by other spellings, names and ports, and through a proxy, also "
            "from a namespace of its own"
        ),
        escaped="The server receives a request",
        attempt=attempts.leave_a_limited_network,
        needs_internet=True,
        outcomes=outcomes(Stopped("The host's firewall decides by address, outside the sandbox")),
    ),
    Scenario(
        name="Data in DNS queries",
        sources=sandbox_bench("dns_tunnel"),
        tries="Looks up names that contain data while only other addresses or names are allowed",
        escaped="The upstream name server receives such a name",
        attempt=attempts.send_names,
        needs_internet=True,
        outcomes=outcomes(
            Stopped(
                "The engine's name server forwards only allowed names. With an open network, it forwards every name"
            )
        ),
    ),
    Scenario(
        name="Data in allowed traffic",
        sources=sandbox_bench("covert_channel"),
        tries="Sends data in the path and the headers of a request to an allowed server",
        escaped="Not an escape: the server is allowed",
        attempt=attempts.hide_data_in_allowed_traffic,
        needs_internet=True,
        outcomes=outcomes(allowed("What a sandbox sends to an allowed server is not examined", "request")),
    ),
    Scenario(
        name="Messages to another sandbox",
        sources=sandbox_bench("covert_channel"),
        tries=(
            "Leaves abstract sockets, System V objects, files in memory and file locks in one sandbox and looks for "
            "them in another. Timing and load are not tried: they are [not "
            "closed](security-model.md#tier-1-namespaces-with-the-engine-running-as-root)"
        ),
        escaped="The other sandbox finds one",
        attempt=attempts.signal_another_sandbox,
        outcomes=outcomes(
            Stopped("Each sandbox has its own network, ipc and mount namespaces"),
            Stopped("Each sandbox has its own kernel"),
        ),
    ),
    Scenario(
        name="Credentials in variables",
        sources=sandbox_bench("env_secrets"),
        tries=(
            "Searches the variables and arguments of all processes for the engine's key and for a value that the "
            "client passed to the sandbox"
        ),
        escaped="The engine's key is found",
        attacks=("environment_of_processes:{given}",),
        attempt=lambda bench: {
            f"{name} (key)": got
            for name, got in bench.run("environment_of_processes:{key}".format(**bench.values)).items()
        },
        outcomes=outcomes(
            allowed(
                "Variables that a client passes are for the programs in the sandbox. Use "
                "[secrets](security-model.md#secrets-in-requests) for what they must not read",
                "environment_of_processes",
            )
        ),
    ),
    Scenario(
        name="Credentials in files",
        sources=sandbox_bench("filesystem_creds"),
        tries="Searches the usual directories for the engine's key and for the contents of a file of the host",
        escaped="One of them is found",
        attempt=attempts.search_files,
        outcomes=outcomes(Stopped("A sandbox consists of its template and its own files")),
    ),
    Scenario(
        name="Cloud metadata",
        sources=sandbox_bench("cloud_metadata"),
        tries="Connects to 169.254.169.254, at which the host runs a service during the test",
        escaped="The service responds",
        attempt=attempts.reach_the_metadata_service,
        outcomes=outcomes(Stopped("Link-local addresses are never reachable")),
    ),
    Scenario(
        name="Databases of the host",
        sources=sandbox_bench("database_creds"),
        tries=(
            "Opens the engine's database by its path, and connects to a service that listens on all addresses of the "
            "host"
        ),
        escaped="The file can be read, or the service responds",
        attempt=attempts.reach_databases,
        outcomes=outcomes(Stopped("The host's files are not visible, and its addresses are never reachable")),
    ),
)

assert all(set(scenario.outcomes) == set(LEVELS) for scenario in SCENARIOS)
