"""Columns and fields shown for projects."""

from __future__ import annotations

COLUMNS = {
    "ID": "id",
    "NAME": "name",
    "REPOSITORY": "repository",
    "BASE": "baseBranch",
    "PROBLEM": "connectionError",
    "CREATED": "createdAt",
}
FIELDS = {
    "id": "id",
    "name": "name",
    "repository": "repository",
    "base": "baseBranch",
    "problem": "connectionError",
    "verify command": "settings.verify.command",
    "setup command": "settings.setup.command",
    "agent": "defaultAgent",
    "model": "settings.agent.model",
    "permissions": "settings.agent.permissions.mode",
    "denied": "settings.agent.permissions.deny",
    "network": "settings.network.mode",
    "presets": "settings.network.presets",
    "hosts": "settings.network.allow",
    "parallel attempts": "settings.tasks.parallel",
    "task budget ($)": "settings.tasks.budget.usd",
    "monthly budget ($)": "settings.tasks.monthlyBudget.usd",
    "issue label": "settings.tasks.issueLabel",
    "forge": "settings.forge.kind",
    "API": "settings.forge.apiUrl",
    "merge method": "settings.forge.mergeMethod",
    "drafts": "settings.forge.draft",
    "labels": "settings.forge.labels",
    "reviewers": "settings.forge.reviewers",
    "assignees": "settings.forge.assignees",
    "messages": "settings.git.commitMessages",
    "author": "settings.git.author.name",
    "template": "settings.template",
    "idle seconds": "settings.idleSeconds",
    "created": "createdAt",
    "archived": "archivedAt",
}
CREDENTIALS = {"CREDENTIAL": "kind", "HINT": "hint", "UPDATED": "updatedAt"}
MEMBERS = {"ID": "id", "NAME": "name"}
