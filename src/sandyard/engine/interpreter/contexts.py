"""All contexts of a sandbox: a default one per language, made when it is first used, and those that clients make."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

from sandyard.engine.interpreter import environment, specs
from sandyard.engine.interpreter.context import Context, Place
from sandyard.engine.interpreter.kernel import KernelError
from sandyard.engine.interpreter.processes import ForkServer

HOME = "/home/user"
MOST = 100
LISTED_FROM_THE_START = ("python", "javascript")


class NoContextError(LookupError):
    """There is no context with this id."""


class FullError(Exception):
    """There are as many contexts as there can be."""


class BadDirectoryError(ValueError):
    """The working directory is none."""


class Contexts:
    def __init__(self, folder: Path, forks: ForkServer, sandbox: environment.Sandbox | None = None) -> None:
        self._place = Place(folder, forks, sandbox or environment.Sandbox())
        self._contexts: dict[str, Context] = {}
        self._defaults: dict[str, Context] = {}

    async def open(self) -> None:
        """Make the default contexts, and have Python's kernel running. Raises KernelError."""
        for language in LISTED_FROM_THE_START:
            with contextlib.suppress(specs.UnknownLanguageError):
                self.default(language)
        if (python := self._defaults.get("python")) is not None:
            await python.warm()

    def list(self) -> list[Context]:
        return list(self._contexts.values())

    def get(self, context_id: str) -> Context:
        """Raises NoContextError."""
        if (context := self._contexts.get(context_id)) is None:
            raise NoContextError(f"Context {context_id} not found")
        return context

    def default(self, language: str) -> Context:
        """Raises UnknownLanguageError, FullError."""
        language = specs.normalise(language)
        context = self._defaults.get(language)
        if context is None or context.id not in self._contexts:
            context = self._defaults[language] = self._add(language, HOME)
        return context

    async def create(self, language: str | None, cwd: str | None) -> Context:
        """A new context with a running kernel. Raises UnknownLanguageError, BadDirectoryError, FullError, KernelError."""
        directory = cwd or HOME
        if not await asyncio.to_thread(os.path.isdir, directory):
            raise BadDirectoryError(f"The working directory '{directory}' is not there: create it first.")
        context = self._add(specs.normalise(language), directory)
        try:
            await context.warm()
        except (KernelError, asyncio.CancelledError):
            del self._contexts[context.id]
            context.end()
            raise
        return context

    def remove(self, context_id: str) -> None:
        """Raises NoContextError. A default context comes back, empty, when its language is used again."""
        context = self.get(context_id)
        del self._contexts[context_id]
        context.end()

    def _add(self, language: str, cwd: str) -> Context:
        if len(self._contexts) >= MOST:  # whoever reaches the port may ask, and each is a process
            raise FullError(f"There are {MOST} contexts in this sandbox: remove one first.")
        spec = specs.find(language, specs.installed())
        context = Context(language, spec, cwd, self._place)
        self._contexts[context.id] = context
        return context
