"""JSON-RPC over standard input and output, one message per line, in both directions."""

# This code runs on old versions of Python.
# ruff: noqa: UP037

import json
import os
import sys
import threading
from typing import Any, Callable  # noqa: UP035

MAX_LINE_BYTES = 50 << 20
PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603
NOT_FOUND = -32002


class RpcError(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Peer:
    """Serve JSON-RPC methods and send requests.

    `quick` methods are answered before the next line is read. `slow` methods are called before it too, and return a
    function that does the work in its own thread. `notified` handles notifications. After `frozen` is set, the peer
    reads nothing more but stays alive, like an agent that hangs.
    """

    def __init__(self) -> None:
        self.quick: "dict[str, Callable[[dict[str, Any]], Any]]" = {}
        self.slow: "dict[str, Callable[[dict[str, Any]], Callable[[], Any]]]" = {}
        self.notified: "dict[str, Callable[[dict[str, Any]], None]]" = {}
        self.frozen = threading.Event()
        self._input = os.fdopen(os.dup(0), "rb", 1 << 16)
        self._output = os.fdopen(os.dup(1), "wb", 0)
        self._write_lock = threading.Lock()
        self._changed = threading.Condition()
        self._next_id = 0
        self._responses: "dict[int, dict[str, Any] | None]" = {}  # by request id; None until the response arrives

    def serve(self) -> None:
        """Read lines until the client closes its side."""
        while not self.frozen.is_set():
            line = self._input.readline(MAX_LINE_BYTES + 1)
            if not line:
                return
            if self.frozen.is_set():
                break
            if len(line) > MAX_LINE_BYTES:
                while line and not line.endswith(b"\n"):
                    line = self._input.readline(1 << 20)
                self._send_error(None, INVALID_REQUEST, "The line is longer than 50 MiB.")
            elif line.strip():
                self._handle_line(line)
        threading.Event().wait()  # frozen: hang forever

    def notify(self, method: str, params: "dict[str, Any]") -> None:
        self._send({"method": method, "params": params})

    def request(self, method: str, params: "dict[str, Any]", cancelled: threading.Event) -> "dict[str, Any] | None":
        """Send a request and return its result, or None if it was cancelled before the answer. Raises RpcError."""
        with self._changed:
            request_id = self._next_id
            self._next_id += 1
            self._responses[request_id] = None
        self._send({"id": request_id, "method": method, "params": params})
        with self._changed:
            while self._responses[request_id] is None and not cancelled.is_set():
                self._changed.wait(60)
            answer = self._responses.pop(request_id)
        if answer is None:
            return None
        error = answer.get("error")
        if error is not None:
            text = error.get("message") if isinstance(error, dict) else None
            raise RpcError(INTERNAL_ERROR, str(text or "The client rejected the request."))
        result = answer.get("result")
        return result if isinstance(result, dict) else {}

    def wake(self) -> None:
        """Let all waiting requests check whether they are cancelled."""
        with self._changed:
            self._changed.notify_all()

    def _handle_line(self, line: bytes) -> None:
        try:
            message = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError):
            self._send_error(None, PARSE_ERROR, "This is not JSON.")
            return
        if not isinstance(message, dict):
            self._send_error(None, INVALID_REQUEST, "This is not a JSON-RPC message.")
            return
        method, request_id = message.get("method"), message.get("id")
        if method is None:
            with self._changed:
                if isinstance(request_id, int) and request_id in self._responses:
                    self._responses[request_id] = message
                    self._changed.notify_all()
            return
        params = message.get("params")
        if params is None:
            params = {}
        if not isinstance(method, str) or not isinstance(params, dict):
            if "id" in message:
                self._send_error(request_id, INVALID_PARAMS, "The method's name or its parameters are not valid.")
        elif "id" not in message:
            if method in self.notified:
                self._run_guarded(None, lambda: self.notified[method](params))
        elif method in self.quick:
            self._run_guarded(message, lambda: self.quick[method](params))
        elif method in self.slow:
            self._run_guarded(message, lambda: self.slow[method](params), slow=True)
        else:
            self._send_error(request_id, METHOD_NOT_FOUND, "There is no method " + repr(method[:100]) + ".")

    def _run_guarded(self, request: "dict[str, Any] | None", work: "Callable[[], Any]", *, slow: bool = False) -> None:
        try:
            result = work()
        except RpcError as error:
            failure = error
        except Exception as error:
            sys.stderr.write("demo agent: " + repr(error) + "\n")
            failure = RpcError(INTERNAL_ERROR, "The demo agent failed: " + repr(error))
        else:
            if slow:
                threading.Thread(target=self._run_guarded, args=(request, result), daemon=True).start()
            elif request is not None:
                self._send({"id": request["id"], "result": result})
            return
        if request is not None:
            self._send_error(request["id"], failure.code, failure.message)

    def _send_error(self, request_id: Any, code: int, text: str) -> None:
        self._send({"id": request_id, "error": {"code": code, "message": text}})

    def _send(self, message: "dict[str, Any]") -> None:
        message["jsonrpc"] = "2.0"
        data = json.dumps(message, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        try:
            with self._write_lock:
                while data:
                    data = data[self._output.write(data) or 0 :]
        except OSError:
            os._exit(0)  # the client has closed the pipe
