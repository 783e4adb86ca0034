"""JSON representations of the engine's records for clients, as E2B's API defines them."""

from __future__ import annotations

import json
import uuid
from datetime import datetime, timedelta
from typing import Any

from sandyard.engine.contract import Limits
from sandyard.engine.sandboxes.model import ForkResult, LogEntry, Metric, PauseKind, Sandbox, Snapshot, Template

ENVD_VERSION = "0.6.4"
"""The version of envd whose protocol the guest agent implements. Clients enable features based on it."""
CLIENT_ID = "sandyard"
"""At E2B, the id of a node. Old clients append it to a sandbox's id with a hyphen."""

UNKNOWN_TIME = 0.0
"""The creation time of a template is not stored. The field is required, so it is 1970, which is clearly not a real date."""
_EPOCH = datetime(1970, 1, 1)  # UTC, without a zone, which would be printed

View = dict[str, Any]


def find_alias(sandbox: Sandbox) -> str | None:
    """Return the template's name with which the sandbox was requested, or its first name if that was its id."""
    if not sandbox.alias:
        return None
    requested = (sandbox.name or "").partition(":")[0]
    return sandbox.alias if requested in {"", sandbox.template_id} else requested


def format_time(seconds: float) -> str:
    """Format as RFC 3339 in UTC. Rounded down, so that a query for items since this time finds the item itself."""
    time = _EPOCH + timedelta(microseconds=int(seconds * 1_000_000))
    return f"{time.isoformat(timespec='microseconds')}Z"


def render_created(sandbox: Sandbox, domain: str | None) -> View:
    """Return the response to create, connect, resume and fork."""
    view: View = {
        "templateID": sandbox.template_id,
        "sandboxID": sandbox.id,
        "clientID": CLIENT_ID,
        "envdVersion": ENVD_VERSION,
        "domain": domain,
        "trafficAccessToken": sandbox.traffic_token.reveal() if sandbox.traffic_token else None,
    }
    if name := find_alias(sandbox):
        view["alias"] = name
    if sandbox.access_token:
        view["envdAccessToken"] = sandbox.access_token.reveal()
    return view


def render_fork(result: ForkResult, domain: str | None) -> View:
    if result.sandbox is not None:
        return {"sandbox": render_created(result.sandbox, domain)}
    assert result.error is not None
    return {"error": {"code": result.error.status, "message": result.error.message}}


def render_listed(sandbox: Sandbox) -> View:
    """Return an item of the list of sandboxes."""
    view: View = {
        "templateID": sandbox.template_id,
        "sandboxID": sandbox.id,
        "clientID": CLIENT_ID,
        "startedAt": format_time(sandbox.started_at),
        "endAt": format_time(sandbox.ends_at),
        "cpuCount": sandbox.limits.cpu_count,
        "memoryMB": sandbox.limits.memory_mb,
        "diskSizeMB": sandbox.limits.disk_mb,
        "metadata": dict(sandbox.metadata),
        "state": sandbox.state.value,
        "envdVersion": ENVD_VERSION,
    }
    if name := find_alias(sandbox):
        view["alias"] = name
    if sandbox.volume_mounts:
        view["volumeMounts"] = [{key: mount[key] for key in ("name", "path")} for mount in sandbox.volume_mounts]
    return view


def render_detail(sandbox: Sandbox, domain: str | None) -> View:
    """Return the response to a request for a single sandbox."""
    view = render_listed(sandbox)
    view["domain"] = domain
    view["isolation"] = sandbox.isolation.value  # not in E2B's own API
    view["containers"] = sandbox.containers  # not in E2B's own API
    if sandbox.host_labels:
        view["hostLabels"] = dict(sandbox.host_labels)  # not in E2B's own API
    view["allowInternetAccess"] = sandbox.network.allow_internet
    view["lifecycle"] = {"autoResume": sandbox.auto_resume, "onTimeout": sandbox.on_timeout.value}
    if sandbox.network.config is not None:
        view["network"] = dict(sandbox.network.config)
    if sandbox.access_token:
        view["envdAccessToken"] = sandbox.access_token.reveal()
    if sandbox.pause_kind is not None:
        view["pauseMode"] = "filesystem" if sandbox.pause_kind is PauseKind.FILESYSTEM else "full"
    if sandbox.memory_lost:
        view["memoryLost"] = sandbox.memory_lost
    return view


def render_snapshot(record: Snapshot, *, durable: bool) -> View:
    """`durable`: it is also in the layer store. E2B's snapshots do not say so."""
    return {"snapshotID": record.ref, "names": list(record.names), "durable": durable}


def render_metric(sample: Metric) -> View:
    return {
        "timestamp": format_time(sample.timestamp),
        "timestampUnix": int(sample.timestamp),
        "cpuCount": sample.cpu_count,
        "cpuUsedPct": round(sample.cpu_used_pct, 2),
        "memUsed": sample.mem_used,
        "memTotal": sample.mem_total,
        "memCache": sample.mem_cache,
        "diskUsed": sample.disk_used,
        "diskTotal": sample.disk_total,
    }


def render_log_entry(entry: LogEntry) -> View:
    return {
        "timestamp": format_time(entry.timestamp),
        "level": entry.level.value,
        "message": entry.message,
        "fields": dict(entry.fields),
    }


def render_log_line(entry: LogEntry) -> View:
    """Return an entry in the format that the CLI reads: each line is JSON with its level and its logger."""
    fields = {"level": entry.level.value, "logger": "engine", "message": entry.message}
    return {"timestamp": format_time(entry.timestamp), "line": json.dumps({**entry.fields, **fields})}


def make_build_id(template_id: str) -> str:
    """Return the UUID of the template's build. Clients expect one; it is derived from the id, because each template is one build."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"sandyard:template:{template_id}"))


def render_template(record: Template, defaults: Limits) -> View:
    names = list(record.aliases) or [record.id]
    return {
        "templateID": record.id,
        "buildID": make_build_id(record.id),
        "cpuCount": record.cpu_count or defaults.cpu_count,
        "memoryMB": record.memory_mb or defaults.memory_mb,
        "diskSizeMB": record.disk_mb or defaults.disk_mb,
        "public": True,
        "aliases": names,
        "names": names,
        "createdAt": format_time(UNKNOWN_TIME),
        "updatedAt": format_time(UNKNOWN_TIME),
        "createdBy": None,
        "lastSpawnedAt": None,
        "spawnCount": 0,
        "buildCount": int(record.ready),
        "envdVersion": ENVD_VERSION,
        "buildStatus": record.status.value,
    }


def render_template_build(record: Template, defaults: Limits) -> View:
    return {
        "buildID": make_build_id(record.id),
        "status": record.status.value,
        "createdAt": format_time(UNKNOWN_TIME),
        "updatedAt": format_time(UNKNOWN_TIME),
        "finishedAt": format_time(UNKNOWN_TIME),
        "cpuCount": record.cpu_count or defaults.cpu_count,
        "memoryMB": record.memory_mb or defaults.memory_mb,
        "diskSizeMB": record.disk_mb or defaults.disk_mb,
        "envdVersion": ENVD_VERSION,
    }


def render_tag(name: str, template_id: str, created_at: float) -> View:
    return {"tag": name, "buildID": make_build_id(template_id), "createdAt": format_time(created_at)}
