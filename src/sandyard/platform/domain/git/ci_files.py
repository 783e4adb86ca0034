"""Find commits that change what continuous integration runs.

A forge runs these files with the repository's secrets as soon as they are pushed, before anybody has reviewed them.
"""

from __future__ import annotations

from collections.abc import Sequence

from sandyard.platform.domain.repositories.model import RepositoryReader
from sandyard.platform.domain.repositories.output import decode_name, parse_output

CI_FILES = (
    ".github/workflows/**",
    ".github/actions/**",
    ".gitea/workflows/**",
    ".forgejo/workflows/**",
    ".gitlab-ci.yml",
    ".gitlab/ci/**",
    ".circleci/**",
    ".buildkite/**",
    ".semaphore/**",
    ".tekton/**",
    ".woodpecker/**",
    ".woodpecker.y*ml",
    ".drone.y*ml",
    ".travis.yml",
    ".cirrus.yml",
    ".appveyor.yml",
    "appveyor.yml",
    "azure-pipelines.y*ml",
    "bitbucket-pipelines.yml",
    "Jenkinsfile",
)
"""Patterns of these files, as of git. Case is ignored."""
_MAX_LISTING_BYTES = 1 << 20


async def list_changed_ci_files(repository: RepositoryReader, commit: str, known: Sequence[str]) -> list[str]:
    """Return the CI files that any commit of `commit` changes which is neither in the commits `known` nor on the remote.

    Each commit counts, not only the result: a tag can name any of them. A merge counts if it changes a file compared with
    all of its parents.
    """
    output, _ = await repository.read(
        *("log", "-z", "--format=", "--name-only", "--no-renames", "--full-history", "-c", "--no-color", "--no-notes"),
        *(commit, "--not", *known, "--remotes=origin", "--", *(f":(top,icase,glob){pattern}" for pattern in CI_FILES)),
        limit=_MAX_LISTING_BYTES,
    )
    return await parse_output(output, _parse_names)


def _parse_names(output: bytes) -> list[str]:
    names = (name.strip(b"\n") for name in output.split(b"\0"))
    return list(dict.fromkeys(decode_name(name) for name in names if name))
