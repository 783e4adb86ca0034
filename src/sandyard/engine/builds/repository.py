"""Templates, builds, tags, cached layers and build logs as database rows. Synchronous, in the event loop's thread."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from sandyard.engine.builds.model import (
    Assignment,
    Build,
    BuildStatus,
    BuiltTemplate,
    Layer,
    LogLine,
    Reason,
    Size,
    State,
)
from sandyard.engine.sandboxes.model import LogLevel, StartCommand
from sandyard.engine.store.database import Database, Row

_BUILD_COLUMNS = "seq, id, template_id, status, created_at, updated_at, finished_at, spec"


class BuildRepository:
    """Group related calls in one `database.transaction()`."""

    def __init__(self, database: Database) -> None:
        self.database = database

    # templates

    def list_templates(self) -> list[BuiltTemplate]:
        rows = self.database.query("SELECT id, name, public, created_at, updated_at FROM built_templates")
        return [BuiltTemplate(row[0], row[1], bool(row[2]), row[3], row[4]) for row in rows]

    def put_template(self, template: BuiltTemplate) -> None:
        self.database.execute(
            "INSERT INTO built_templates (id, name, public, created_at, updated_at) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET public = excluded.public, updated_at = excluded.updated_at",
            (template.id, template.name, int(template.public), template.created_at, template.updated_at),
        )

    def delete_template(self, template_id: str) -> None:
        """Delete a template with its builds, their logs, and its tags."""
        self.database.execute(
            "DELETE FROM build_logs WHERE build_id IN (SELECT id FROM builds WHERE template_id = ?)", (template_id,)
        )
        for table in ("builds", "template_tags"):
            self.database.execute(f"DELETE FROM {table} WHERE template_id = ?", (template_id,))  # noqa: S608
        self.database.execute("DELETE FROM built_templates WHERE id = ?", (template_id,))

    # builds

    def list_builds(self) -> list[Build]:
        """Return all builds, oldest first."""
        return [_decode_build(row) for row in self.database.query(f"SELECT {_BUILD_COLUMNS} FROM builds ORDER BY seq")]  # noqa: S608

    def insert_build(self, build: Build) -> Build:
        seq = self.database.insert(
            "INSERT INTO builds (id, template_id, status, created_at, updated_at, finished_at, spec)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (build.id, build.template_id, *_encode_mutable_fields(build)),
        )
        return replace(build, seq=seq)

    def update_build(self, build: Build) -> None:
        self.database.execute(
            "UPDATE builds SET status = ?, created_at = ?, updated_at = ?, finished_at = ?, spec = ? WHERE id = ?",
            (*_encode_mutable_fields(build), build.id),
        )

    def delete_build(self, build_id: str) -> None:
        self.database.execute("DELETE FROM build_logs WHERE build_id = ?", (build_id,))
        self.database.execute("DELETE FROM builds WHERE id = ?", (build_id,))

    # tags

    def list_assignments(self) -> list[Assignment]:
        """Return all assignments, oldest first."""
        rows = self.database.query("SELECT seq, id, template_id, tag, build_id, at FROM template_tags ORDER BY seq")
        return [Assignment(row[1], row[2], row[3], row[4], row[5], row[0]) for row in rows]

    def insert_assignment(self, assignment: Assignment) -> Assignment:
        seq = self.database.insert(
            "INSERT INTO template_tags (id, template_id, tag, build_id, at) VALUES (?, ?, ?, ?, ?)",
            (assignment.id, assignment.template_id, assignment.tag, assignment.build_id, assignment.at),
        )
        return replace(assignment, seq=seq)

    def delete_tag(self, template_id: str, tag: str) -> None:
        self.database.execute("DELETE FROM template_tags WHERE template_id = ? AND tag = ?", (template_id, tag))

    def delete_assignment(self, assignment_id: str) -> None:
        self.database.execute("DELETE FROM template_tags WHERE id = ?", (assignment_id,))

    # cached layers

    def list_layers(self) -> list[tuple[Layer, float]]:
        """Return all layers with the time of their last use, least recently used first."""
        rows = self.database.query("SELECT spec, used_at FROM build_layers ORDER BY used_at")
        return [(_decode_layer(json.loads(spec)), used_at) for spec, used_at in rows]

    def put_layer(self, layer: Layer, used_at: float) -> None:
        self.database.execute(
            "INSERT INTO build_layers (key, spec, used_at) VALUES (?, ?, ?)"
            " ON CONFLICT (key) DO UPDATE SET spec = excluded.spec, used_at = excluded.used_at",
            (layer.key, json.dumps(_encode_layer(layer)), used_at),
        )

    def mark_layers_used(self, keys: Iterable[str], used_at: float) -> None:
        for key in keys:
            self.database.execute("UPDATE build_layers SET used_at = ? WHERE key = ?", (used_at, key))

    def delete_layer(self, key: str) -> None:
        self.database.execute("DELETE FROM build_layers WHERE key = ?", (key,))

    # logs

    def add_lines(self, build_id: str, first: int, lines: Sequence[LogLine]) -> None:
        for number, line in enumerate(lines, first):
            self.database.execute(
                "INSERT INTO build_logs (build_id, number, at, level, message, step) VALUES (?, ?, ?, ?, ?, ?)",
                (build_id, number, line.at, line.level.value, line.message, line.step),
            )

    def list_lines(self, build_id: str) -> list[LogLine]:
        rows = self.database.query(
            "SELECT at, level, message, step FROM build_logs WHERE build_id = ? ORDER BY number", (build_id,)
        )
        return [LogLine(at, LogLevel(level), message, step) for at, level, message, step in rows]


def _encode_mutable_fields(build: Build) -> tuple[Any, ...]:
    spec: dict[str, Any] = {
        "size": asdict(build.size),
        "tags": build.tags,
        "started": build.started,
        "reason": None if build.reason is None else asdict(build.reason),
        "product": None if build.product is None else _encode_layer(build.product),
    }
    return (build.status.value, build.created_at, build.updated_at, build.finished_at, json.dumps(spec))


def _encode_layer(layer: Layer) -> dict[str, Any]:
    state = {"env": dict(layer.state.env), "user": layer.state.user, "workdir": layer.state.workdir}
    start = None if layer.start is None else asdict(layer.start)
    return {"key": layer.key, "layers": layer.layers, "snapshots": layer.snapshots, "state": state, "start": start}


def _decode_layer(spec: dict[str, Any]) -> Layer:
    return Layer(
        key=spec["key"],
        layers=tuple(spec["layers"]),
        snapshots=tuple(spec["snapshots"]),
        state=State(**spec["state"]),
        start=None if spec["start"] is None else StartCommand(**spec["start"]),
    )


def _decode_build(row: Row) -> Build:
    seq, build_id, template_id, status, created_at, updated_at, finished_at, text = row
    spec = json.loads(text)
    reason, product = spec["reason"], spec["product"]
    return Build(
        id=build_id,
        template_id=template_id,
        status=BuildStatus(status),
        created_at=created_at,
        updated_at=updated_at,
        size=Size(**spec["size"]),
        tags=tuple(spec["tags"]),
        finished_at=finished_at,
        started=spec["started"],
        reason=None if reason is None else Reason(**reason),
        product=None if product is None else _decode_layer(product),
        seq=seq,
    )
