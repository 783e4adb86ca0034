"""`sandyard sandbox logs`."""

from __future__ import annotations

from tests.harness.up import Installation, run_json


def test_logs_show_the_output_of_detached_commands(installation: Installation, sandbox: str) -> None:
    command_id = installation.ok("sandbox", "exec", "-d", sandbox, "echo from afar; echo oh >&2").strip()
    assert command_id.startswith("cmd_")
    while run_json(installation, "sandbox", "logs", sandbox, "--command", command_id)["status"] in {
        "starting",
        "running",
    }:
        pass
    result = installation.run("sandbox", "logs", sandbox, "--command", command_id)
    assert (result.stdout, result.stderr) == (b"from afar\n", b"oh\n")
    text = installation.ok("sandbox", "logs", sandbox, "--limit", "1")  # other tests may have written gigabytes
    assert "$ echo from afar; echo oh >&2  (exited 0, " in text
    assert "\nfrom afar\n" in text
    installation.ok("sandbox", "exec", sandbox, "true")
    assert len(run_json(installation, "sandbox", "logs", sandbox, "--limit", "2")["items"]) == 2
