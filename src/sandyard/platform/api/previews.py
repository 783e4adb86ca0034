"""List a sandbox's ports and create preview URLs for them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Request
from pydantic import Field

from sandyard.platform.api.audit_middleware import add_audit_detail
from sandyard.platform.api.auth import Caller
from sandyard.platform.api.dependencies import inject
from sandyard.platform.api.large_responses import limit_large_responses
from sandyard.platform.api.limits import limit_rate
from sandyard.platform.api.routers import api_router
from sandyard.platform.api.sandboxes import SandboxId
from sandyard.platform.api.schema import Input, Instant, Model, example
from sandyard.platform.domain.previews import service

router = api_router("previews")
Previews = Annotated[service.Previews, inject("previews")]
_URL = "http://3000-00mwhnkzb5gfh26ygacc.localhost:8700/"


class PortView(Model):
    model_config = example(port=3000, address="127.0.0.1", process="node", url=_URL)

    port: int
    address: str = Field(description="The address it listens on. `0.0.0.0` and `::` mean every address of the sandbox.")
    process: str | None = Field(description="The program's name, if known.")
    url: str | None = Field(
        description="The preview URL, for browsers that have the preview's cookie. Null if the platform has no address for previews."
    )


class PortList(Model):
    items: list[PortView]
    sleeping: bool = Field(description="True if the sandbox is paused. Open ports are unknown until it is resumed.")


class NewPreview(Input):
    model_config = example(port=3000, path="/")

    port: int = Field(ge=1, le=65535)
    path: str = Field("/", max_length=2000, description="The path to open, including the query.")


class PreviewView(Model):
    model_config = example(url=f"{_URL}?sandyard_ticket=AXk0…", expiresAt="2026-01-31T10:00:30.000Z")

    url: str = Field(description="Opens the preview in the first browser that visits it.")
    expires_at: Instant = Field(
        description="When the URL expires. After opening it, the browser's cookie is used instead."
    )


class ShownPreview(Model):
    model_config = example(path="/settings?tab=team")

    path: str | None = Field(description="Null if no page was opened in a frame since the platform started.")


@router.get("/sandboxes/{sandbox_id}/ports", name="port.list", dependencies=[limit_large_responses(slow=True)])
async def list_(caller: Caller, previews: Previews, sandbox_id: SandboxId) -> PortList:
    """List TCP ports with a listening process. The list is at most 2 seconds old. Does not resume the sandbox or count as activity."""
    return PortList.model_validate(await previews.list_ports(caller, sandbox_id))


@router.post(
    "/sandboxes/{sandbox_id}/previews", name="preview.create", status_code=201, dependencies=[limit_rate("execute")]
)
async def create(
    request: Request, caller: Caller, previews: Previews, sandbox_id: SandboxId, body: NewPreview
) -> PreviewView:
    """Create a URL that shows a port of the sandbox in a browser tab or frame. Valid once, for 30 seconds."""
    add_audit_detail(request, port=body.port)
    return PreviewView.model_validate(await previews.create(caller, sandbox_id, body.port, body.path))


@router.get("/sandboxes/{sandbox_id}/previews/{port}", name="preview.get")
async def get(
    caller: Caller, previews: Previews, sandbox_id: SandboxId, port: Annotated[int, Path(ge=1, le=65535)]
) -> ShownPreview:
    """Get the path of the page you last opened in a frame for this port.

    Changes a page makes to its URL without loading another page are not tracked.
    """
    return ShownPreview(path=await previews.get_shown_path(caller, sandbox_id, port))
