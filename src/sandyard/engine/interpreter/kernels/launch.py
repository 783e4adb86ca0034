"""The available kernels, and how to start one in this process."""

from __future__ import annotations

import contextlib
import importlib
import os

import zmq
from ipykernel.kernelapp import IPKernelApp
from traitlets.config import Config

from sandyard.engine.interpreter.kernels.javascript import JavaScriptKernel, TypeScriptKernel
from sandyard.engine.interpreter.kernels.python import PythonKernel
from sandyard.engine.interpreter.kernels.shell import ShellKernel

KERNELS = {
    "python": PythonKernel,
    "javascript": JavaScriptKernel,
    "typescript": TypeScriptKernel,
    "bash": ShellKernel,
}
PRELOADED_MODULES = (
    "ipykernel.zmqshell",
    "ipykernel.debugger",
    "IPython.core.completerlib",
    "IPython.core.debugger",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
    "tornado.platform.asyncio",
    "tornado.queues",
    "unicodedata",
)


class KernelApp(IPKernelApp):  # type: ignore[misc]
    """A kernel that loses no output. By default ZeroMQ drops messages of which a slow reader has not taken 1000."""

    def init_iopub(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        context.setsockopt(zmq.SNDHWM, 0)
        super().init_iopub(context)


def prepare() -> None:
    """Import what a kernel imports at start, once for all kernels that are forked from here."""
    for module in PRELOADED_MODULES:
        with contextlib.suppress(ImportError):  # missing in other releases
            importlib.import_module(module)


def run(kernel: str, connection_file: str) -> None:
    """Run a kernel and return when it is told to end. Call it once per process."""
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    config.InteractiveShell.banner1 = ""
    app = KernelApp.instance(config=config, kernel_class=KERNELS[kernel])
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    app.initialize(["-f", connection_file])
    app.start()
