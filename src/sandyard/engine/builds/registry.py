"""Built templates in memory: what a name and a tag refer to, and which builds must be kept for that."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from sandyard.engine.builds.model import DEFAULT_TAG, Assignment, Build, BuildStatus, BuiltTemplate, as_template
from sandyard.engine.builds.repository import BuildRepository
from sandyard.engine.sandboxes.model import Template, Templates
from sandyard.kit.clock import Clock

BUILDS_KEPT = 100  # per template, in addition to those with a tag
HISTORY_KEPT = 100  # assignments per tag


class BuiltTemplates:
    """Built templates, their builds and tags, in memory and in the database. `resolve` is called for each new sandbox, so
    it answers from memory."""

    def __init__(self, repository: BuildRepository, clock: Clock) -> None:
        self._repository = repository
        self._clock = clock
        self._templates: dict[str, BuiltTemplate] = {}
        self._names: dict[str, str] = {}
        self._builds: dict[str, dict[str, Build]] = {}  # by template, oldest first
        self._tags: dict[str, dict[str, list[Assignment]]] = {}  # by template and tag, oldest first
        self._resolved: dict[tuple[str, str], Template] = {}

    def load(self) -> None:
        for template in self._repository.list_templates():
            self._remember(template)
        for build in self._repository.list_builds():
            self._builds[build.template_id][build.id] = build
        for assignment in self._repository.list_assignments():
            self._tags[assignment.template_id].setdefault(assignment.tag, []).append(assignment)

    # Reading ---------------------------------------------------------------------------------------------------------

    def resolve(self, name: str) -> Template | None:
        """Return the template by id or name; without `:tag`, the tag `default` is used."""
        plain, _, tag = name.strip().lower().partition(":")
        template_id = self._names.get(plain, plain)
        if template_id not in self._templates:
            return None
        key = (template_id, tag or DEFAULT_TAG)
        template = self._resolved.get(key)
        if template is None:
            build = self.find_tagged(*key)
            if build is None:
                return None
            template = self._resolved[key] = as_template(self._templates[template_id], build)
        return template

    def explain_missing(self, name: str) -> str | None:
        """Return the reason why a name does not resolve, if a template of that name exists."""
        template = self.find(name)
        if template is None:
            return None
        tags = sorted(self._tags[template.id])
        if not tags:
            return "none of its builds has succeeded"
        return f"it has no tag '{name.partition(':')[2][:100] or DEFAULT_TAG}'; its tags are {', '.join(tags[:20])}"

    def find(self, name: str) -> BuiltTemplate | None:
        """Return the template by id or name, with or without a tag."""
        plain = name.strip().lower().partition(":")[0]
        return self._templates.get(self._names.get(plain, plain))

    def list_templates(self) -> Sequence[BuiltTemplate]:
        return sorted(self._templates.values(), key=lambda template: template.id)

    def list_builds(self, template_id: str) -> list[Build]:
        """Return the builds, newest first."""
        return list(reversed(self._builds[template_id].values()))

    def build(self, template_id: str, build_id: str) -> Build | None:
        return self._builds.get(template_id, {}).get(build_id)

    def iterate_builds(self) -> Iterator[Build]:
        for builds in self._builds.values():
            yield from builds.values()

    def find_tagged(self, template_id: str, tag: str) -> Build | None:
        history = self._tags[template_id].get(tag)
        return None if not history else self._builds[template_id].get(history[-1].build_id)

    def list_tags(self, template_id: str) -> dict[str, list[Assignment]]:
        """Return the assignments of each tag, oldest first."""
        return self._tags[template_id]

    def list_snapshots(self) -> set[str]:
        """Return the snapshots that available builds need."""
        needed: set[str] = set()
        for template_id, tags in self._tags.items():
            for tag in tags:
                build = self.find_tagged(template_id, tag)
                if build is not None and build.product is not None:
                    needed.update(build.product.snapshots)
        return needed

    def uses_layer(self, layer: str) -> bool:
        """Return whether an available build needs this layer."""
        return any(
            build is not None and build.product is not None and layer in build.product.layers
            for template_id, tags in self._tags.items()
            for build in (self.find_tagged(template_id, tag) for tag in tags)
        )

    # Changing --------------------------------------------------------------------------------------------------------

    def add(self, template: BuiltTemplate) -> None:
        self._repository.put_template(template)
        self._remember(template)

    def change(self, template: BuiltTemplate, **changes: Any) -> BuiltTemplate:
        changed = replace(template, updated_at=self._clock.now(), **changes)
        self._repository.put_template(changed)
        self._templates[template.id] = changed
        return changed

    def remove(self, template: BuiltTemplate) -> None:
        with self._repository.database.transaction():
            self._repository.delete_template(template.id)
        del self._templates[template.id], self._names[template.name]
        del self._builds[template.id], self._tags[template.id]
        self._forget_resolved(template.id)

    def add_build(self, build: Build) -> Build:
        stored = self._repository.insert_build(build)
        self._builds[build.template_id][build.id] = stored
        self._prune(build.template_id)
        return stored

    def change_build(self, build: Build, *, persist: bool = True, **changes: Any) -> Build:
        """Change a build. A build that becomes ready gets its tags in the same transaction. If not `persist`, the
        change is only in memory and the next engine sees the old row."""
        changed = replace(build, updated_at=self._clock.now(), **changes)
        assignments: list[Assignment] = []
        if persist:
            with self._repository.database.transaction():
                self._repository.update_build(changed)
                assignments = self._assign(changed, changed.tags) if changed.status is BuildStatus.READY else []
        self._builds[build.template_id][build.id] = changed
        self._add_assignments(build.template_id, assignments)
        return changed

    def assign(self, build: Build, tags: Sequence[str]) -> None:
        """Move these tags to this build."""
        with self._repository.database.transaction():
            assignments = self._assign(build, tags)
        self._add_assignments(build.template_id, assignments)

    def remove_tags(self, template_id: str, tags: Sequence[str]) -> None:
        with self._repository.database.transaction():
            for tag in tags:
                self._repository.delete_tag(template_id, tag)
        for tag in tags:
            self._tags[template_id].pop(tag, None)
        self._forget_resolved(template_id)

    def _assign(self, build: Build, tags: Sequence[str]) -> list[Assignment]:
        now = self._clock.now()
        return [
            self._repository.insert_assignment(Assignment(str(uuid.uuid4()), build.template_id, tag, build.id, now))
            for tag in tags
        ]

    def _add_assignments(self, template_id: str, assignments: Sequence[Assignment]) -> None:
        for assignment in assignments:
            history = self._tags[template_id].setdefault(assignment.tag, [])
            history.append(assignment)
            while len(history) > HISTORY_KEPT:
                self._repository.delete_assignment(history.pop(0).id)
        self._forget_resolved(template_id)

    def _prune(self, template_id: str) -> None:
        """Remove old builds that no tag refers to."""
        builds = self._builds[template_id]
        tagged = {history[-1].build_id for history in self._tags[template_id].values()}
        unused = [build for build in builds.values() if build.status.final and build.id not in tagged]
        for build in unused[: max(0, len(builds) - BUILDS_KEPT)]:
            self._repository.delete_build(build.id)
            del builds[build.id]

    def _remember(self, template: BuiltTemplate) -> None:
        self._templates[template.id] = template
        self._names[template.name] = template.id
        self._builds[template.id] = {}
        self._tags[template.id] = {}

    def _forget_resolved(self, template_id: str) -> None:
        for key in [key for key in self._resolved if key[0] == template_id]:
            del self._resolved[key]


class CombinedTemplates:
    """The templates of the machine and the built ones: what `Sandboxes` uses to resolve names. A template of the machine
    takes precedence, unless it `can_be_overridden`."""

    def __init__(self, machine: Templates, built: BuiltTemplates) -> None:
        self._machine = machine
        self._built = built

    def resolve(self, name: str) -> Template | None:
        template = self._machine.resolve(name)
        if template is not None and not template.can_be_overridden:
            return template
        return self._built.resolve(name) or template

    def list(self) -> Sequence[Template]:
        return self._machine.list()
