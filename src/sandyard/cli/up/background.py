"""Run `sandyard up` in the background, for the lifetime of this process or, with `keep`, for longer."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from sandyard.cli.errors import CommandError
from sandyard.cli.up import lifeline
from sandyard.cli.up.data_directory import get_default_data_dir
from sandyard.engine.settings import EngineSettings
from sandyard.kit.python import SAFE_FOLDER, make_python_command, make_python_environment
from sandyard.kit.secret import Secret
from sandyard.kit.settings import make_paths_absolute
from sandyard.platform.settings import PlatformSettings

STOP_SECONDS = 2 * lifeline.STOP_SECONDS + 5
POLL_SECONDS = 0.1
LAST_LINES = 15
TOKEN = re.compile(rb"^admin token: (\S+)$", re.MULTILINE)
PRINTED_TOKEN = re.compile(rb"(?:^admin token: |#token=)(\S+)$", re.MULTILINE)
"""All places where the token is printed."""
READY = re.compile(rb"^Sandyard is at (\S+);", re.MULTILINE)
PROGRESS = re.compile(rb"^(engine|platform) +(ready|still starting.*)", re.MULTILINE)


class Background:
    """A background `sandyard up`. Its output goes to a file in its data directory, without the token that it may print."""

    def __init__(self, port: int, *, keep: bool) -> None:
        self.port = port
        self.keep = keep
        self.data_dir = Path(os.environ.get("SANDYARD_DATA_DIR") or get_default_data_dir()).absolute()
        self.log = self.data_dir / "up.log"
        self.token: Secret | None = None
        self.url = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._log_start = 0

    @property
    def is_new(self) -> bool:
        """Whether the platform was never started there, so that it will print its token."""
        return not (self.data_dir / "platform" / "platform.db").exists()

    def start(self, on_progress: Callable[[str], None], *, new_token: bool) -> None:
        """Start and return when it is ready. `new_token` creates a token, because none is known. Raises CommandError with the reason on
        failure."""
        self._launch(new_token)
        try:
            while not self._check_ready(on_progress):
                time.sleep(POLL_SECONDS)
        except BaseException:
            self.stop()
            raise
        finally:
            self._redact_token()

    def _check_ready(self, on_progress: Callable[[str], None]) -> bool:
        assert self._process is not None
        ended = self._process.poll() is not None
        output = self._read_output()
        if found := TOKEN.search(output):
            self.token = Secret(found[1].decode())
        if ready := READY.search(output):
            self.url = ready[1].decode()
            return True
        if ended:
            raise CommandError(
                f"`sandyard up` did not start. Its output:\n{_format_last_lines(output)}\nFull log: {self.log}"
            )
        if progress := PROGRESS.findall(output):
            on_progress(b" ".join(progress[-1]).decode(errors="replace"))
        return False

    def stop(self) -> None:
        """Send SIGTERM and wait until it is gone. Idempotent."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        self._redact_token()

    def _launch(self, new_token: bool) -> None:
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CommandError(f"Cannot use the data directory {self.data_dir}: {error.strerror}.") from None
        self._log_start = os.fstat(log).st_size
        environment = make_python_environment(make_paths_absolute(os.environ, EngineSettings, PlatformSettings))
        environment["SANDYARD_DATA_DIR"] = str(self.data_dir)
        environment.pop("SANDYARD_NEW_ADMIN_TOKEN", None)
        if new_token:
            environment["SANDYARD_NEW_ADMIN_TOKEN"] = "true"  # noqa: S105 - not a secret
        inherited: tuple[int, ...] = ()
        if not self.keep:
            reader, self._pipe = os.pipe()
            environment[lifeline.VARIABLE] = lifeline.format_value(reader, reader)
            inherited = (reader,)
        try:
            self._process = subprocess.Popen(
                make_python_command("sandyard", "up", "--port", str(self.port)),
                env=environment,
                cwd=SAFE_FOLDER,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=inherited,
                start_new_session=True,  # Ctrl-C is handled by the parent
            )
        finally:
            os.close(log)
            for descriptor in inherited:
                os.close(descriptor)

    def _read_output(self) -> bytes:
        with self.log.open("rb") as stream:
            stream.seek(self._log_start)
            return stream.read()

    def _redact_token(self) -> None:
        """Overwrite the token in the log."""
        with self.log.open("r+b") as stream:
            stream.seek(self._log_start)
            for found in PRINTED_TOKEN.finditer(stream.read()):
                stream.seek(self._log_start + found.start(1))
                stream.write(b"*" * len(found[1]))


def _format_last_lines(output: bytes) -> str:
    output = PRINTED_TOKEN.sub(lambda found: found[0].removesuffix(found[1]) + b"***", output)
    lines = [line for line in output.decode(errors="replace").splitlines() if line.strip()]
    return "\n".join(f"  {line}" for line in lines[-LAST_LINES:])
