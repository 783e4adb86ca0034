"""`sandyard sandbox logs`."""

from __future__ import annotations

from tests.integration.cli.real import Yard, read


def test_detached_and_logs(yard: Yard, box: str) -> None:
    number = yard.ok("sandbox", "exec", "-d", box, "echo from afar; echo oh >&2").strip()
    assert number.startswith("cmd_")
    while read(yard, "sandbox", "logs", box, "--command", number)["status"] in {"starting", "running"}:
        pass
    said = yard.run("sandbox", "logs", box, "--command", number)
    assert (said.stdout, said.stderr) == (b"from afar\n", b"oh\n")
    text = yard.ok("sandbox", "logs", box, "--limit", "1")  # others may have written gigabytes
    assert "$ echo from afar; echo oh >&2  (exited 0, " in text
    assert "\nfrom afar\n" in text
    yard.ok("sandbox", "exec", box, "true")
    assert len(read(yard, "sandbox", "logs", box, "--limit", "2")["items"]) == 2
