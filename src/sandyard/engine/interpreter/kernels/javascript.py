"""The JavaScript and TypeScript kernels: a Node process evaluates the code, and this process speaks the Jupyter
protocol."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from ipykernel.kernelbase import Kernel

from sandyard.engine.interpreter.kernels.environment import KEY

EVALUATOR = Path(__file__).with_name("evaluator.cjs")
_STREAMS = {1: "stdout", 2: "stderr"}


class JavaScriptKernel(Kernel):  # type: ignore[misc]
    implementation = "sandyard-javascript"
    implementation_version = "1"
    banner = "JavaScript on Node"
    language = "javascript"
    language_info = {"name": "javascript", "mimetype": "text/javascript", "file_extension": ".js"}  # noqa: RUF012
    _execute_sleep = 0.0

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._node: subprocess.Popen[bytes] | None = None
        self._pipes: dict[int, int] = {}  # this process's ends, by descriptor number in Node
        self._answer: asyncio.Future[dict[str, Any]] | None = None
        self._unread = b""
        self._request_env: dict[str, Any] = {}
        self._request: dict[str, Any] = {}  # Node's output belongs to the latest request

    async def execute_request(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        self._request_env = (parent.get("metadata") or {}).get(KEY) or {}
        self._request = parent
        await super().execute_request(stream, ident, parent)

    async def do_execute(
        self,
        code: str,
        silent: bool,
        store_history: bool = True,
        user_expressions: dict[str, str] | None = None,
        allow_stdin: bool = False,
        *,
        cell_meta: Any = None,
        cell_id: Any = None,
    ) -> dict[str, Any]:
        if self._node is None or self._node.poll() is not None:
            self._start_node()
        # Node gets the interrupt itself, because it is in the same process group. Here it would end the loop.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._answer = asyncio.get_running_loop().create_future()
        request = {"code": code, "language": self.language, **self._request_env}
        try:
            await asyncio.to_thread(self._write, json.dumps(request).encode() + b"\n")
            answer = await self._answer
        except (OSError, EOFError):
            answer = {"error": {"ename": "KernelError", "evalue": "Node ended", "traceback": ["Node ended"]}}
        if error := answer.get("error"):
            if not silent:
                self.send_response(self.iopub_socket, "error", error)
            return {"status": "error", "execution_count": self.execution_count, **error}
        if (data := answer.get("data")) and not silent:
            content = {"data": data, "metadata": {}, "execution_count": self.execution_count}
            self.send_response(self.iopub_socket, "execute_result", content)
        return {"status": "ok", "execution_count": self.execution_count, "payload": [], "user_expressions": {}}

    def do_shutdown(self, restart: bool) -> dict[str, Any]:
        if self._node is not None:
            self._node.kill()
        return {"status": "ok", "restart": restart}

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._pipes[3], data) :]

    def _start_node(self) -> None:
        loop = asyncio.get_running_loop()
        for fd in self._pipes.values():
            loop.remove_reader(fd)
            os.close(fd)
        pairs = {1: os.pipe(), 2: os.pipe(), 3: os.pipe(), 4: os.pipe()}
        node_ends = {number: pair[0] if number == 3 else pair[1] for number, pair in pairs.items()}
        self._pipes = {number: pair[1] if number == 3 else pair[0] for number, pair in pairs.items()}
        self._node = subprocess.Popen(
            ["node", "--no-warnings", str(EVALUATOR), str(node_ends[3]), str(node_ends[4])],
            stdin=subprocess.DEVNULL,
            stdout=node_ends[1],
            stderr=node_ends[2],
            pass_fds=(node_ends[3], node_ends[4]),
            restore_signals=True,
        )
        for fd in node_ends.values():
            os.close(fd)
        self._unread = b""
        for number in (1, 2, 4):
            os.set_blocking(self._pipes[number], False)
            loop.add_reader(
                self._pipes[number], *((self._handle_answer,) if number == 4 else (self._forward_output, number))
            )

    def _forward_output(self, number: int) -> None:
        """Forward Node's output as it arrives, also between executions, so that Node never blocks."""
        chunks = []
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._pipes[number], 1 << 16):
                chunks.append(chunk)
            asyncio.get_running_loop().remove_reader(self._pipes[number])
        if chunks:
            text = b"".join(chunks).decode(errors="replace")
            content = {"name": _STREAMS[number], "text": text}
            self.session.send(self.iopub_socket, "stream", content, parent=self._request)

    def _handle_answer(self) -> None:
        """Handle an answer, after forwarding what was printed before it."""
        ended = False
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._pipes[4], 1 << 16):
                self._unread += chunk
            ended = True
            asyncio.get_running_loop().remove_reader(self._pipes[4])
        *lines, self._unread = self._unread.split(b"\n")
        if not (lines or ended) or self._answer is None or self._answer.done():
            return
        self._forward_output(1)
        self._forward_output(2)
        if lines:
            self._answer.set_result(json.loads(lines[-1]))
        else:
            self._answer.set_exception(EOFError("Node ended"))


class TypeScriptKernel(JavaScriptKernel):
    implementation = "sandyard-typescript"
    banner = "TypeScript on Node"
    language = "typescript"
    language_info = {"name": "typescript", "mimetype": "text/typescript", "file_extension": ".ts"}  # noqa: RUF012
