"""Read a devcontainer.json: what is supported here, and what is not."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sandyard.platform.domain.git.model import CHECKOUT_FOLDER
from sandyard.platform.domain.preparations import jsonc

CREATE_COMMANDS = ("onCreateCommand", "updateContentCommand", "postCreateCommand")
"""Run in this order when a container is created. Commands of an object run one after the other, in the written order."""
MAX_COMMANDS, MAX_ENVS, MAX_LENGTH = 50, 200, 20_000
_IMAGE_FIELDS = ("image", "build", "dockerFile", "dockerComposeFile")
_IGNORED_FIELDS = (
    "initializeCommand", "postStartCommand", "postAttachCommand", "mounts", "runArgs", "workspaceMount", "workspaceFolder",
    "remoteUser", "containerUser", "privileged", "capAdd", "securityOpt",
)  # fmt: skip
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Command:
    """A setup command. `source` says where it comes from."""

    source: str
    command: str


@dataclass(frozen=True, slots=True)
class Devcontainer:
    """The supported parts. `warnings` name everything that is not supported, in sentences."""

    commands: tuple[Command, ...] = ()
    envs: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def parse(path: str, text: str, template: str) -> Devcontainer:
    """Read a devcontainer.json. Never fails: what cannot be parsed becomes a warning."""
    try:
        config = jsonc.parse(text)
    except ValueError as error:
        return Devcontainer(warnings=(f"{path} is invalid and was ignored: {error}.",))
    if not isinstance(config, dict):
        return Devcontainer(warnings=(f"{path} is not an object and was ignored.",))
    warnings = list(_list_unsupported(path, config, template))
    commands: list[Command] = []
    for name in CREATE_COMMANDS:
        try:
            commands += [Command(f"{path}: {label}", line) for label, line in _parse_commands(name, config.get(name))]
        except ValueError as error:
            warnings.append(f"{path}: {error}")
    if len(commands) > MAX_COMMANDS:
        warnings.append(f"{path} has more than {MAX_COMMANDS} commands. The others were ignored.")
    envs: dict[str, str] = {}
    for name in ("containerEnv", "remoteEnv"):
        warnings += _add_envs(path, name, config.get(name), envs)
    return Devcontainer(tuple(commands[:MAX_COMMANDS]), envs, tuple(warnings))


def _list_unsupported(path: str, config: Mapping[str, Any], template: str) -> Iterator[str]:
    for name in _IMAGE_FIELDS:
        if name in config and config[name] != template:
            image = f" {config[name][:200]!r}" if isinstance(config[name], str) else ""
            yield (
                f"{path}: {name}{image} was ignored, because images are not built or pulled here. The template {template!r} is "
                "used; set another one in the project's settings."
            )
    features = config.get("features")
    if features:
        names = (
            ", ".join(str(feature)[:100] for feature in list(features)[:10])
            if isinstance(features, (dict, list))
            else "?"
        )
        yield f"{path}: features were ignored: {names}. Install them in a setup command or in the template."
    ignored = [name for name in _IGNORED_FIELDS if config.get(name)]
    if ignored:
        yield f"{path}: ignored, because it does not apply to a sandbox: {', '.join(ignored)}."


def _parse_commands(name: str, value: object) -> Iterator[tuple[str, str]]:
    if value is None:
        return
    if not isinstance(value, dict):
        yield name, _parse_command(name, value)
        return
    for label, part in value.items():
        yield f"{name}.{label[:100]}", _parse_command(f"{name}.{label[:100]}", part)


def _parse_command(name: str, value: object) -> str:
    """Return a shell command. A string is a shell command; a list is a program and its arguments."""
    if isinstance(value, str) and value.strip():
        line = value
    elif isinstance(value, list) and value and all(isinstance(word, str) for word in value):
        line = shlex.join(value)
    else:
        raise ValueError(f"{name} is neither a string nor a list of strings and was ignored.")
    if len(line) > MAX_LENGTH or "\0" in line:
        raise ValueError(f"{name} is too long or contains NUL characters and was ignored.")
    return _expand_variables(line)


def _expand_variables(text: str) -> str:
    folder = CHECKOUT_FOLDER.rpartition("/")[2]
    return text.replace("${containerWorkspaceFolder}", CHECKOUT_FOLDER).replace(
        "${containerWorkspaceFolderBasename}", folder
    )


def _add_envs(path: str, name: str, value: object, envs: dict[str, str]) -> Iterator[str]:
    if value is None:
        return
    if not isinstance(value, dict):
        yield f"{path}: {name} is not an object and was ignored."
        return
    ignored = []
    for key, part in value.items():
        text = _expand_variables(part) if isinstance(part, str) else None
        if text is None or "${" in text or "\0" in text or len(text) > MAX_LENGTH or not _VARIABLE_NAME.fullmatch(key):
            ignored.append(key[:100])
        elif len(envs) < MAX_ENVS:
            envs[key] = text
    if ignored:
        yield f"{path}: these variables of {name} were ignored, because their values are not plain text: {', '.join(ignored[:20])}."
