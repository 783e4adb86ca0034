"""The parsers of JSON documents, each with valid samples and with the errors that it may raise."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from sandyard.cli.backup.archive import Manifest as BackupManifest
from sandyard.engine.drivers.cluster import codec
from sandyard.engine.drivers.cluster.connections import parse_result
from sandyard.engine.hosts import joining
from sandyard.engine.hosts.ray_cluster import messages as ray
from sandyard.engine.images import documents as images
from sandyard.engine.interpreter.messages import DELIMITER, BadMessageError, parse_message
from sandyard.engine.layers.manifest import Manifest as LayerManifest
from sandyard.engine.layers.manifest import ManifestLayer, ManifestLimits, parse_manifest
from sandyard.engine.layers.service import _parse_identity
from sandyard.kit.errors import SandyardError
from sandyard.platform.domain.agents.acp import wire
from sandyard.platform.domain.agents.acp.client import parse_session_options
from sandyard.platform.domain.agents.acp.transcript import Transcript, split_into_deltas, to_event_part
from sandyard.platform.domain.agents.questions import policy
from sandyard.platform.domain.agents.questions.asks import _parse_options
from sandyard.platform.domain.forge import deliveries, github_errors, github_responses
from sandyard.platform.domain.mcp_servers import probe
from sandyard.platform.domain.models import faults, provider_check
from sandyard.platform.domain.models.apis import ModelRequest
from sandyard.platform.domain.models.model import ModelApi
from sandyard.platform.domain.models.redaction import Redactor
from sandyard.platform.domain.models.request_body import InvalidBodyError, parse_body
from sandyard.platform.domain.models.token_counter import TokenCounter, _find_usages, _parse_counts
from sandyard.platform.domain.preparations import devcontainer
from sandyard.platform.domain.sandboxes.e2b import directory_pages
from sandyard.platform.domain.sandboxes.e2b.relay import CommandEnded
from tests.unit.fuzzing.inputs import encode

SNAPSHOT = "s" + "1" * 19
DIGEST = f"sha256:{'a' * 64}"
DESCRIPTOR = {"digest": DIGEST, "size": 5}
SHOWN = TypeAdapter(Any)


@dataclass(frozen=True, slots=True)
class DocumentParser:
    parse: Callable[[Any], object]
    samples: tuple[Any, ...]
    errors: tuple[type[Exception], ...] = ()


# agents ---------------------------------------------------------------------------------------------------------------


def _receive(document: Any) -> None:
    """Handle a message of an agent, and check that what is stored of it can be shown."""
    message = wire.parse_line(encode(document))
    if isinstance(message, wire.Response):
        SHOWN.dump_json(parse_session_options(message.result))
    if not isinstance(message, wire.Request | wire.Notification):
        return
    update, call = message.params.get("update"), message.params.get("toolCall")
    if isinstance(update, dict):
        transcript = Transcript()
        state = transcript.apply(update)
        transcript.apply(update)
        for entry in transcript.take_changes():
            SHOWN.dump_json(entry.part)
            SHOWN.dump_json(to_event_part(entry.part))
            split_into_deltas(entry.delta)
        if state is not None:
            SHOWN.dump_json([state.options, state.usage])
    if isinstance(call, dict):
        policy.list_searched_texts(call)
        SHOWN.dump_json(_parse_options(message.params.get("options")))


def _update(**fields: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": fields}}


CALL = {
    "toolCallId": "c",
    "title": "t",
    "kind": "edit",
    "status": "pending",
    "rawInput": {"call_id": "1", "turn_id": "2", "command": ["bash", "-lc", "ls"]},
    "rawOutput": {"aggregated_output": "x"},
    "locations": [{"path": "a", "line": 1}],
    "content": [
        {"type": "content", "content": {"type": "text", "text": "x"}},
        {"type": "diff", "path": "a", "oldText": "a", "newText": "b"},
        {"type": "terminal", "terminalId": "t"},
    ],
}
OPTIONS = [{"optionId": "o", "name": "Allow", "kind": "allow_once"}]
MESSAGES = (
    _update(sessionUpdate="agent_message_chunk", messageId="m", content={"type": "text", "text": "x"}),
    _update(sessionUpdate="agent_thought_chunk", content={"type": "resource_link", "uri": "u", "name": "n"}),
    _update(sessionUpdate="agent_message_chunk", content={"type": "image", "mimeType": "i", "data": "AAAA"}),
    _update(sessionUpdate="tool_call", **CALL),
    _update(sessionUpdate="plan", entries=[{"content": "c", "priority": "high", "status": "pending"}]),
    _update(sessionUpdate="current_mode_update", currentModeId="m"),
    _update(sessionUpdate="config_option_update", configOptions=[{"id": "a"}]),
    _update(sessionUpdate="available_commands_update", availableCommands=[{"name": "n", "description": "d"}]),
    _update(sessionUpdate="usage_update", used=1, size=2, cost={"amount": 1.5, "currency": "USD"}),
    {"id": 1, "method": "session/request_permission", "params": {"toolCall": CALL, "options": OPTIONS}},
    {
        "id": 1,
        "result": {"modes": {"availableModes": [{"id": "a", "name": "b"}], "currentModeId": "a"}, "configOptions": []},
    },
    {"id": 1, "error": {"code": 1, "message": "m", "data": {"details": "d"}}},
)

# the forge ------------------------------------------------------------------------------------------------------------

REPOSITORY = {"full_name": "acme/site", "html_url": "https://github.com/acme/site", "url": "https://api.github.com/x"}
PULL = {
    "number": 1,
    "title": "t",
    "state": "open",
    "merged_at": None,
    "html_url": "https://github.com/acme/site/pull/1",
    "draft": False,
    "head": {"ref": "b", "sha": "a" * 40},
    "base": {"ref": "main"},
    "mergeable": True,
    "labels": [{"name": "x"}],
    "closed_at": "2026-01-01T00:00:00Z",
    "updated_at": "2026-01-01T00:00:00Z",
    "body": "b",
    "user": {"login": "ada"},
}
REVIEW = {"id": 1, "state": "APPROVED", "body": "b", "user": {"login": "a"}, "submitted_at": "2026-01-01T00:00:00Z"}
COMMENT = {
    "id": 1,
    "body": "b",
    "created_at": "2026-01-01T00:00:00Z",
    "path": "a",
    "line": 1,
    "author_association": "MEMBER",
}
RUN = {
    "id": 1,
    "name": "n",
    "status": "completed",
    "conclusion": "failure",
    "html_url": "https://x/",
    "completed_at": "2026-01-01T00:00:00Z",
    "output": {"title": "t", "summary": "s"},
    "head_repository": {"full_name": "acme/site"},
    "run_attempt": 2,
    "display_title": "d",
    "state": "failure",
    "context": "c",
    "target_url": "https://x/",
    "description": "d",
    "updated_at": "2026-01-01T00:00:00Z",
}
ISSUE = {"number": 1, "title": "t", "body": "b", "state": "open", "user": {"login": "a"}, "html_url": "https://x/"}
DELIVERIES = {
    "push": {"ref": "refs/heads/main"},
    "pull_request": {"pull_request": PULL},
    "issues": {"action": "labeled", "issue": ISSUE, "label": {"name": "agent"}},
    "issue_comment": {"issue": {**ISSUE, "pull_request": {}}},
    "check_run": {"check_run": {"head_sha": "a" * 40, "pull_requests": [{"number": 1}]}},
    "status": {"sha": "a" * 40},
}


def _receive_delivery(event: str, document: Any) -> None:
    payload = deliveries.parse_payload("application/json", encode(document))
    deliveries.parse_sender(payload)
    subject = deliveries.parse_subject(event, payload)
    for name in () if subject is None else (*subject.branches, *subject.commits):
        name.encode()  # can be stored
    if subject is not None and subject.issue is not None:
        (subject.issue.title + subject.issue.body + subject.issue.author + (subject.issue.url or "")).encode()


def _read_forge(document: Any) -> None:
    items = github_responses.as_objects(document)
    for parse in (
        *(github_responses.parse_check_runs, github_responses.parse_statuses, github_responses.parse_review_remarks),
        *(github_responses.parse_comment_remarks, github_responses.parse_line_remarks),
    ):
        parse(items)
    github_responses.parse_workflow_runs(items, "acme/site")
    github_responses.summarize_reviews(items)
    github_errors.extract_message(encode({"message": "m", "errors": document}))


# models ---------------------------------------------------------------------------------------------------------------


def _count(document: Any) -> None:
    data = encode(document)
    for kind in ModelApi:
        counter = TokenCounter(kind, "application/json")
        counter._parse(b'{"usage": {}}')
        counter._parse(data)
        counter.get_result()
    for usage in _find_usages(document):
        _parse_counts(usage)


def _forward(document: Any) -> None:
    paths = ("/v1/chat/completions", "/v1/responses", "/v1beta/models/gemini:generateContent")
    for kind, path in zip(ModelApi, itertools.cycle(paths), strict=False):
        with contextlib.suppress(InvalidBodyError):
            parse_body(encode(document), ModelRequest(path, "", counted=True), kind)


USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}
BODY = {
    "model": "m",
    "stream": True,
    "stream_options": {"include_usage": False},
    "service_tier": "auto",
    "tools": [{"type": "function", "name": "n"}],
    "messages": [
        {
            "role": "user",
            "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "https://x/"}}],
        }
    ],
    "contents": [{"role": "user", "parts": [{"text": "x"}]}],
    "input": "x",
}

# images, layers and hosts ---------------------------------------------------------------------------------------------

LAYER = ManifestLayer(digest=DIGEST, diff_id=DIGEST, size=1, bytes=1, entries=1, kind="template", name="x")
LAYER_MANIFEST = LayerManifest(
    id=SNAPSHOT,
    name="a",
    tag="default",
    created_at=1.0,
    sandbox_id="s",
    template_id="t",
    env={"A": "b"},
    user="user",
    workdir=None,
    limits=ManifestLimits(memory_mb=1, cpu_count=1, pids=1, disk_mb=1),
    start=None,
    isolation=None,
    containers=None,
    layers=(LAYER,),
).model_dump(mode="json")
STATS = {
    "cpu_seconds": 1.0,
    "cpu_count": 1,
    "memory_used": 1,
    "memory_cache": 1,
    "memory_total": 1,
    "disk_used": 1,
    "disk_total": 1,
}
ROOM = {
    "memory_total": 1,
    "memory_available": 1,
    "disk_total": 1,
    "disk_free": None,
    "cpu_count": 1,
    "load": 0.5,
    "full": "x",
}
STARTED = {"handle": {"id": "s", "driver": "machine", "data": {"layers": ["a"], "limits": {"pids": 1}}}, "life": 1}
CAPABILITIES = {
    "freeze": True,
    "suspend": ["gvisor"],
    "memory_fork": [],
    "live_copy": "x",
    "limits": ["cpu"],
    "egress": True,
    "isolation": ["namespace"],
    "containers": [],
    "missing": {"a": "b"},
}
HEADER, PARENT = {"msg_type": "stream"}, {"msg_id": "x"}


def _receive_kernel(document: Any) -> None:
    parse_message([DELIMITER, b"signature", *map(encode, document if isinstance(document, list) else [document])])


def _read_index(document: Any) -> None:
    parsed = images.parse_json(encode(document), "x")
    for read in (
        lambda: images.select_manifest(parsed, "a", "x"),
        lambda: images.select_manifest(parsed, None, "x"),
        lambda: images.choose_manifest(parsed, "x") if images.is_index(parsed) else None,
    ):
        try:
            read()
        except SandyardError:
            continue


def _read_page(document: Any) -> None:
    for entry in directory_pages.decode(b'{"next": null, "entries": ' + encode(document) + b"}", 0, 10).entries:
        SHOWN.dump_json(entry)


def _decode(decode: Callable[[Any], object]) -> Callable[[Any], object]:
    """Return a decoder of what a host sends as a result."""
    return lambda document: decode(parse_result(encode({"ok": document})))


REFUSED = (SandyardError, *codec.MALFORMED)
"""What reading a message of a host may raise: `cluster.link` handles these."""

DOCUMENTS: Mapping[str, DocumentParser] = {
    "message of an agent": DocumentParser(_receive, MESSAGES),
    **{
        f"delivery of {event}": DocumentParser(
            lambda document, event=event: _receive_delivery(event, document),
            ({**payload, "repository": REPOSITORY},),
            (SandyardError,),
        )
        for event, payload in DELIVERIES.items()
    },
    "pull request": DocumentParser(
        lambda document: github_responses.parse_pull(
            github_responses.as_object(document), "https://github.com/acme/site"
        ),
        (PULL,),
        (SandyardError,),
    ),
    "list of the forge": DocumentParser(_read_forge, ([RUN, REVIEW, COMMENT],)),
    "permissions": DocumentParser(
        lambda document: github_responses.parse_permissions(github_responses.as_object(document), None),
        ({"permissions": {"push": True}},),
    ),
    "usage": DocumentParser(
        _count,
        (
            {"usage": USAGE},
            {"type": "message_delta", "message": {"usage": {"input_tokens": 1}}},
            [{"usageMetadata": {"promptTokenCount": 1}}],
        ),
    ),
    "request to a model": DocumentParser(_forward, (BODY,)),
    "models of a provider": DocumentParser(
        lambda document: provider_check.parse_models(encode(document)),
        ({"data": [{"id": "a"}]}, {"models": [{"name": "models/a"}]}),
    ),
    "error of a provider": DocumentParser(
        lambda document: faults.extract_message(encode(document).decode(), Redactor()),
        ({"error": {"message": "m"}}, [{"error": "x"}]),
    ),
    "message of an MCP server": DocumentParser(
        lambda document: probe.parse_message(encode(document), 1), ({"id": 1, "result": {}},)
    ),
    "devcontainer": DocumentParser(
        lambda document: devcontainer.parse("x", encode(document).decode(), "base"),
        (
            {
                "image": "x",
                "features": {"a": {}},
                "postCreateCommand": {"a": ["b", "c"]},
                "containerEnv": {"A": "b"},
                "mounts": [],
            },
        ),
    ),
    "files": DocumentParser(
        _read_page,
        (
            [
                {
                    "name": "a",
                    "path": "/a",
                    "type": "FILE_TYPE_FILE",
                    "size": "1",
                    "mode": 420,
                    "owner": "o",
                    "modifiedTime": "2026-01-01T00:00:00Z",
                }
            ],
        ),
        (SandyardError,),
    ),
    "result of a command": DocumentParser(
        lambda document: CommandEnded.parse(encode(document).decode()),
        ({"reason": "exited", "code": 1, "signal": None, "ms": 2, "out": 3, "err": 4},),
    ),
    "index of images": DocumentParser(
        _read_index,
        (
            {
                "manifests": [
                    {
                        **DESCRIPTOR,
                        "platform": {"os": "linux", "architecture": "amd64"},
                        "annotations": {"org.opencontainers.image.ref.name": "a"},
                    }
                ]
            },
        ),
        (SandyardError,),
    ),
    "manifest of an image": DocumentParser(
        lambda document: images.parse_manifest(encode(document), "x"),
        ({"schemaVersion": 2, "config": DESCRIPTOR, "layers": [DESCRIPTOR]},),
        (SandyardError,),
    ),
    "configuration of an image": DocumentParser(
        lambda document: images.parse_config(encode(document), "x", 1),
        (
            {
                "os": "linux",
                "architecture": images.ARCHITECTURE,
                "rootfs": {"diff_ids": [DIGEST]},
                "config": {"Env": ["A=b"], "User": "u", "WorkingDir": "/"},
            },
        ),
        (SandyardError,),
    ),
    "manifest of a snapshot": DocumentParser(
        lambda document: parse_manifest(encode(document), SNAPSHOT), (LAYER_MANIFEST,), (SandyardError,)
    ),
    "identity of a store": DocumentParser(lambda document: _parse_identity(encode(document)), ({"id": "a"},)),
    "manifest of a backup": DocumentParser(
        lambda document: BackupManifest.decode(encode(document)),
        (
            {
                "created": "x",
                "sandyard": "1",
                "database": "sqlite",
                "engine": True,
                "format": "sandyard-backup",
                "version": 1,
            },
        ),
        (SandyardError,),
    ),
    "stats of a host": DocumentParser(_decode(codec.decode_stats), (STATS,), REFUSED),
    "room of a host": DocumentParser(_decode(codec.decode_room), (ROOM,), REFUSED),
    "capabilities of a host": DocumentParser(_decode(codec.decode_capabilities), (CAPABILITIES,), REFUSED),
    "handle of a host": DocumentParser(_decode(lambda plain: codec.decode_started(plain, "s")), (STARTED,), REFUSED),
    "response to a host": DocumentParser(
        lambda document: joining._parse_response(document, b""),
        ({"id": "h", "certificate": "c", "expiresAt": 1.0},),
        (SandyardError,),
    ),
    "machines of Ray": DocumentParser(
        lambda document: ray.parse_machines(ray.parse(ray.encode({"m": document})).get("m")),
        ([{"id": "a", "name": "b", "address": "192.0.2.1"}],),
        (SandyardError,),
    ),
    "message of a kernel": DocumentParser(_receive_kernel, ([HEADER, PARENT, {}, {"text": "x"}],), (BadMessageError,)),
}
"""By what they parse."""
