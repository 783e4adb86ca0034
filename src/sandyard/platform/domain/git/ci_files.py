"""Find commits that change what continuous integration runs, or that bring back what it ran earlier.

A forge runs these files with the repository's secrets as soon as they are pushed, before anybody has reviewed them.
"""

from __future__ import annotations

from collections.abc import Sequence

from sandyard.kit.errors import ConflictError
from sandyard.platform.domain.repositories.bare_repository import READ_TIMEOUT_S, BareRepository
from sandyard.platform.domain.repositories.model import RepositoryReader
from sandyard.platform.domain.repositories.output import decode_name, parse_output

CI_FILES = (
    ".github/workflows/**",
    ".github/actions/**",
    ".gitea/workflows/**",
    ".gitea/actions/**",
    ".forgejo/workflows/**",
    ".forgejo/actions/**",
    ".gitlab-ci.yml",
    ".gitlab/ci/**",
    ".circleci/**",
    ".buildkite/**",
    ".buildkite.y*ml",
    "buildkite.y*ml",
    ".semaphore/**",
    ".tekton/**",
    ".woodpecker/**",
    ".woodpecker.y*ml",
    ".drone.y*ml",
    ".drone.star",
    ".drone.jsonnet",
    ".travis.yml",
    ".cirrus.yml",
    ".cirrus.star",
    ".builds/*.yml",
    ".build.yml",
    ".appveyor.yml",
    "appveyor.yml",
    "azure-pipelines.y*ml",
    "bitbucket-pipelines.yml",
    "Jenkinsfile",
)
"""Patterns of these files, as of git. Case is ignored."""
_PATHSPECS = tuple(f":(top,icase,glob){pattern}" for pattern in CI_FILES)
_MAX_LISTING_BYTES = 1 << 20
_MAX_DIFFERENCES_BYTES = 16 << 20


async def list_changed_ci_files(repository: RepositoryReader, commit: str, known: Sequence[str]) -> list[str]:
    """Return the CI files that any commit of `commit` changes which is neither in the commits `known` nor on the remote.

    Each commit counts, not only the result: a tag can name any of them. A merge counts if it changes a file compared with
    all of its parents.
    """
    output, _ = await repository.read(
        *("log", "-z", "--format=", "--name-only", "--no-renames", "--full-history", "-c", "--no-color", "--no-notes"),
        *(commit, "--not", *known, "--remotes=origin", "--", *_PATHSPECS),
        limit=_MAX_LISTING_BYTES,
    )
    return await parse_output(output, _parse_names)


async def list_outdated_ci_files(
    repository: BareRepository, commit: str, known: Sequence[str], references: Sequence[str], *, max_commits: int
) -> list[str]:
    """Return the CI files of the first of these commits whose CI files are not exactly those of one of the `references`.

    Checks `commit`, wherever it is, and all commits in its history that are neither in those of the commits `known` nor on the remote:
    they may build on old commits, or merge them, and so have old CI files without changing any. The first reference must exist; others
    that the repository lacks are ignored. Raises ConflictError if there are more than `max_commits`.
    """
    result = await repository.run(
        *("log", "-z", "--format=%T", "--no-show-signature", "--no-notes", f"--max-count={max_commits + 1}"),
        *(commit, "--not", *known, "--remotes=origin", "--"),
        timeout_s=READ_TIMEOUT_S,
    )
    added = result.stdout.decode().replace("\0", " ").split()
    if len(added) > max_commits:
        raise ConflictError(
            f"The branch has more than {max_commits} new commits, too many to check which CI files they have. Combine them, or push again "
            "once the project's owner has allowed changes of such files (git.ciFiles)."
        )
    remaining = list(dict.fromkeys((await repository.get_tree(commit), *added)))
    files: list[str] = []
    for reference in (references[0], *await repository.filter_known(references[1:])):
        different = await _compare_ci_files(repository, await repository.get_tree(reference), remaining)
        remaining = [tree for tree in remaining if tree in different]
        if not remaining:
            return []
        files = files or different[remaining[0]]
    return files


async def _compare_ci_files(repository: BareRepository, reference: str, trees: Sequence[str]) -> dict[str, list[str]]:
    """Return those of the trees whose CI files differ from those of the tree `reference`, with the names of the files."""
    pairs = "".join(f"{reference} {tree}\n" for tree in trees).encode()
    result = await repository.run(
        *("diff-tree", "--stdin", "-r", "-z", "--raw", "--no-abbrev", "--no-renames", "--", *_PATHSPECS),
        stdin=pairs,
        limit=_MAX_DIFFERENCES_BYTES,
        timeout_s=READ_TIMEOUT_S,
    )
    compared = await parse_output(result.stdout, _parse_differences)
    different = {tree: files for tree, files in compared.items() if files}
    if result.truncated:  # what was not compared completely counts as different
        shown = next(iter(different.values()))
        compared.popitem()
        different |= {tree: shown for tree in trees if tree not in compared}
    return different


def _parse_differences(output: bytes) -> dict[str, list[str]]:
    """Parse `diff-tree --stdin -z --raw` for pairs of trees: a line with each pair, then two fields per different file."""
    compared: dict[str, list[str]] = {}
    tree, position = "", 0
    while position < len(output):
        if output.startswith(b":", position):
            name = output.find(b"\0", position) + 1
            end = output.find(b"\0", name) if name else -1
            if end < 0:
                break  # the output was truncated
            compared[tree].append(decode_name(output[name:end]))
        else:
            end = output.find(b"\n", position)
            if end < 0:
                break
            tree = output[position:end].decode().partition(" ")[2]
            compared[tree] = []
        position = end + 1
    return compared


def _parse_names(output: bytes) -> list[str]:
    names = (name.strip(b"\n") for name in output.split(b"\0"))
    return list(dict.fromkeys(decode_name(name) for name in names if name))
