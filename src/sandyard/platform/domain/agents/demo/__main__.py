"""The demo agent's program: `python3 FILE` speaks ACP on its standard input and output."""

# This code runs on old versions of Python.
# ruff: noqa: UP037

import os
import signal
from typing import Any, Callable  # noqa: UP035

from . import files
from .conversation import Conversation, validate_session_id
from .peer import INVALID_PARAMS, INVALID_REQUEST, NOT_FOUND, Peer, RpcError
from .turn import Text, Turn

PROTOCOL = 1
VERSION = "1"
TITLE = "Demo agent (no model)"


class Agent:
    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._client: "dict[str, Any]" = {}
        self._conversations: "dict[str, Conversation]" = {}
        peer.quick.update(
            {
                "initialize": self._initialize,
                "authenticate": lambda params: {},
                "session/new": self._new_session,
                "session/load": lambda params: self._reopen_session(params, replay=True),
                "session/resume": lambda params: self._reopen_session(params, replay=False),
                "session/set_mode": self._set_mode,
                "session/close": self._close,
            }
        )
        peer.slow["session/prompt"] = self._prompt
        peer.notified["session/cancel"] = lambda params: self._get_conversation(params).cancel()

    def _initialize(self, params: "dict[str, Any]") -> "dict[str, Any]":
        capabilities = params.get("clientCapabilities")
        self._client = capabilities if isinstance(capabilities, dict) else {}
        return {
            "protocolVersion": PROTOCOL,
            "agentInfo": {"name": "sandyard-demo", "title": TITLE, "version": VERSION},
            "agentCapabilities": {
                "loadSession": True,
                "promptCapabilities": {"embeddedContext": True},
                "sessionCapabilities": {"resume": {}, "close": {}},
                "_meta": {"sandyard": {"sources": True}},
            },
            "authMethods": [],
        }

    def _new_session(self, params: "dict[str, Any]") -> "dict[str, Any]":
        conversation = Conversation(self._peer, _get_folder(params))
        self._conversations[conversation.name] = conversation
        conversation.keep({"folder": conversation.folder})
        return {"sessionId": conversation.name, "modes": conversation.list_modes()}

    def _reopen_session(self, params: "dict[str, Any]", *, replay: bool) -> "dict[str, Any]":
        name = validate_session_id(params.get("sessionId"))
        existing = self._conversations.get(name)
        if existing is not None and existing.busy:
            raise RpcError(INVALID_REQUEST, "A turn of this session is already running.")
        conversation = Conversation(self._peer, _get_folder(params), name)
        conversation.recall(replay=replay)
        self._conversations[name] = conversation
        return {"modes": conversation.list_modes()}

    def _set_mode(self, params: "dict[str, Any]") -> "dict[str, Any]":
        self._get_conversation(params).change_mode(params.get("modeId"))
        return {}

    def _close(self, params: "dict[str, Any]") -> "dict[str, Any]":
        self._get_conversation(params).cancel()
        del self._conversations[params["sessionId"]]
        return {}

    def _prompt(self, params: "dict[str, Any]") -> "Callable[[], dict[str, Any]]":
        conversation = self._get_conversation(params)
        texts = _parse_texts(params.get("prompt"))
        if conversation.busy:
            raise RpcError(INVALID_REQUEST, "A turn of this session is already running.")
        conversation.busy = True
        conversation.cancelled.clear()

        def work() -> "dict[str, Any]":
            try:
                for text in texts:
                    content = {"type": "text", "text": text.text}
                    update = {"sessionUpdate": "user_message_chunk", "content": content}
                    conversation.keep({"update": update})
                return {"stopReason": Turn(conversation, self._client).run(texts)}
            finally:
                conversation.busy = False

        return work

    def _get_conversation(self, params: "dict[str, Any]") -> Conversation:
        conversation = self._conversations.get(validate_session_id(params.get("sessionId")))
        if conversation is None:
            raise RpcError(NOT_FOUND, "This session is not open: load it first.")
        return conversation


def _get_folder(params: "dict[str, Any]") -> str:
    folder = params.get("cwd")
    if not isinstance(folder, str):
        raise RpcError(INVALID_PARAMS, "`cwd` is required and must be a string.")
    return folder


def _parse_texts(blocks: Any) -> "list[Text]":
    """Return the texts of a prompt, including embedded ones. Only texts that a person wrote may contain instructions."""
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise RpcError(INVALID_PARAMS, "`prompt` must be a list of content blocks.")
    texts: "list[Text]" = []
    for block in blocks:
        resource = block.get("resource")
        found = resource.get("text") if isinstance(resource, dict) else block.get("text")
        if isinstance(found, str):
            meta = block.get("_meta")
            ours = meta.get("sandyard") if isinstance(meta, dict) else None
            ours = ours if isinstance(ours, dict) else {}
            personal = "resource" not in block and ours.get("source") is None
            about = ours.get("about")
            texts.append(Text(found, personal, about == "failure", about == "resume"))
    return texts


def main() -> None:
    peer = Peer()
    Agent(peer)

    def end(number: int, frame: Any) -> None:
        if not peer.frozen.is_set():
            files.end_all()
            os._exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    try:
        peer.serve()
    finally:
        files.end_all()
    os._exit(0)


if __name__ == "__main__":
    main()
