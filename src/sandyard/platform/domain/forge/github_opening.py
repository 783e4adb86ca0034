"""Open a pull request exactly once, despite failures on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sandyard.kit.clock import Clock
from sandyard.platform.domain.forge.connection import TRIES
from sandyard.platform.domain.forge.errors import (
    ForgeError,
    ForgeInvalidError,
    ForgeUnreachableError,
)
from sandyard.platform.domain.forge.github_calls import Calls
from sandyard.platform.domain.forge.github_reading import Json, login, number_of, pull, table, tables, text, whole
from sandyard.platform.domain.forge.model import Pull, PullDraft


async def open_ones(calls: Calls, head: str) -> list[Json]:
    """Return the open pull requests of a branch of this repository. The server's filter is checked again."""
    said = await calls.every("/pulls", state="open", head=f"{calls.owner}:{head}")
    return [item for item in said if whole(item.get("number")) is not None and _of_branch(item, calls, head)]


def _of_branch(said: Json, calls: Calls, head: str) -> bool:
    of = table(said.get("head"))
    owner = text(table(of.get("user")).get("login"), 200) or text(of.get("label"), 500).partition(":")[0]
    return of.get("ref") == head and owner.lower() in ("", calls.owner.lower())


def preferred(found: Sequence[Json], base: str | None) -> Json | None:
    """Return the one against `base`, or else the oldest: a branch has one pull request, even if its base was changed."""
    against = [item for item in found if table(item.get("base")).get("ref") == base]
    return min(against or found, key=number_of, default=None)


