"""Choose the setup: the project's own command, or else `.sandyard/setup.sh`, or else devcontainer.json."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from sandyard.platform.db.models import Project
from sandyard.platform.domain.agents.profiles.model import Profile
from sandyard.platform.domain.git.prepared_checkouts import PreparedCheckouts, TreeFile
from sandyard.platform.domain.preparations import devcontainer
from sandyard.platform.domain.preparations.devcontainer import Command
from sandyard.platform.domain.projects.model import ProjectSettings

VERSION = 1
"""Version of the preparation process. A new version prepares everything again."""
SETUP_SCRIPT, AGENTS_MD = ".sandyard/setup.sh", "AGENTS.md"
DEVCONTAINERS = (".devcontainer/devcontainer.json", ".devcontainer.json")
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class PreparationSpec:
    """Everything a preparation depends on. Equal keys mean equal preparations."""

    project_id: str
    repository: str
    base_branch: str
    base_commit: str
    template: str
    command: str | None
    timeout_s: float
    files: Mapping[str, TreeFile]
    profile: Profile

    @property
    def key(self) -> str:
        install = self.profile.install
        parts = [
            *(
                VERSION,
                self.project_id,
                self.repository,
                self.base_branch,
                self.base_commit,
                self.template,
                self.command,
            ),
            *([file.path, file.id] for file in sorted(self.files.values(), key=lambda file: file.path)),
            *(self.profile.name, None if install is None else [install.version, install.script]),
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Recipe:
    """The setup to run. `sources`: where the commands come from."""

    commands: tuple[Command, ...]
    sources: tuple[str, ...]
    agents_md: bool
    envs: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


async def make_spec(
    git: PreparedCheckouts, project: Project, *, base: str, commit: str, template: str, profile: Profile
) -> PreparationSpec:
    settings = ProjectSettings.from_project(project).setup
    files = await git.find_files(project.id, commit, (SETUP_SCRIPT, *DEVCONTAINERS, AGENTS_MD))
    return PreparationSpec(
        project_id=project.id,
        repository=project.repository or "",
        base_branch=base,
        base_commit=commit,
        template=template,
        command=settings.command,
        timeout_s=settings.timeout_seconds,
        files=files,
        profile=profile,
    )


async def make_recipe(git: PreparedCheckouts, spec: PreparationSpec) -> Recipe:
    """Return the setup. The variables of a devcontainer.json apply whichever command is used."""
    devcontainer_config, path = (
        devcontainer.Devcontainer(),
        next((name for name in DEVCONTAINERS if name in spec.files), None),
    )
    if path is not None:
        text = await git.read_content(spec.project_id, spec.files[path], _MAX_BYTES)
        devcontainer_config = devcontainer.parse(path, text.decode(errors="replace"), spec.template)
    warnings = list(devcontainer_config.warnings)
    if spec.command is not None:
        commands: tuple[Command, ...] = (Command("project settings", spec.command),)
    elif SETUP_SCRIPT in spec.files:
        commands = (Command(SETUP_SCRIPT, f"bash {SETUP_SCRIPT}"),)
    else:
        commands = devcontainer_config.commands
    if devcontainer_config.commands and commands is not devcontainer_config.commands:
        warnings.append(f"{path}: its commands were not run, because {commands[0].source} takes precedence.")
    return Recipe(
        commands=commands,
        sources=tuple(dict.fromkeys(command.source for command in commands)),
        agents_md=AGENTS_MD in spec.files,
        envs=devcontainer_config.envs,
        warnings=tuple(warnings),
    )
