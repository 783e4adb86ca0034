"""`sandyard host kubernetes`: the host service in a pod."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import click

from sandyard.cli.host_service import data_dir_option
from sandyard.cli.options import OrderedGroup
from sandyard.kit.errors import SandyardError


@click.group(cls=OrderedGroup)
def kubernetes() -> None:
    """Use the nodes of a Kubernetes cluster as hosts.

    `deploy/kubernetes` runs these commands.
    """


@kubernetes.command()
@click.option(
    "--engine",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("/etc/sandyard/engine"),
    show_default=True,
    help="Folder with the engine's address and fingerprint, from a ConfigMap that the engine writes.",
)
@click.option(
    "--token",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("/var/run/secrets/sandyard/token"),
    show_default=True,
    help="File with the pod's service account token for the audience `sandyard`.",
)
@click.option(
    "--port", type=click.IntRange(1, 65535), default=3011, show_default=True, help="Port of the host service."
)
@data_dir_option
def serve(*, engine: Path, token: Path, port: int, data_dir: Path) -> None:
    """Make the node of this pod a host, and run the host service.

    The engine checks the pod's token with the API server, and answers with a join token. A node that is a host already keeps its
    identity, which is in the data directory.
    """
    from sandyard.engine.hosts.identity import HostIdentity  # noqa: PLC0415 - slow to load
    from sandyard.engine.hosts.kubernetes.pod import PodFiles, join_engine  # noqa: PLC0415
    from sandyard.engine.settings import EngineSettings  # noqa: PLC0415
    from sandyard.kit.logging import configure  # noqa: PLC0415
    from sandyard.kit.python import SAFE_FOLDER, make_python_command, make_python_environment  # noqa: PLC0415

    data_dir = data_dir.absolute()
    machine = EngineSettings.load(data_dir=data_dir)
    configure(machine.log_level, as_json=machine.log_json)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # as process 1 of a container, it would be ignored
    join_engine(PodFiles(engine, token), HostIdentity(data_dir), port)
    command = make_python_command("sandyard", "host", "serve", "--data-dir", str(data_dir))
    os.chdir(SAFE_FOLDER)
    try:
        os.execve(command[0], command, make_python_environment())  # noqa: S606 - no shell
    except OSError as error:
        raise SandyardError(f"Could not start {command[0]}: {error.strerror}.") from error
