"""A model server that follows a script, in the formats of the APIs of OpenAI, Anthropic and Google."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.models.anthropic import Messages
from tests.models.gemini import GenerateContent
from tests.models.openai import Chat, Responses
from tests.models.requests import Answer, Api, Call, ModelRequest
from tests.models.steps import Act, Cut, Fail, Hang, Say, Step, Usage
from tests.models.tools import NoSuchToolError, make_example, make_tool_call
from tests.models.wire import Reply, read_call

MODELS = ("gpt-5.5", "claude-sonnet-5-5", "gemini-3.1-pro-preview", "scripted")
UNSCRIPTED_USAGE = Usage(input=10, output=3)
"""Usage of an answer outside of a conversation, such as a title."""


@dataclass
class Conversation:
    """A script and its progress. `about`: the phrase by which its requests are recognized. `plain`: requests without tools are also
    part of it. `done`: the steps that are used up. `repeated`: how often the current one was used."""

    about: str
    steps: list[Step]
    plain: bool = False
    done: int = 0
    repeated: int = 0
    calls: list[Call] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return self.done >= len(self.steps)

    def next(self) -> Step:
        """Return the step for the next answer and count it. After the end of the script, every answer says that it has ended."""
        if self.is_over:
            return Say("The script has ended.")
        step = self.steps[self.done]
        times = step.times if isinstance(step, Fail | Cut) else 1
        self.repeated += 1
        if times is not None and self.repeated >= times:
            self.done, self.repeated = self.done + 1, 0
        return step


class ModelServer:
    """A server on loopback, in its own thread: `with ModelServer() as models`.

    A conversation is recognized by a phrase in the user's messages: `models.script("the login", [Shell("make test"), Say("Done.")])`
    answers while `the login` is the last such phrase that was sent. Requests without tools (titles, summaries) are answered without
    the script. `keys`: the accepted API keys; None: all."""

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0, keys: Sequence[str] | None = None) -> None:
        self.host = host
        self.port = port
        self.keys = keys
        self.calls: list[Call] = []
        self.conversations: list[Conversation] = []
        self.refused: list[str] = []
        """Messages about steps that no offered tool could do. Look here if a script had no effect."""
        self.on_request: Callable[[Call], None] = lambda call: None
        """Called after each request, in the thread of the server."""
        self._changed = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopping: asyncio.Event | None = None

    @property
    def url(self) -> str:
        """Without the path of an API."""
        return f"http://{self.host}:{self.port}"

    def script(self, about: str, steps: Sequence[Step], *, plain: bool = False) -> Conversation:
        conversation = Conversation(about, list(steps), plain)
        self.conversations.append(conversation)
        return conversation

    def list_requests(self, about: str | None = None) -> list[Call]:
        """Return the requests for answers, of one conversation or of all."""
        with self._changed:
            return [call for call in self.calls if call.request and about in (None, call.conversation)]

    def wait_for(self, condition: Callable[[ModelServer], Any], timeout_s: float = 60) -> Any:
        """Wait until the condition returns something true, and return that. It is checked after every request."""
        with self._changed:
            result = self._changed.wait_for(lambda: condition(self), timeout_s)
        if not result:
            requests = [f"{call.method} {call.path} {call.conversation} {call.status}" for call in self.calls]
            raise AssertionError(
                f"the condition was not met within {timeout_s:.0f} s; {len(requests)} requests: {requests[-20:]}; {self.refused}"
            )
        return result

    # start and stop

    def __enter__(self) -> ModelServer:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), name="models", daemon=True)
        self._thread.start()
        if not ready.wait(30):
            raise RuntimeError("the model server did not start")
        return self

    def __exit__(self, *about: object) -> None:
        assert self._loop
        assert self._stopping
        assert self._thread
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(30)

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        connections: set[asyncio.Task[None]] = set()

        async def track_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task
            connections.add(task)
            try:
                await self._serve_connection(reader, writer)
            finally:
                connections.discard(task)
                writer.close()

        server = await asyncio.start_server(track_connection, self.host, self.port, limit=1 << 26)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._stopping.wait()
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while call := await read_call(reader):
                with self._changed:
                    self.calls.append(call)
                answering = asyncio.create_task(self._answer(call, Reply(writer, call)))
                leaving = asyncio.create_task(_wait_for_disconnect(reader, writer))
                await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
                # the answer may also fail because the caller has just disconnected
                call.disconnected = not answering.done() or isinstance(answering.exception(), ConnectionError)
                for task in (answering, leaving):
                    task.cancel()
                outcome, _ = await asyncio.gather(answering, leaving, return_exceptions=True)
                with self._changed:
                    self._changed.notify_all()
                self.on_request(call)
                if isinstance(outcome, BaseException):
                    return

    # answers

    async def _answer(self, call: Call, reply: Reply) -> None:
        api = _find_api(call)
        call.api = api.name if api else None
        if direct := self._answer_without_model(call, api):
            await reply.send(*direct)
            return
        assert api
        try:
            call.request = request = api.parse_request(call)
        except (KeyError, TypeError, AttributeError) as error:
            await reply.send(400, api.make_error(400, f"The request does not have the format of this API: {error!r}"))
            return
        conversation = self._find_conversation(request)
        if conversation is None:
            text = json.dumps(make_example(request.schema)) if request.schema else "Scripted work"
            await _send_answer(reply, api, request, Answer(text, None, UNSCRIPTED_USAGE), 0)
            return
        with self._changed:
            call.conversation = conversation.about
            conversation.calls.append(call)
            step = conversation.next()
            self._changed.notify_all()
        await self._play(step, reply, api, request)

    def _answer_without_model(self, call: Call, api: Api | None) -> tuple[int, dict[str, Any]] | None:
        """Return the status and body of an answer that needs no model."""
        if self.keys is not None and call.key not in self.keys:
            return 401, (api or Chat()).make_error(401, "The API key is not valid.")
        if models := _list_models(call):
            return 200, models
        if api is None or call.method != "POST":
            return 404, Chat().make_error(404, f"There is no {call.method} {call.path} here.")
        if call.path.endswith(("count_tokens", ":countTokens")):
            return 200, {"input_tokens": 100} if api.name == "anthropic" else {"totalTokens": 100}
        return None

    async def _play(self, step: Step, reply: Reply, api: Api, request: ModelRequest) -> None:
        if isinstance(step, Fail):
            after = {} if step.retry_after_s is None else {"retry-after": str(step.retry_after_s)}
            await asyncio.sleep(step.pause_s)
            await reply.send(step.status, api.make_error(step.status, step.message), **after)
        elif isinstance(step, Cut):
            frames = list(api.make_frames(request, Answer(step.text, None, step.usage)))
            await reply.start_stream()
            for frame in frames[: max(2, len(frames) // 2)]:
                await reply.send_chunk(frame)
                await asyncio.sleep(step.pause_s)
            reply.abort()
        elif isinstance(step, Hang):
            if step.text is not None and request.stream:
                frames = list(api.make_frames(request, Answer(step.text, None, step.usage)))
                await reply.start_stream()
                for frame in frames[: 3 + len(step.text.split())]:
                    await reply.send_chunk(frame)
            await asyncio.Event().wait()
        elif isinstance(step, Act):
            try:
                call = make_tool_call(step, request.tools)
            except NoSuchToolError as error:
                self.refused.append(str(error))
                await _send_answer(
                    reply, api, request, Answer(f"I cannot do this: {error}", None, step.usage), step.pause_s
                )
            else:
                await _send_answer(reply, api, request, Answer(step.say, call, step.usage), step.pause_s)
        elif isinstance(step, Say):
            await _send_answer(reply, api, request, Answer(step.text, None, step.usage), step.pause_s)
        else:
            raise TypeError(f"unknown step: {step!r}")

    def _find_conversation(self, request: ModelRequest) -> Conversation | None:
        for text in reversed(request.texts):
            for conversation in reversed(self.conversations):
                if conversation.about in text and (request.tools or conversation.plain):
                    return conversation
        return None


async def _send_answer(reply: Reply, api: Api, request: ModelRequest, answer: Answer, pause_s: float) -> None:
    if not request.stream:
        await asyncio.sleep(pause_s)
        await reply.send(200, api.make_response(request, answer))
        return
    await reply.start_stream()
    for frame in api.make_frames(request, answer):
        await reply.send_chunk(frame)
        if pause_s:
            await asyncio.sleep(pause_s)
    await reply.end_stream()


async def _wait_for_disconnect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Return when the caller has disconnected. No client sends a second request before the answer to the first."""
    while not reader.at_eof() and not writer.transport.is_closing():
        await asyncio.sleep(0.02)


