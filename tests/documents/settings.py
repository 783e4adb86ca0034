"""The reference of settings: every field of the settings classes, with the text below it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from sandyard.engine.settings import EngineSettings
from sandyard.kit.settings import ENV_PREFIX, Settings
from sandyard.kit.telemetry import TelemetrySettings
from sandyard.platform.settings import PlatformSettings
from tests.documents.tables import make_table

COMPUTED = {
    "data_dir": "below `/var/lib/sandyard` for root, otherwise below `~/.local/share/sandyard`",
    "templates_dir": "the same",
    "pool_size": "by the machine's memory",
    "pool_started_size": "by the machine's memory",
    "pool_gvisor_size": "by the machine's memory",
}
"""Defaults that depend on the machine."""

INTRODUCTION = """# Settings

Every setting is an environment variable of the process: of `sandyard up`, which passes them on to the platform and the engine, or of
`sandyard engine`. Some are also options ([the command line](cli.md)), which take precedence. Names end with the unit: `_S` is seconds,
`_MB` is MiB, `_DAYS` is days; other times are in seconds, other sizes in bytes. Lists are separated by commas.
[Operating](../operating.md) explains what to consider.
"""

OTHERS = [
    ("SANDYARD_URL", "what `sandyard login` stored", "Address of the platform that commands use."),
    ("SANDYARD_TOKEN", "what `sandyard login` stored", "Token that commands use."),
    ("SANDYARD_PASSWORD", "a prompt", "Password for `sandyard login --name`."),
    (
        "SANDYARD_ENGINE",
        "embedded",
        "`none`: `sandyard up` starts no engine and uses the E2B endpoint of the variables `E2B_…`.",
    ),
    ("SANDYARD_PLATFORM_USER", "sandyard", "User that `sandyard up` runs the platform as, if root starts it."),
    (
        "SANDYARD_LOCAL_REPOSITORIES",
        "/",
        "Directories that may contain projects' repositories on the machine, if root starts `sandyard up`; `none`: nowhere.",
    ),
    ("NO_COLOR", "none", "If set, commands print no colours."),
]
"""Variables that are read by commands, not by the settings classes."""


@dataclass(frozen=True)
class Setting:
    section: str
    name: str
    variable: str
    default: str
    text: str
    """Empty if the field has no description."""


def list_settings(kind: type[Settings]) -> Iterator[Setting]:
    """Yield the settings of a class, in order, with those of its base classes last."""
    for owner in kind.__mro__:
        if not issubclass(owner, Settings) or owner is Settings:
            continue
        section = "Telemetry" if owner is TelemetrySettings else ""
        for heading, name, text in _read_fields(owner):
            section = heading or section
            variable = kind.variables.get(name, ENV_PREFIX + name.upper())
            if variable is not None:
                yield Setting(section, name, variable, _describe_default(name, kind.model_fields[name]), text)


def _read_fields(owner: type[Settings]) -> Iterator[tuple[str, str, str]]:
    """Yield the section that begins with a field, if any, the field's name, and the string below it."""
    path = Path(inspect.getfile(owner))
    source = path.read_text()
    lines = source.splitlines()
    (body,) = [
        node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == owner.__name__
    ]
    for node, below in zip(body, [*body[1:], None], strict=True):
        if (
            not isinstance(node, ast.AnnAssign)
            or not isinstance(node.target, ast.Name)
            or node.target.id == "variables"
        ):
            continue
        text = ""
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
            text = " ".join(below.value.value.split())
        above = lines[node.lineno - 2].strip()
        yield above.removeprefix("# ") if above.startswith("# ") else "", node.target.id, text


def _describe_default(name: str, field: FieldInfo) -> str:
    if name in COMPUTED:
        return COMPUTED[name]
    value: Any = field.default
    if isinstance(value, Enum):
        value = value.value
    if value is None or value in ("", ()):
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and value >= 1 << 20 and value % (1 << 20) == 0:
        return f"{value} ({value >> 30} GiB)" if value % (1 << 30) == 0 else f"{value} ({value >> 20} MiB)"
    return f"{value:g}" if isinstance(value, float) and value < 1e6 else str(value)


def _render_settings(kind: type[Settings]) -> Iterator[str]:
    section, rows = "", list[tuple[str, str, str]]()
    header = ("Variable", "Default", "Description")
    for setting in list_settings(kind):
        if setting.section != section and rows:
            yield f"\n### {section}\n" + make_table(header, rows)
            rows = []
        section = setting.section
        rows.append((f"`{setting.variable}`", setting.default, setting.text))
    yield f"\n### {section}\n" + make_table(header, rows)


def render() -> str:
    """Return docs/reference/settings.md."""
    others = make_table(("Variable", "Default", "Description"), ((f"`{name}`", *rest) for name, *rest in OTHERS))
    parts = [
        INTRODUCTION,
        "\n## Platform\n",
        *_render_settings(PlatformSettings),
        "\n## Engine\n",
        *_render_settings(EngineSettings),
    ]
    return "".join(parts) + "\n## Commands\n" + others
