"""The Python kernel: ipykernel's, with E2B's results and with variables that come with a request."""

from __future__ import annotations

from typing import Any

from ipykernel.ipkernel import IPythonKernel

from sandyard.engine.interpreter.kernels import environment, images, results


class PythonKernel(IPythonKernel):  # type: ignore[misc]
    _execute_sleep = 0.0  # the streams' own flush waits until their thread has sent everything

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        results.install(self.shell)
        images.install()

    async def execute_request(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        restore = environment.apply(parent)
        try:
            await super().execute_request(stream, ident, parent)
        finally:
            restore()
