"""The package archives of this machine's own Debian or Ubuntu, so that a template is built from the same mirrors.

Only the distribution's own archives of the running release are used: a vendor's repository on the machine does not
change the template.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from sandyard.kit.errors import UnsupportedError

COMPONENTS = ("main", "universe")
ARCHIVE_KEYRINGS = ("debian-archive", "ubuntu-archive")
KEPT_OPTIONS = ("signed-by", "trusted", "check-valid-until")
_ONE_LINE = re.compile(r"^deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s*(?P<components>.*)$")


@dataclass(frozen=True, slots=True)
class Release:
    """The contents of /etc/os-release."""

    id: str
    codename: str
    name: str

    @property
    def suites(self) -> tuple[str, ...]:
        return (self.codename, f"{self.codename}-updates", f"{self.codename}-security")


@dataclass(frozen=True, slots=True)
class Source:
    """One archive: a stanza of a `.sources` file."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    options: tuple[tuple[str, str], ...] = ()

    @property
    def keyring(self) -> str:
        return dict(self.options).get("signed-by", "")

    def format_stanza(self) -> str:
        """Return the archive as a stanza of a `.sources` file."""
        lines = [
            "Types: deb",
            f"URIs: {self.uri}",
            f"Suites: {' '.join(self.suites)}",
            f"Components: {' '.join(self.components)}",
        ]
        for key, value in self.options:  # a key inside the stanza starts on its own line
            lines.append(f"{key.title()}:\n {value}" if "\n" in value else f"{key.title()}: {value}")
        return "\n".join(lines) + "\n"


def read_release(root: Path = Path("/")) -> Release:
    """Read the machine's release. Raises UnsupportedError if it is neither Debian nor Ubuntu."""
    fields = read_os_release(root)
    codename = fields.get("VERSION_CODENAME", "")
    if fields.get("ID") not in {"debian", "ubuntu"} or not codename:
        name = fields.get("PRETTY_NAME", "an unknown system")
        raise UnsupportedError(
            f"Template base requires a Debian or Ubuntu machine, because it is built from its archives; this is {name}."
        )
    return Release(fields["ID"], codename, fields.get("PRETTY_NAME", codename))


def read_os_release(root: Path = Path("/")) -> dict[str, str]:
    """Return the fields of /etc/os-release, or none if it cannot be read."""
    try:
        text = (root / "etc/os-release").read_text()
    except OSError:
        return {}
    return dict(re.findall(r'^([A-Z_]+)="?([^"\n]*)"?$', text, re.MULTILINE))


def read_sources(release: Release, root: Path = Path("/")) -> list[Source]:
    """Return the distribution's archives that apt on this machine uses for this release. Raises UnsupportedError if
    there are none."""
    apt = root / "etc/apt"
    all_sources: list[Source] = []
    for path in [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]:
        if path.suffix in {".list", ".sources"} and path.is_file():
            all_sources += (
                _parse_deb822(path.read_text()) if path.suffix == ".sources" else _parse_one_line(path.read_text())
            )
    matching = [
        replace(source, suites=suites, components=components)
        for source in all_sources
        if (suites := tuple(suite for suite in source.suites if suite in release.suites))
        and (components := tuple(component for component in source.components if component in COMPONENTS))
    ]
    # a vendor's repository has its own key; such sources are used only if there are no others (a company's own signed
    # mirror)
    official = [
        source for source in matching if not source.keyring or Path(source.keyring).name.startswith(ARCHIVE_KEYRINGS)
    ]
    chosen = official or matching
    if not any(release.codename in source.suites for source in chosen):
        raise UnsupportedError(
            f"apt on this machine has no source for {release.codename}, which is needed to build a template. Add one to /etc/apt."
        )
    return chosen


def strip_credentials(source: Source) -> Source:
    """Return the archive without `user:password@`, as it may be written into a template."""
    parts = urlsplit(source.uri)
    if "@" not in parts.netloc:
        return source
    return replace(source, uri=urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])))


def _parse_one_line(text: str) -> Iterator[Source]:
    for line in text.splitlines():
        if match := _ONE_LINE.match(line.partition("#")[0].strip()):
            pairs = (option.partition("=") for option in (match["options"] or "").split())
            yield Source(
                match["uri"],
                (match["suite"],),
                tuple(match["components"].split()),
                _filter_options((k, v) for k, _, v in pairs),
            )


def _parse_deb822(text: str) -> Iterator[Source]:
    text = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for block in re.split(r"\n\s*\n", text):
        fields = {
            key.lower(): value.strip()
            for key, value in re.findall(r"^([\w-]+):(.*(?:\n[ \t].*)*)", block, re.MULTILINE)
        }
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in {"no", "false"}:
            continue
        for uri in fields.get("uris", "").split():
            suites, components = fields.get("suites", "").split(), fields.get("components", "").split()
            yield Source(uri, tuple(suites), tuple(components), _filter_options(fields.items()))


def _filter_options(options: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((key.lower(), value) for key, value in options if key.lower() in KEPT_OPTIONS))
