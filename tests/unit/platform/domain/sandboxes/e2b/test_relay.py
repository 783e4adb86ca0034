"""The lines between the platform and the relay."""

from __future__ import annotations

import ast
import base64
from pathlib import Path

import pytest

from sandyard.platform.domain.sandboxes.e2b import CommandSpec, Ended, EndReason, relay
from sandyard.platform.domain.sandboxes.e2b.relay import Frame

GUEST = Path(relay.__file__).with_name("guest_relay.py")


@pytest.mark.parametrize("line", ["", ":", "noise", ":z 1", ":1", " :1 0 AAAA", "::1", ":startled"])
def test_noise_is_no_frame_or_an_empty_one(line: str) -> None:
    frame = Frame.parse(line)
    assert frame is None or frame.rest == ""


def test_frames() -> None:
    body = base64.b64encode(b"\x00\xff\n").decode()
    frame = Frame.parse(f":2 4711 {body}")
    assert frame is not None
    assert (frame.kind, frame.chunk) == ("2", (4711, b"\x00\xff\n"))
    refusal = Frame.parse(f":f cwd {base64.b64encode('ä b'.encode()).decode()}")
    assert refusal is not None
    assert refusal.refusal == ("cwd", "ä b")


def test_how_it_ended() -> None:
    text = '{"reason":"exited","code":3,"signal":null,"ms":1500,"out":10,"out_kept":5,"err":0,"err_kept":0}'
    assert Ended.parse(text) == Ended(EndReason.EXITED, 3, None, 1.5, 10, 0)
    assert Ended.parse('{"reason":"not_started"}') == Ended(EndReason.NOT_STARTED)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "7", '{"reason":"won"}', '{"code":0}', '{"reason":"exited","code":"zero"}']
)
def test_a_result_that_somebody_tampered_with_is_none(text: str) -> None:
    assert Ended.parse(text) == Ended(EndReason.LOST)


def test_a_specification_keeps_every_character() -> None:
    spec = CommandSpec("cmd_1", "a\n'b' 🙂", cwd="/x y", envs={"A": "1=2", "B": ""}, timeout_s=1.5)
    assert spec.encode().decode().split("\0") == ["cmd_1", "a\n'b' 🙂", "/x y", "1.5", "A=1=2", "B="]


def test_the_guest_program_runs_on_old_pythons_and_imports_little() -> None:
    tree = ast.parse(GUEST.read_text(), feature_version=(3, 6))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert imported <= {"_signal", "binascii", "errno", "fcntl", "os", "select", "signal", "sys", "time"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
