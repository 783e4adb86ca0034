"""All contexts of a sandbox: a default one per language, created on first use, and those that clients create."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

from sandyard.engine.interpreter import environment, specs
from sandyard.engine.interpreter.context import Context, ContextResources
from sandyard.engine.interpreter.kernel import KernelError
from sandyard.engine.interpreter.processes import ForkServer

HOME = "/home/user"
MAX_CONTEXTS = 100
INITIAL_LANGUAGES = ("python", "javascript")


class NoContextError(LookupError):
    """The context does not exist."""


class FullError(Exception):
    """The maximum number of contexts is reached."""


class BadDirectoryError(ValueError):
    """The working directory does not exist."""


class Contexts:
    def __init__(self, folder: Path, forks: ForkServer, sandbox: environment.Sandbox | None = None) -> None:
        self._resources = ContextResources(folder, forks, sandbox or environment.Sandbox())
        self._contexts: dict[str, Context] = {}
        self._defaults: dict[str, Context] = {}

    async def open(self) -> None:
        """Create the default contexts and start Python's kernel. Raises KernelError."""
        for language in INITIAL_LANGUAGES:
            with contextlib.suppress(specs.UnknownLanguageError):
                self.get_default(language)
        if (python := self._defaults.get("python")) is not None:
            await python.start_kernel()

    def list(self) -> list[Context]:
        return list(self._contexts.values())

    def get(self, context_id: str) -> Context:
        """Return a context. Raises NoContextError."""
        if (context := self._contexts.get(context_id)) is None:
            raise NoContextError(f"Context {context_id} not found")
        return context

    def get_default(self, language: str) -> Context:
        """Return the default context of a language. Raises UnknownLanguageError, FullError."""
        language = specs.normalise(language)
        context = self._defaults.get(language)
        if context is None or context.id not in self._contexts:
            context = self._defaults[language] = self._add(language, HOME)
        return context

    async def create(self, language: str | None, cwd: str | None) -> Context:
        """Create a context with a running kernel. Raises UnknownLanguageError, BadDirectoryError, FullError,
        KernelError."""
        directory = cwd or HOME
        if not await asyncio.to_thread(os.path.isdir, directory):
            raise BadDirectoryError(f"The working directory '{directory}' does not exist. Create it first.")
        context = self._add(specs.normalise(language), directory)
        try:
            await context.start_kernel()
        except (KernelError, asyncio.CancelledError):
            del self._contexts[context.id]
            context.end()
            raise
        return context

    def remove(self, context_id: str) -> None:
        """Remove a context. A default context is created again, empty, when its language is used. Raises NoContextError."""
        context = self.get(context_id)
        del self._contexts[context_id]
        context.end()

    def _add(self, language: str, cwd: str) -> Context:
        if len(self._contexts) >= MAX_CONTEXTS:  # anyone who reaches the port may create them, and each is a process
            raise FullError(f"This sandbox already has {MAX_CONTEXTS} contexts, which is the limit. Remove one first.")
        spec = specs.find(language, specs.list_installed())
        context = Context(language, spec, cwd, self._resources)
        self._contexts[context.id] = context
        return context
