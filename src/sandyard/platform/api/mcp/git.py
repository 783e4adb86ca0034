"""MCP tools: Git in sandboxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from sandyard.platform.api.git_views import DiffView, FileDiffView, StatusView
from sandyard.platform.api.mcp.arguments import SandboxId
from sandyard.platform.api.mcp.tool import Call, Toolbox
from sandyard.platform.api.refs import Against, RepositoryPath
from sandyard.platform.api.schema import Input, example

tools = Toolbox()
MAX_ENTRIES = 500
PATCH_LIMIT = 80_000


class GitStatus(Input):
    model_config = example(sandboxId="sbx_00mwhnkzb5gfh26ygacc")

    sandbox_id: SandboxId


class GitDiff(Input):
    model_config = example(sandboxId="sbx_00mwhnkzb5gfh26ygacc", against="base")

    sandbox_id: SandboxId
    against: Against = Field(
        default="base", description="base: all changes of the branch. head: uncommitted changes. Or a commit."
    )
    paths: list[RepositoryPath] = Field(default_factory=list, max_length=1000, description="Only these paths.")
    patches: bool = Field(default=True, description="Include the changed lines.")


@tools.add("git_status", title="Get Git status", reads=True)
async def git_status(call: Call, arguments: GitStatus) -> StatusView:
    """Get the branch checked out in a sandbox and the changes since its last commit.

    Does not resume the sandbox: for a paused one, returns the last saved state.
    """
    found = StatusView.model_validate(await call.services.git.get_status(call.caller, arguments.sandbox_id))
    if len(found.entries) > MAX_ENTRIES:
        found.entries, found.truncated = found.entries[:MAX_ENTRIES], True
    return found


@tools.add("git_diff", title="Show changes", reads=True)
async def git_diff(call: Call, arguments: GitDiff) -> DiffView:
    """Show the changes in a sandbox's checkout, file by file.

    Does not resume the sandbox. Files that are too large to show are marked as truncated: request single paths then.
    """
    diff = await call.services.git.get_diff(
        call.caller, arguments.sandbox_id, against=arguments.against, paths=arguments.paths, patches=arguments.patches
    )
    return limit_size(diff)


def limit_size(diff: Any) -> DiffView:
    """Limit a diff to what a model can read: patches up to a limit, in order; later files without patches."""
    view = DiffView.model_validate(diff)
    view.truncated = view.truncated or len(view.files) > MAX_ENTRIES
    view.files = view.files[:MAX_ENTRIES]
    _drop_large_patches(view.files)
    return view


def _drop_large_patches(files: Sequence[FileDiffView]) -> None:
    left = PATCH_LIMIT
    for file in files:
        if file.patch is None:
            continue
        if len(file.patch) > left:
            file.patch, file.truncated = None, True
        else:
            left -= len(file.patch)
