"""The demo agent: no model, no network, and no install, because its program is a file that is written at its start."""

from __future__ import annotations

import hashlib
import io
import zipfile
from functools import cache
from pathlib import Path

from sandyard.platform.domain.agents import demo
from sandyard.platform.domain.agents.profiles.base import BuiltInProfile
from sandyard.platform.domain.agents.profiles.model import Launch, LaunchRequest

_PACKAGE = "sandyard_demo"
_MAIN = f"import {_PACKAGE}.__main__\n{_PACKAGE}.__main__.main()\n"
_FIXED_DATE = (1980, 1, 1, 0, 0, 0)


@cache
def build_program() -> bytes:
    """Return the demo's modules as one file for `python3`. Reproducible: always the same bytes."""
    sources = {"__main__.py": _MAIN.encode()}
    for path in sorted(Path(demo.__file__).parent.glob("*.py")):
        sources[f"{_PACKAGE}/{path.name}"] = path.read_bytes()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        for name, source in sources.items():
            archive.writestr(zipfile.ZipInfo(name, _FIXED_DATE), source)
    return made.getvalue()


def _make_launch(request: LaunchRequest) -> Launch:
    content = build_program()
    path = f"{request.home}/.sandyard/demo-{hashlib.sha256(content).hexdigest()[:16]}.pyz"
    return Launch(argv=("python3", "-I", "-S", path), files={path: content})


DEMO = BuiltInProfile(
    name="demo",
    title="Demo agent (no model)",
    description="Uses no model and no network. Follows written instructions, one per line, to demonstrate and test the whole workflow.",
    demo=True,
    modes=("work", "ask"),
    unasked_modes=("work",),
    make_launch=_make_launch,
)
