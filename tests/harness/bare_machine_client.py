"""Start Sandyard on a bare machine, and run commands in its sandboxes."""

from __future__ import annotations

import re

from tests.harness.bare_machine import BareMachine
from tests.harness.processes import Running

START_SECONDS = 180
READ_PAGE = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Accept": "text/html"})
print(urllib.request.urlopen(request).read().decode())
"""


def wait_until_ready(machine: BareMachine, up: Running) -> dict[str, str]:
    """Wait for the start, and return the variables that log the command line in."""
    url = up.wait_for_line(r"^Sandyard is at (http://\S+);", seconds=START_SECONDS)[1]
    token = up.wait_for_line(r"^admin token: (sy_\S+)$")[1]
    up.wait_for_line("^E2B clients: ")
    assert "<title>Sandyard" in machine.run(["python3", "-c", READ_PAGE, url])
    return {"SANDYARD_URL": url, "SANDYARD_TOKEN": token}


def run_in_sandbox(machine: BareMachine, user: str, login: dict[str, str], command: str) -> str:
    """Run a command in a new sandbox."""
    created = machine.run(["sandyard", "sandbox", "create"], user=user, **login)
    (sandbox,) = re.findall(r'"id": "(sbx_\w+)"', created)
    try:
        return machine.run(["sandyard", "sandbox", "exec", sandbox, "--", "sh", "-c", command], user=user, **login)
    finally:
        machine.run(["sandyard", "sandbox", "kill", sandbox], user=user, **login)