class Opening:
    """One call of `open_or_update`, and its warnings."""

    def __init__(self, calls: Calls, draft: PullDraft, clock: Clock) -> None:
        self._calls = calls
        self._draft = draft
        self._clock = clock
        self.warnings: list[str] = []

    async def run(self) -> tuple[Pull, bool]:
        """Open or update. Idempotent: safe to retry after any failure. Returns True if it was created now."""
        found = preferred(await open_ones(self._calls, self._draft.head), self._draft.base)
        made = found is None
        if found is None:
            found, made = await self._make()
        number = number_of(found)
        if not made:
            found = {**await self._update(found), "number": number}
        base = text(table(found.get("base")).get("ref"), 250)
        if base != self._draft.base:
            self._warn(f"Pull request {number} is against {base}, not {self._draft.base}. Its base was not changed.")
        labels = await self._label(found)
        await self._assign(found)
        await self._ask_for_review(found, new=made)
        return replace(pull({**found, "labels": labels}, self._calls.web_url), warnings=tuple(self.warnings)), made

    async def _make(self) -> tuple[Json, bool]:
        draft = self._draft
        body = {
            "title": draft.title or draft.head,
            "head": draft.head,
            "base": draft.base,
            "body": draft.body or "",
            "draft": bool(draft.draft),
        }
        for attempt in range(TRIES):
            try:
                return await self._calls.change("POST", "/pulls", body, repeat=False), True
            except ForgeInvalidError as error:
                said = error.message.lower()
                if "already exists" in said and (found := await self._look()) is not None:
                    return found, False
                if "draft" not in said or not body["draft"]:
                    raise self._explained(error) from None
                body["draft"] = False
                self._warn(
                    "This repository does not support draft pull requests, so it was opened as ready for review."
                )
            except ForgeUnreachableError:
                # it may have arrived before the connection broke: check before creating it again
                if (found := await self._look()) is not None:
                    return found, True
                if attempt == TRIES - 1:
                    raise
                await self._clock.sleep(2.0**attempt)
        raise ForgeUnreachableError  # the last attempt has raised its error

    async def _look(self) -> Json | None:
        return preferred(await open_ones(self._calls, self._draft.head), self._draft.base)

    def _explained(self, error: ForgeInvalidError) -> ForgeInvalidError:
        said = error.message.lower()
        for field, branch in (("head", self._draft.head), ("base", self._draft.base)):
            if f"{field} invalid" in said or f"{field} missing" in said:
                return ForgeInvalidError(
                    f"{error.message} The branch {branch} does not exist in {self._calls.owner}/{self._calls.name}."
                )
        return error

    async def _update(self, found: Json) -> Json:
        wanted: dict[str, Any] = {}
        if self._draft.title is not None and self._draft.title != found.get("title"):
            wanted["title"] = self._draft.title
        if self._draft.body is not None and _lines(self._draft.body) != _lines(text(found.get("body"), 1 << 20)):
            wanted["body"] = self._draft.body
        return await self._calls.change("PATCH", f"/pulls/{found['number']}", wanted) if wanted else found

    async def _label(self, found: Json) -> list[Json]:
        """Add missing labels. GitHub creates labels that the repository does not have."""
        present = tables(found.get("labels"))
        has = {text(label.get("name")).lower() for label in present}
        missing = [label for label in self._draft.labels if label.lower() not in has]
        if missing:
            try:
                return tables(
                    await self._calls.send(
                        "POST", f"/issues/{found['number']}/labels", {"labels": missing}, repeat=True
                    )
                )
            except ForgeError as error:
                self._warn(f"Could not set the labels {', '.join(missing)}. {error.message}")
        return present

    async def _assign(self, found: Json) -> None:
        has = {login(person).lower() for person in tables(found.get("assignees"))}
        missing = [name for name in self._draft.assignees if name.lower() not in has]
        if not missing:
            return
        try:
            said = await self._calls.send(
                "POST", f"/issues/{found['number']}/assignees", {"assignees": missing}, repeat=True
            )
        except ForgeError as error:
            self._warn(f"Could not assign {', '.join(missing)}. {error.message}")
            return
        assigned = {login(person).lower() for person in tables(table(said).get("assignees"))}
        refused = [name for name in missing if name.lower() not in assigned]
        if refused:  # GitHub silently leaves out unknown users
            self._warn(
                f"Could not assign {', '.join(refused)}: only people with read access to the repository can be assigned."
            )

    async def _ask_for_review(self, found: Json, *, new: bool) -> None:
        """Request reviews, from nobody twice. `organisation/team` requests a team."""
        asked = {login(person).lower() for person in tables(found.get("requested_reviewers"))}
        asked |= {text(team.get("slug"), 200).lower() for team in tables(found.get("requested_teams"))}
        missing = [name for name in self._draft.reviewers if name.rpartition("/")[2].lower() not in asked]
        if missing and not new:
            reviews = await self._calls.every(f"/pulls/{found['number']}/reviews")
            done = {login(review.get("user")).lower() for review in reviews}
            missing = [name for name in missing if name.lower() not in done]
        if not missing or not await self._asked(found, missing, tell=len(missing) == 1):
            return
        for name in missing if len(missing) > 1 else ():  # one invalid reviewer makes GitHub reject all of them
            await self._asked(found, [name], tell=True)

    async def _asked(self, found: Json, names: Sequence[str], *, tell: bool) -> bool:
        """Request reviews. Returns True if GitHub rejects one of them."""
        body = {
            "reviewers": [name for name in names if "/" not in name],
            "team_reviewers": [name.rpartition("/")[2] for name in names if "/" in name],
        }
        try:
            await self._calls.send("POST", f"/pulls/{found['number']}/requested_reviewers", body, repeat=True)
        except ForgeInvalidError as error:
            if tell:
                self._warn(f"Could not request a review from {names[0]}. {error.message}")
            return True
        except ForgeError as error:
            self._warn(f"Could not request a review from {', '.join(names)}. {error.message}")
        return False

    def _warn(self, sentence: str) -> None:
        self.warnings.append(sentence)


def _lines(body: str) -> str:
    return body.replace("\r\n", "\n").strip()  # GitHub stores the line breaks of browsers
