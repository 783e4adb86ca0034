"""News of a pull request with more comments than are listed or remembered."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sandyard.platform.db.models.git_details import ReportedNews
from sandyard.platform.domain.forge import feedback
from sandyard.platform.domain.forge.feedback import find_news
from sandyard.platform.domain.forge.model import Pull, PullState, Remark, Review

START = datetime(2026, 1, 1, tzinfo=UTC)
FIRST_PAGE, LAST_PAGES = 10, 40


@pytest.fixture(autouse=True)
def remembers_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feedback, "MAX_REMEMBERED", 50)


def make_comment(number: int, author: str = "stranger") -> Remark:
    return Remark("comment", str(number), author, "text", START + timedelta(seconds=number))


def list_comments(comments: list[Remark]) -> list[Remark]:
    """Return what is read of a long list: the first page and the last ones."""
    return comments if len(comments) <= FIRST_PAGE + LAST_PAGES else comments[:FIRST_PAGE] + comments[-LAST_PAGES:]


def report(reported: ReportedNews, listed: list[Remark]) -> tuple[ReportedNews, list[str]]:
    """Return what was reported until now, and the ids of the new remarks."""
    pull = Pull(1, "u", "t", PullState.OPEN, False, "h", "b", "c", remarks=tuple(listed))
    news = find_news(reported, "open", Review.NONE, pull)
    return news.reported, [part["remarkId"] for part in news.parts]


@pytest.mark.parametrize("maintainer_at", [1, FIRST_PAGE + 5])
def test_strangers_cannot_have_an_old_remark_reported_again(maintainer_at: int) -> None:
    comments = [make_comment(number) for number in range(1, maintainer_at)]
    comments.append(make_comment(maintainer_at, "maintainer"))
    reported, new = report({}, list_comments(comments))
    reports = new.count(str(maintainer_at))
    for number in range(maintainer_at + 1, 400):
        comments.append(make_comment(number))
        if number % 20 == 0:
            reported, new = report(reported, list_comments(comments))
            reports += new.count(str(maintainer_at))
    remaining = [comment for comment in comments if comment.author == "maintainer" or int(comment.id) > 350]
    reported, new = report(
        reported, list_comments(remaining)
    )  # strangers have deleted comments, so that it is on the first page again
    reports += new.count(str(maintainer_at))
    assert reports == 1
    assert len(reported["remarks"]) <= feedback.MAX_REMEMBERED + FIRST_PAGE + LAST_PAGES + 20


def test_new_remarks_are_reported_after_others_were_forgotten() -> None:
    comments = [make_comment(number) for number in range(1, 20)]
    reported, _ = report({}, list_comments(comments))
    for number in range(20, 400):
        comments.append(make_comment(number))
        if number % 20 == 0:
            reported, _ = report(reported, list_comments(comments))
    review = Remark("review", "7", "maintainer", "text", START + timedelta(seconds=500))
    _, new = report(reported, [*list_comments(comments), make_comment(400, "maintainer"), review])
    assert new[-2:] == ["400", "7"]
