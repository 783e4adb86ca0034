"""Build the ASGI application: routes and middleware."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import APIRouter, FastAPI

from sandyard import __version__
from sandyard.kit.telemetry import TelemetryMiddleware
from sandyard.platform.api import (
    audit,
    health,
    login,
    metrics,
    openapi,
    problems,
    projects,
    secrets,
    status,
    tokens,
    users,
)
from sandyard.platform.api.audit_middleware import AuditMiddleware
from sandyard.platform.api.client_address import ClientAddressMiddleware
from sandyard.platform.api.guard import GuardMiddleware
from sandyard.platform.api.large_responses import LargeResponseMiddleware
from sandyard.platform.api.limits import RateLimiter
from sandyard.platform.api.mcp import endpoint as mcp
from sandyard.platform.api.metrics import Metrics, MetricsMiddleware
from sandyard.platform.api.outer_middleware import OuterMiddleware
from sandyard.platform.api.preview_proxy.middleware import PreviewMiddleware
from sandyard.platform.api.request_slots import RequestSlotsMiddleware
from sandyard.platform.api.routers import PREFIX
from sandyard.platform.api.web import STATIC, WebApplication
from sandyard.platform.api.webhooks import UnverifiedBodies

if TYPE_CHECKING:
    from sandyard.platform.domain.services import Services

_CORE_ROUTERS = (
    health.router,
    metrics.router,
    mcp.router,
    login.router,
    users.router,
    tokens.router,
    projects.router,
    secrets.router,
    audit.router,
    status.router,
)


def build(services: Services, routers: Iterable[APIRouter], *, static: Path = STATIC) -> FastAPI:
    """Build the application.

    `routers` are added to those of the core (users, projects, secrets …). `static` is the built web application, which answers browsers
    where no route matches.

    Every middleware is plain ASGI, so that streams pass through unbuffered. From the outside in: the address of clients behind proxies;
    previews, which handle their requests completely; the request slots, which let users take turns; the outer middleware, which sets the
    request id and handles unexpected errors; traces; metrics; the guard; the audit trail, which records the outcome; the limit on large
    responses; then routing.
    """
    app = FastAPI(
        title="Sandyard",
        version=__version__,
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,  # FastAPI's page loads its scripts from third-party servers
        redoc_url=None,
        redirect_slashes=False,
        separate_input_output_schemas=False,
    )
    app.state.services = services
    app.state.limits = RateLimiter(services.settings, services.clock)
    app.state.unverified_webhooks = UnverifiedBodies()
    app.state.metrics = Metrics()
    problems.install(app)
    for router in (*_CORE_ROUTERS, *routers):
        app.router.routes.extend(router.routes)
    app.router.default = WebApplication(app.router.default, services.settings, static)
    for layer, options in (
        (LargeResponseMiddleware, {}),
        (AuditMiddleware, {}),
        (GuardMiddleware, {"settings": services.settings}),
        (MetricsMiddleware, {"metrics": app.state.metrics}),
        (TelemetryMiddleware, {}),
        (OuterMiddleware, {"https": (services.settings.public_url or "").startswith("https:")}),
        (RequestSlotsMiddleware, {}),
        (PreviewMiddleware, {"services": services}),
        (ClientAddressMiddleware, {"proxies": services.settings.trusted_proxies}),
    ):
        app.add_middleware(layer, **options)  # the last one added is the outermost
    app.openapi = lambda: openapi.make_document(app)  # type: ignore[method-assign]
    return app
