"""Read the commits of a mirror or a checkout.

All data may come from a sandbox: a commit may have a message of any size, and any date.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from sandyard.platform.domain.repositories.errors import GitFailedError
from sandyard.platform.domain.repositories.model import Commit, Identity, RepositoryReader
from sandyard.platform.domain.repositories.output import parse_output

_MAX_LISTING_BYTES = 8 << 20
_FIELD_COUNT = 10
_FORMAT = "%H%x00%P%x00%an%x00%ae%x00%at%x00%cn%x00%ce%x00%ct%x00%s%x00%b"
_MAX_ID, _MAX_PARENTS, _MAX_PERSON, _MAX_DATE, _MAX_SUBJECT, _MAX_BODY = 64, 6500, 300, 20, 1000, 20_000
"""Maximum number of characters of each field to return, because a commit may have any number."""


async def read_history(repository: RepositoryReader, rev_range: str, *, limit: int, skip: int = 0) -> list[Commit]:
    """Return at most `limit` commits, newest first. Very long messages are truncated.

    Returns an empty list if there are no commits yet. Raises GitFailedError if the range names a missing commit.
    """
    try:
        output, truncated = await repository.read(
            *(
                "log",
                "-z",
                f"--format={_FORMAT}",
                "--encoding=UTF-8",
                "--no-color",
                "--no-show-signature",
                "--no-notes",
            ),
            *(f"--max-count={limit}", f"--skip={skip}", "--end-of-options", rev_range, "--"),
            limit=_MAX_LISTING_BYTES,
        )
    except GitFailedError:
        if rev_range == "HEAD" and not await _has_commits(repository):
            return []
        raise
    return await parse_output(output, lambda output: _parse_commits(output, limit, truncated))


def _parse_commits(output: bytes, limit: int, truncated: bool) -> list[Commit]:
    fields = output.split(b"\0", max(limit, 0) * _FIELD_COUNT)
    complete = len(fields) // _FIELD_COUNT
    if truncated and complete and len(fields) == complete * _FIELD_COUNT:
        complete -= 1  # the body of the last commit may be cut off
    return [_parse_commit(fields[at : at + _FIELD_COUNT]) for at in range(0, complete * _FIELD_COUNT, _FIELD_COUNT)]


async def _has_commits(repository: RepositoryReader) -> bool:
    try:
        await repository.read("rev-parse", "-q", "--verify", "HEAD^{commit}")
    except GitFailedError:
        return False
    return True


def _parse_commit(fields: Sequence[bytes]) -> Commit:
    return Commit(
        id=_decode(fields[0], _MAX_ID),
        parents=tuple(_decode(fields[1], _MAX_PARENTS).split()),
        author=Identity(_decode(fields[2], _MAX_PERSON), _decode(fields[3], _MAX_PERSON)),
        committer=Identity(_decode(fields[5], _MAX_PERSON), _decode(fields[6], _MAX_PERSON)),
        authored_at=_parse_date(_decode(fields[4], _MAX_DATE)),
        committed_at=_parse_date(_decode(fields[7], _MAX_DATE)),
        subject=_decode(fields[8], _MAX_SUBJECT),
        body=_decode(fields[9].strip(b"\n"), _MAX_BODY),
    )


def _decode(field: bytes, limit: int) -> str:
    return field[: limit * 4].decode(errors="replace")[:limit]


def _parse_date(text: str) -> datetime:
    """Parse a date. Commits may contain any date; one that cannot be represented becomes the epoch."""
    try:
        return datetime.fromtimestamp(int(text), UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)
