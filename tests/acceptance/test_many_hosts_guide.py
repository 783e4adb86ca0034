"""The trial in docs/many-hosts.md, typed as it is printed, on a machine whose network and processes nobody else sees."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.documents.guides import ROOT, parse
from tests.harness.engine import SCRATCH

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("nsenter") is None, reason="needs root and nsenter"),
]
SECTION = "Try it on one computer"
ISOLATED = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


PREPARATION = ["set -euo pipefail", "ip link set lo up", "mkdir -p /run/netns", "mount -t tmpfs none /run/netns"]
"""The names of network namespaces are in a folder, which this machine should have for itself too."""


def make_script() -> str:
    """Return the shell blocks of the section. Programs are written to the files that the text names, before the next block."""
    tokens = parse(ROOT / "docs/many-hosts.md")
    parts, is_inside, name = [*PREPARATION], False, ""
    for index, token in enumerate(tokens):
        if token.type == "heading_open" and token.tag == "h2":
            is_inside = tokens[index + 1].content == SECTION
        elif is_inside and token.type == "inline":
            name = (re.findall(r"`(lab/\w+\.py)`", token.content) or [""])[-1]
        elif is_inside and token.type == "fence" and token.info == "python":
            assert name, f"the text before this program does not say where to save it: {token.content}"
            parts.append(f"cat >{name} <<'END OF PROGRAM'\n{token.content}END OF PROGRAM")
        elif is_inside and token.type == "fence" and token.info == "sh":
            parts.append(token.content)
    return "\n".join(parts)


def test_the_trial_can_be_typed() -> None:
    checked = subprocess.run(["bash", "-n", "-c", make_script()], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.slow  # copying a template to two hosts takes minutes beside other tests
def test_every_command_of_the_trial_works(tmp_path: Path) -> None:
    folder = Path(SCRATCH) / f"sandyard-guide-{tmp_path.name}-{os.getpid()}"
    folder.mkdir()
    (folder / ".venv").symlink_to(ROOT / ".venv")
    try:
        done = subprocess.run(
            [*ISOLATED, "bash", "-c", make_script()],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
        logs = {path.name: path.read_text()[-3000:] for path in folder.glob("lab/*.log")}
        assert done.returncode == 0, (done.stdout, done.stderr[-3000:], logs)
        assert not (folder / "lab").exists()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert sorted(re.findall(r"^\w+ sandbox (\d)$", done.stdout, re.MULTILINE)) == sorted("012345" * 2), (
        "read.py, twice"
    )
    assert "lab2 is empty." in done.stdout