def _find_api(call: Call) -> Api | None:
    path = call.path
    if path.endswith("/chat/completions"):
        return Chat()
    if path.endswith("/responses"):
        return Responses()
    if path.endswith(("/v1/messages", "/v1/messages/count_tokens")):
        return Messages()
    if path.endswith((":generateContent", ":streamGenerateContent", ":countTokens")):
        return GenerateContent()
    return None


def _list_models(call: Call) -> dict[str, Any] | None:
    """Return the list of models, if the request is for it."""
    if call.method != "GET" or not call.path.endswith("/models"):
        return None
    if "/v1beta/" in call.path:
        verbs = ["generateContent", "streamGenerateContent", "countTokens"]
        models = [
            {"name": f"models/{name}", "displayName": name, "supportedGenerationMethods": verbs} for name in MODELS
        ]
        return {"models": models}
    if "anthropic-version" in call.headers:
        when = "2026-01-01T00:00:00Z"
        data = [{"type": "model", "id": name, "display_name": name, "created_at": when} for name in MODELS]
        return {"data": data, "has_more": False, "first_id": MODELS[0], "last_id": MODELS[-1]}
    return {
        "object": "list",
        "data": [{"id": name, "object": "model", "created": 0, "owned_by": "tests"} for name in MODELS],
    }
