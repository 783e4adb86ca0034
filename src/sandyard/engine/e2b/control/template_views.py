"""Built templates, their builds and their tags as returned to clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sandyard.engine.builds.model import Assignment, Build, BuildStatus, BuiltTemplate, LogLine, Size
from sandyard.engine.contract import Limits
from sandyard.engine.e2b.control.views import ENVD_VERSION, View, format_time

REASON_LINES = 10


def render_requested(template: BuiltTemplate, build: Build) -> View:
    return {
        "templateID": template.id,
        "buildID": build.id,
        "public": template.public,
        "names": [template.name],
        "aliases": [template.name],
        "tags": list(build.tags),
    }


def render_template(record: BuiltTemplate, builds: Sequence[Build], defaults: Limits) -> View:
    """Return a template with its `builds`, newest first."""
    newest = builds[0] if builds else None
    current = next((build for build in builds if build.status is BuildStatus.READY), newest)
    return {
        "templateID": record.id,
        "buildID": "" if current is None else current.id,
        **_render_size(Size() if current is None else current.size, defaults),
        "public": record.public,
        "aliases": [record.name],
        "names": [record.name],
        "createdAt": format_time(record.created_at),
        "updatedAt": format_time(max(record.updated_at, newest.updated_at if newest else 0.0)),
        "createdBy": None,
        "lastSpawnedAt": None,
        "spawnCount": 0,
        "buildCount": len(builds),
        "envdVersion": ENVD_VERSION,
        "buildStatus": BuildStatus.WAITING.value if newest is None else _get_client_status(newest),
        "isDefault": False,
    }


def render_build(record: Build, defaults: Limits) -> View:
    view: View = {
        "buildID": record.id,
        "status": _get_client_status(record),
        "createdAt": format_time(record.created_at),
        "updatedAt": format_time(record.updated_at),
        **_render_size(record.size, defaults),
        "envdVersion": ENVD_VERSION,
    }
    if record.finished_at is not None:
        view["finishedAt"] = format_time(record.finished_at)
    return view


def render_status(record: Build, shown: Sequence[LogLine], lines: Sequence[LogLine]) -> View:
    """Return the status of a build, with the `shown` ones of all its `lines`."""
    view: View = {
        "templateID": record.template_id,
        "buildID": record.id,
        "status": _get_client_status(record),
        "logs": [],
        "logEntries": [render_line(line) for line in shown],
    }
    if record.reason is not None:
        step = record.reason.step
        step_lines = [line for line in lines if step is not None and line.step == step][-REASON_LINES:]
        view["reason"] = {"message": record.reason.message, "logEntries": [render_line(line) for line in step_lines]}
        if step is not None:
            view["reason"]["step"] = step
    return view


def render_line(entry: LogLine) -> View:
    view: View = {"timestamp": format_time(entry.at), "level": entry.level.value, "message": entry.message}
    if entry.step is not None:
        view["step"] = entry.step
    return view


def render_tag(name: str, latest: Assignment) -> View:
    return {"tag": name, "buildID": latest.build_id, "createdAt": format_time(latest.at)}


def render_assignment(assignment: Assignment, record: Build | None) -> View:
    return {
        "assignmentId": assignment.id,
        "buildId": assignment.build_id,
        "assignedAt": format_time(assignment.at),
        "buildCreatedAt": format_time(assignment.at if record is None else record.created_at),
        "buildFinishedAt": None if record is None or record.finished_at is None else format_time(record.finished_at),
    }


def _get_client_status(record: Build) -> str:
    """Return the status for clients, which know no queue: a build is waiting until it is started, and building from
    then on."""
    queued = record.started and record.status is BuildStatus.WAITING
    return (BuildStatus.BUILDING if queued else record.status).value


def _render_size(size: Size, defaults: Limits) -> dict[str, Any]:
    return {
        "cpuCount": size.cpu_count or defaults.cpu_count,
        "memoryMB": size.memory_mb or defaults.memory_mb,
        "diskSizeMB": size.disk_mb or defaults.disk_mb,
    }
