"""Queue turns."""

from __future__ import annotations

from typing import Any, cast

import pytest
from sqlalchemy import select

from sandyard.platform.db.database import Database
from sandyard.platform.db.models import UNTITLED, Event, Session, Turn
from sandyard.platform.db.models.message_parts import TextPart
from sandyard.platform.domain.agents.model import Origin, TurnStatus
from sandyard.platform.domain.agents.runner.turns import AgentTurns, make_title
from sandyard.platform.domain.users.model import Principal
from tests.unit.platform.domain.agents.turn_rows import create_turn


def text(words: str) -> TextPart:
    return {"type": "text", "text": words}


NOTICE: TextPart = {"type": "text", "text": "You work in a checkout.", "source": "platform", "about": "task"}


@pytest.mark.parametrize(
    ("parts", "title"),
    [
        ([text("Fix the login.\nIt is slow.")], "Fix the login."),
        ([NOTICE, text("\n  Fix   the\tlogin ")], "Fix the login"),
        ([text("\x1b]0;a\x07\x1b[31mFix\u202e the\x9b\u2066login\x7f")], "]0;a [31mFix the login"),
        ([text("\u202e\x1b\nFix it")], "Fix it"),
        ([text("x" * 61)], "x" * 59 + "…"),
        ([NOTICE], None),
        ([text(" \n")], None),
    ],
)
def test_title_of_a_first_message(parts: list[TextPart], title: str | None) -> None:
    assert make_title(parts) == title


@pytest.mark.parametrize(("before", "after"), [(UNTITLED, "Fix the login"), ("Mine", "Mine")])
async def test_the_first_message_names_a_session_without_a_title(database: Database, before: str, after: str) -> None:
    await create_turn(database)
    turns = AgentTurns(
        database, *cast(Any, [None]), files=cast(Any, None), git=cast(Any, None), agents=cast(Any, None),
        models=cast(Any, None), settings=cast(Any, None), clock=cast(Any, None), install=cast(Any, None),
    )  # fmt: skip
    async with database.transaction() as tx:
        row = (await tx.session.scalars(select(Session))).one()
        row.title, row.agent = before, "demo"
        caller = Principal(row.owner_id, "ada", "admin", "test")
        for words in ("Fix the login\nplease", "And then the rest"):
            await turns.queue_turn(tx, caller, row, [text(words)], key=None, origin=Origin.PERSON)
    async with database.reading() as session:
        stored = (await session.scalars(select(Session))).one()
        renamed = list(await session.scalars(select(Event).where(Event.kind == "session.renamed")))
        waiting = list(await session.scalars(select(Turn).where(Turn.status == TurnStatus.QUEUED)))
    assert stored.title == after
    assert [event.data["title"] for event in renamed] == ([after] if before == UNTITLED else [])
    assert len(waiting) >= 2
