"""One conversation with the demo agent, stored in a file so that it can be loaded again."""

# This code runs on old versions of Python and uses plain os calls.
# ruff: noqa: UP037, PTH103, PTH110, PTH111, PTH112, PTH117, PTH118, PTH120, PTH123, PTH202

import json
import os
import re
import threading
import uuid
from typing import Any

from .instructions import Step
from .peer import INVALID_PARAMS, NOT_FOUND, Peer, RpcError

FOLDER = "~/.sandyard-demo"
LARGEST = 16 << 20
WORK, ASK = "work", "ask"
MODES = [
    {"id": WORK, "name": "Work", "description": "Does what it is told."},
    {"id": ASK, "name": "Ask", "description": "Asks before each change and each command."},
]
_ID = re.compile(r"demo-[0-9a-f]{32}")


class Conversation:
    def __init__(self, peer: Peer, folder: str, name: str = "") -> None:
        if not os.path.isabs(folder) or not os.path.isdir(folder):
            raise RpcError(INVALID_PARAMS, "The working folder does not exist: " + repr(folder[:200]) + ".")
        self.peer = peer
        self.folder = folder
        self.name = name or "demo-" + uuid.uuid4().hex
        self.mode = WORK
        self.decided: "dict[str, bool]" = {}
        self.cancelled = threading.Event()
        self.busy = False
        self.answer = ""
        self.fixes: "list[str]" = []
        self.remaining: "list[Step]" = []
        self._calls = 0

    def list_modes(self) -> "dict[str, Any]":
        return {"currentModeId": self.mode, "availableModes": MODES}

    def change_mode(self, mode: Any) -> None:
        if mode not in (WORK, ASK):
            raise RpcError(INVALID_PARAMS, "Unknown mode. Use work or ask.")
        self.mode = mode
        self.keep({"mode": mode})

    def change_fixes(self, fixes: "list[str]") -> None:
        """Store the instructions to follow after a failure."""
        self.fixes = fixes
        self.keep({"fixes": fixes})

    def change_remaining(self, steps: "list[Step]") -> None:
        """Store the instructions that are left after an interruption."""
        if steps != self.remaining:
            self.remaining = steps
            self.keep({"remaining": [list(step) for step in steps]})

    def cancel(self) -> None:
        self.cancelled.set()
        self.peer.wake()

    def next_call(self) -> str:
        self._calls += 1
        return "call-" + uuid.uuid4().hex[:8] + "-" + str(self._calls)

    def update(self, update: "dict[str, Any]", *, kept: bool = True) -> None:
        self.peer.notify("session/update", {"sessionId": self.name, "update": update})
        if kept:
            self.keep({"update": update})

    def keep(self, entry: "dict[str, Any]") -> None:
        """Append an entry to the file. Errors are ignored: the entry will be missing when the conversation is loaded."""
        path = _get_path(self.name)
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            if not os.path.exists(path) or os.path.getsize(path) < LARGEST:
                with open(path, "ab") as file:
                    file.write(json.dumps(entry).encode("ascii") + b"\n")
        except OSError:
            return

    def recall(self, *, replay: bool) -> None:
        """Restore the state from the file, and repeat its updates to the client if `replay`."""
        try:
            with open(_get_path(self.name), "rb") as file:
                entries = [_parse_entry(line) for line in file]
        except OSError:
            raise RpcError(NOT_FOUND, "There is no session " + self.name + ".") from None
        for entry in entries:
            if entry.get("mode") in (WORK, ASK):
                self.mode = entry["mode"]
            if isinstance(entry.get("answer"), str):
                self.answer = entry["answer"]
            if isinstance(entry.get("fixes"), list):
                self.fixes = [str(fix) for fix in entry["fixes"]]
            if isinstance(entry.get("remaining"), list):
                self.remaining = [Step(*step) for step in entry["remaining"]]
            if replay and isinstance(entry.get("update"), dict):
                self.update(entry["update"], kept=False)


def validate_session_id(name: Any) -> str:
    """Return a valid conversation name. Raises RpcError."""
    if not isinstance(name, str) or not _ID.fullmatch(name):
        raise RpcError(NOT_FOUND, "There is no session " + repr(str(name)[:100]) + ".")
    return name


def _get_path(name: str) -> str:
    return os.path.join(os.path.expanduser(FOLDER), name + ".jsonl")


def _parse_entry(line: bytes) -> "dict[str, Any]":
    try:
        entry = json.loads(line.decode("utf-8"))
    except ValueError:  # the program was ended during a write
        return {}
    return entry if isinstance(entry, dict) else {}
