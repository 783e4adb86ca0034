"""Which parts of a project people see."""

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
    "verified by": "settings.verify.command",
    "set up by": "settings.setup.command",
    "agent": "defaultAgent",
    "model": "settings.agent.model",
    "permissions": "settings.agent.permissions.mode",
    "denied": "settings.agent.permissions.deny",
    "network": "settings.network.mode",
    "presets": "settings.network.presets",
    "hosts": "settings.network.allow",
    "at once": "settings.tasks.parallel",
    "task's $": "settings.tasks.budget.usd",
    "month's $": "settings.tasks.monthlyBudget.usd",
    "issue label": "settings.tasks.issueLabel",
    "forge": "settings.forge.kind",
    "API": "settings.forge.apiUrl",
    "merge by": "settings.forge.mergeMethod",
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
CREDENTIALS = {"CREDENTIAL": "kind", "HINT": "hint", "SINCE": "updatedAt"}
MEMBERS = {"ID": "id", "NAME": "name"}
