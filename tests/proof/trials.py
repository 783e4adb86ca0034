"""The trials: each claim, the tests that try it, and how often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ACCEPTANCE = "tests/acceptance"


@dataclass(frozen=True, slots=True)
class Trial:
    """A claim and its tests. Variables set how often they try: `short` by default, `full` with `--full`."""

    name: str
    claim: str
    tests: tuple[str, ...]  # arguments of pytest
    short: Mapping[str, str] = field(default_factory=dict)
    full: Mapping[str, str] = field(default_factory=dict)


TRIALS = (
    Trial(
        "engine-kills",
        "Sandboxes, their processes and files survive a crash of the engine.",
        (f"{ACCEPTANCE}/test_crash.py", "-k", "namespace-many"),
        {"SANDYARD_CRASHES": "20"},
        {"SANDYARD_CRASHES": "1000"},
    ),
    Trial(
        "engine-kills-gvisor",
        "So do sandboxes with gVisor.",
        (f"{ACCEPTANCE}/test_crash.py", "-k", "gvisor-many"),
        {"SANDYARD_CRASHES": "10"},
        {"SANDYARD_CRASHES": "200"},
    ),
    Trial(
        "output-kills",
        "A client that reconnects to a command after a crash misses no line of its output.",
        (f"{ACCEPTANCE}/test_output_crash.py",),
        {"SANDYARD_OUTPUT_KILLS": "10"},
        {"SANDYARD_OUTPUT_KILLS": "50"},
    ),
    Trial(
        "task-kills",
        "Every task ends in exactly one pull request with exactly its commits, whichever process is killed when.",
        (f"{ACCEPTANCE}/test_tasks_chaos.py", "-k", "many"),
        {"SANDYARD_CHAOS_TASKS": "12"},
        {"SANDYARD_CHAOS_TASKS": "200"},
    ),
    Trial(
        "postgresql-restarts",
        "Tasks wait while PostgreSQL is unavailable, and a standby platform takes over when the first one dies.",
        (f"{ACCEPTANCE}/test_postgres.py",),
    ),
    Trial(
        "dead-sandboxes",
        "A sandbox whose processes ended is started again with its files, and its task continues.",
        (f"{ACCEPTANCE}/test_dead_sandbox.py",),
    ),
    Trial(
        "full-disks",
        "On a full disk, work is refused with the reason, nothing is lost, and everything recovers by itself.",
        (f"{ACCEPTANCE}/test_full_disk.py", f"{ACCEPTANCE}/test_full_platform_disk.py"),
    ),
    Trial(
        "copied-data",
        "A copy of a data directory is an installation of its own and does not affect the original.",
        (f"{ACCEPTANCE}/test_copied_data.py",),
    ),
    Trial(
        "tasks-on-hosts",
        "Tasks on three hosts end in exactly their pull requests, while hosts, the engine and the network fail and hosts do not come back.",
        (f"{ACCEPTANCE}/test_cluster_tasks.py",),
    ),
    Trial(
        "hosts",
        "Sandboxes of several hosts are used like those of one machine; none is lost when hosts are drained, die, are cut off or given up.",
        (f"{ACCEPTANCE}/test_cluster.py", f"{ACCEPTANCE}/test_cluster_moves.py"),
    ),
    Trial(
        "hosts-from-ray",
        "Nodes of a Ray cluster become hosts; their sandboxes survive crashes of keeper, host service, engine, a node's Ray and the head.",
        (f"{ACCEPTANCE}/test_ray.py",),
    ),
    Trial(
        "rolling-upgrade",
        "Hosts and engine are upgraded one after another while their sandboxes run; releases that are too far apart are refused.",
        (f"{ACCEPTANCE}/test_cluster_upgrade.py",),
    ),
    Trial(
        "upgrade",
        "An upgrade from the version before keeps sandboxes and tasks, and a backup leads back.",
        (f"{ACCEPTANCE}/test_upgrade.py",),
    ),
    Trial(
        "failed-migrations",
        "A migration that fails is found on a copy, and both databases stay as they were.",
        (
            "tests/integration/platform/db/test_migrate.py",
            "tests/unit/engine/store/test_migration.py",
            "tests/integration/cli/up/test_upgrade_trial.py",
        ),
    ),
    Trial(
        "backups",
        "An installation survives the loss of its machine with an encrypted backup that was made while it ran.",
        ("tests/integration/cli/up/test_backup.py", "tests/unit/cli/test_backup.py"),
    ),
    Trial(
        "bare-machines",
        "The wheel works on a bare Debian 12, Debian 13 and Ubuntu 24.04, says what they lack, and installs it.",
        (f"{ACCEPTANCE}/test_bare_machines.py",),
    ),
    Trial(
        "git-faults",
        "A push or a pull request happens exactly once, whatever fails between the platform and the forge.",
        (f"{ACCEPTANCE}/test_git_faults.py",),
    ),
    Trial(
        "load",
        "Hundreds of sandboxes, sessions and open pages are served at once.",
        (f"{ACCEPTANCE}/test_load.py",),
        {"SANDYARD_IDLE_SANDBOXES": "200", "SANDYARD_CARDS": "1000"},
        {"SANDYARD_IDLE_SANDBOXES": "1000", "SANDYARD_CARDS": "5000"},
    ),
    Trial(
        "soak",
        "An engine that creates and removes sandboxes does not grow: memory, descriptors, processes, mounts, cgroups, interfaces, disk.",
        (f"{ACCEPTANCE}/test_soak.py",),
        {"SANDYARD_SOAK_S": "60"},
        {"SANDYARD_SOAK_S": "3600"},
    ),
    Trial(
        "secrets",
        "No credential of the forge, and no key of a model provider, enters a sandbox, a log, a process list or a response.",
        (f"{ACCEPTANCE}/test_git_secrets.py", f"{ACCEPTANCE}/test_agents.py", "-k", "disclosed or key"),
    ),
    Trial(
        "escapes",
        "Known escapes fail at both isolation levels.",
        (f"{ACCEPTANCE}/test_escape.py", f"{ACCEPTANCE}/test_escape_containers.py", f"{ACCEPTANCE}/test_isolation.py"),
    ),
    Trial(
        "malformed-data",
        "Malformed data from sandboxes, clients and the internet leads to errors that say so, in less than a second each.",
        ("tests/unit/fuzzing",),
        {"SANDYARD_FUZZ_EXAMPLES": "500"},
        {"SANDYARD_FUZZ_EXAMPLES": "20000"},
    ),
    Trial(
        "e2b-sdks",
        "The unmodified E2B SDKs for Python and JavaScript work with this engine.",
        ("tests/protocol", "--ignore=tests/protocol/test_clients.py"),
    ),
    Trial(
        "wheel",
        "The wheel can be built again, byte for byte.",
        (f"{ACCEPTANCE}/test_wheel.py", "-k", "byte"),
    ),
)
