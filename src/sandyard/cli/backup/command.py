"""`sandyard backup` and `sandyard restore`."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

import click

from sandyard.cli.backup.archive import ArchiveWriter, Manifest
from sandyard.cli.backup.collection import Sources, check_sources, estimate_size, write_backup
from sandyard.cli.backup.progress import ProgressLine
from sandyard.cli.backup.restoration import check_database, check_target, restore, verify
from sandyard.cli.errors import CommandError
from sandyard.cli.output import echo, format_size
from sandyard.cli.service import read_settings_file
from sandyard.cli.up.data_directory import DataDirectory, get_default_data_dir
from sandyard.engine.store.datadir import DataDir
from sandyard.kit.age import Identity, Passphrase, PrivateKey, PublicKey, Recipient, is_encrypted
from sandyard.kit.secret import Secret
from sandyard.platform.settings import PlatformSettings

MIN_PASSPHRASE = 12
MAX_KEY_FILE = 64 * 1024
data_dir_option = click.option(
    "--data-dir",
    envvar="SANDYARD_DATA_DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Data directory of `sandyard up`.",
)
passphrase_option = click.option(
    "--passphrase-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File whose first line is the passphrase.",
)


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@data_dir_option
@click.option(
    "-r",
    "--recipient",
    "recipients",
    multiple=True,
    envvar="SANDYARD_BACKUP_RECIPIENTS",
    help="Encrypt to this public key (age1…). Repeatable.",
)
@passphrase_option
@click.option(
    "--new-key",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Create a key pair in this new file, and encrypt to it.",
)
@click.option(
    "--no-encryption", is_flag=True, help="Do not encrypt the file. Anyone who can read it can use every secret in it."
)
@click.option("--without-database", is_flag=True, help="Leave PostgreSQL out, because it is backed up separately.")
def backup(  # noqa: PLR0917 - options
    file: Path,
    data_dir: Path | None,
    recipients: tuple[str, ...],
    passphrase_file: Path | None,
    new_key: Path | None,
    no_encryption: bool,
    without_database: bool,
) -> None:
    """Back up everything that cannot be created again to FILE. Sandyard can keep running.

    Included: the database, keys, stored secrets, repositories with uncommitted work, output and workflows. Not included:
    snapshots, volumes and sandboxes. FILE is encrypted to public keys or with a passphrase, in the format of the program `age`.
    It appears only when it is complete.
    """
    data = DataDirectory((data_dir or get_default_data_dir()).resolve())
    url = _get_postgresql_url()
    sources = Sources(data, url, dump=url is not None and not without_database)
    check_sources(sources)
    chosen = _choose_recipients(recipients, passphrase_file, new_key, no_encryption=no_encryption)
    progress = ProgressLine("Backing up", estimate_size(data))
    with _private_files(), contextlib.ExitStack() as stack:
        stack.callback(progress.finish)
        archive = ArchiveWriter(file.absolute(), chosen, progress.add)
        stack.callback(archive.abandon)
        manifest = write_backup(sources, archive, progress.add)
        archive.finish()
    encryption = "encrypted" if chosen else "NOT encrypted"
    echo(f"Wrote {file} ({format_size(file.stat().st_size)}, {encryption}).")
    if manifest.database == "none":
        echo("It does not contain the PostgreSQL database: back that up at the same time, or shortly before.", err=True)
    if DataDir(data.engine).id_file.exists():
        echo(
            "It does not contain the engine's records, which are in PostgreSQL, and its files `ca` and `secrets.key`: back them up, too.",
            err=True,
        )


@click.command("restore")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@data_dir_option
@click.option(
    "-i",
    "--identity",
    "identity_files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the secret key (AGE-SECRET-KEY-1…). Repeatable.",
)
@passphrase_option
@click.option("--check", "only_check", is_flag=True, help="Read and check FILE, and write nothing.")
def restore_command(
    file: Path, data_dir: Path | None, identity_files: tuple[Path, ...], passphrase_file: Path | None, only_check: bool
) -> None:
    """Restore a backup into an empty data directory. Everything in FILE is checked before anything is written.

    Start Sandyard afterwards, on this or another machine. The version must be the one that made the backup, or a newer one.

    Restore only backups that you made yourself: whoever wrote FILE controls the platform afterwards, and with PostgreSQL runs SQL with the
    rights of SANDYARD_DATABASE_URL. That FILE can be decrypted with your key does not show who wrote it.
    """
    with _private_files(), file.open("rb") as stream, contextlib.ExitStack() as stack:
        identities = _load_identities(stream, identity_files, passphrase_file)
        if only_check:
            manifest, size = _verify(stream, identities)
            echo(f"{file} is complete. {_describe(manifest)} It needs {format_size(size)}.")
            return
        url = _get_postgresql_url()
        data = DataDirectory((data_dir or get_default_data_dir()).resolve())
        stack.callback(data.release_lock)
        data.acquire_lock(restoring=True)
        check_target(data)
        manifest, size = _verify(stream, identities)
        check_database(manifest, url)
        progress = ProgressLine("Restoring", size)
        stack.callback(progress.finish)
        restore(stream, identities, data, url, size=size, on_bytes=progress.add)
    echo(f"Restored to {data.path}. {_describe(manifest)}")
    _explain_next_steps(manifest)


def _verify(stream: IO[bytes], identities: list[Identity]) -> tuple[Manifest, int]:
    progress = ProgressLine("Checking")
    try:
        return verify(stream, identities, progress.add)
    finally:
        progress.finish()


def _describe(manifest: Manifest) -> str:
    return f"The backup was made at {manifest.created} by Sandyard {manifest.sandyard}."


def _explain_next_steps(manifest: Manifest) -> None:
    echo("Start Sandyard with `sandyard up`.")
    if manifest.engine:
        echo(
            "Not restored: sandboxes, their memory and processes, snapshots, volumes and built templates. Sandboxes will be shown with the "
            "status `error`: `sandyard session provision` continues a session from its last checkpoint in git. Built-in templates "
            "and prepared projects are built again when they are needed. Snapshots in a layer store are still available."
        )
    else:
        echo("Sandboxes of another engine, such as E2B Cloud, are found again if they still exist.")
    if manifest.database == "none":
        echo("Restore the PostgreSQL database before you start Sandyard.")


def _choose_recipients(
    recipients: tuple[str, ...], passphrase_file: Path | None, new_key: Path | None, *, no_encryption: bool
) -> list[Recipient]:
    """Return the recipients, or an empty list for no encryption. Asks for a passphrase on a terminal."""
    methods = [bool(recipients or new_key), passphrase_file is not None, no_encryption]
    if sum(methods) > 1:
        raise CommandError("Choose one: public keys (--recipient, --new-key), --passphrase-file or --no-encryption.")
    if no_encryption:
        return []
    if passphrase_file is not None:
        return [Passphrase(_check_passphrase(_read_passphrase(passphrase_file)))]
    chosen: list[Recipient] = [PublicKey.parse(text) for text in recipients]
    if new_key is not None:
        chosen.append(_create_key(new_key))
    if chosen:
        return chosen
    if not sys.stdin.isatty():
        raise CommandError(
            "Choose how to encrypt the backup: with a public key (--recipient age1…, or --new-key KEYFILE to create one), with "
            "--passphrase-file, or not at all with --no-encryption."
        )
    text = click.prompt("Passphrase for the backup", hide_input=True, confirmation_prompt=True, err=True)
    return [Passphrase(_check_passphrase(Secret(text)))]


def _check_passphrase(passphrase: Secret) -> Secret:
    if len(passphrase.reveal()) < MIN_PASSPHRASE:
        raise CommandError(
            f"The passphrase is too short: use at least {MIN_PASSPHRASE} characters, such as five random words."
        )
    return passphrase


def _create_key(path: Path) -> PublicKey:
    key = PrivateKey.generate()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise CommandError(
            f"{path} exists already. To encrypt to its key, give its public key with --recipient."
        ) from None
    with os.fdopen(descriptor, "w") as file:
        file.write(f"# public key: {key.public_key}\n{key.text.reveal()}\n")
        file.flush()
        os.fsync(file.fileno())
    echo(
        f"Public key: {key.public_key}. Move {path} to another machine: without it, the backup cannot be read.",
        err=True,
    )
    return key.public_key


def _load_identities(stream: IO[bytes], files: tuple[Path, ...], passphrase_file: Path | None) -> list[Identity]:
    start = stream.read(MAX_KEY_FILE)
    if not is_encrypted(start):
        return []
    identities: list[Identity] = []
    for file in files:
        lines = [line.strip() for line in file.read_text(errors="replace")[:MAX_KEY_FILE].splitlines()]
        keys = [PrivateKey.parse(line) for line in lines if line and not line.startswith("#")]
        if not keys:
            raise CommandError(
                f"There is no secret key in {file}. A key file has a line that starts with AGE-SECRET-KEY-1."
            )
        identities += keys
    if passphrase_file is not None:
        identities.append(Passphrase(_read_passphrase(passphrase_file)))
    if identities:
        return identities
    if b"\n-> scrypt " not in start:
        raise CommandError(
            "The backup is encrypted to a public key. Give the file with its secret key: --identity KEYFILE."
        )
    if not sys.stdin.isatty():
        raise CommandError("The backup is encrypted with a passphrase. Give it with --passphrase-file.")
    return [Passphrase(Secret(click.prompt("Passphrase of the backup", hide_input=True, err=True)))]


def _read_passphrase(path: Path) -> Secret:
    with path.open("rb") as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode) and os.fstat(file.fileno()).st_mode & 0o077:
            echo(f"Warning: other users may read {path}. Run `chmod 600` on it.", err=True)
        try:
            return Secret(file.readline(MAX_KEY_FILE).decode().rstrip("\r\n"))
        except UnicodeDecodeError:
            raise CommandError(f"The passphrase in {path} is not valid UTF-8.") from None


def _get_postgresql_url() -> str | None:
    url = PlatformSettings.load({**read_settings_file(), **os.environ}).database_url
    if url is None or url.startswith("postgres"):
        return url
    raise CommandError(
        "SANDYARD_DATABASE_URL names a SQLite database outside of the data directory, which a backup does not support. Move it to "
        "platform/platform.db in the data directory and unset the variable."
    )


@contextlib.contextmanager
def _private_files() -> Iterator[None]:
    """Let only the owner read the files that are created, and clean up on SIGTERM and SIGHUP too."""

    def stop(number: int, _: Any) -> NoReturn:
        sys.exit(128 + number)

    handlers = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    umask = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(umask)
        for number, handler in handlers.items():
            signal.signal(number, handler)
