"""Prepare a checkout once for a snapshot, and adopt it in every sandbox created from that snapshot."""

from __future__ import annotations

from dataclasses import dataclass

from sandyard.platform.domain.git.errors import GitFailedError
from sandyard.platform.domain.git.guest_run import Runner, script
from sandyard.platform.domain.git.guest_transfer import ADD_SHALLOW, TRANSFER_S, upload
from sandyard.platform.domain.git.model import PREPARED, Bundle, Identity
from sandyard.platform.domain.git.raw import parsed, shown

NAMED = 20
"""Maximum number of files to report."""
_OTHER = 92


@dataclass(frozen=True, slots=True)
class Sealed:
    """Result of sealing a checkout.

    `restored`: tracked files that differed from the commit and were restored. `ignored`: untracked files that were not
    ignored and are ignored now. Both list at most NAMED files; the counts include all.
    """

    restored: tuple[str, ...]
    restored_count: int
    ignored: tuple[str, ...]
    ignored_count: int


# a name that contains a newline cannot be written to a file of patterns
_SEAL = script(f"""commit=$1
mkdir -p "$d/info" || exit 1
t=$(mktemp -d) || exit 1
trap 'rm -rf -- "$t"' EXIT
g diff --name-only -z --no-ext-diff --ignore-submodules=dirty "$commit" -- >"$t/restored" || exit 1
rm -f -- "$d/MERGE_HEAD" "$d/MERGE_MSG" "$d/CHERRY_PICK_HEAD" "$d/REVERT_HEAD" "$d/index.lock"
g checkout -q -f --detach "$commit" -- || exit 1
! g show-ref -q --verify refs/heads/{PREPARED} || g update-ref -d refs/heads/{PREPARED} || exit 1
g ls-files -z --others --exclude-standard --directory --no-empty-directory >"$t/ignored" || exit 1
sed -z '/\\n/d; s/[][*?\\\\ !#]/\\\\&/g; s|^|/|' <"$t/ignored" | tr '\\0' '\\n' >>"$d/info/exclude" || exit 1
g update-index -q --refresh
for list in restored ignored; do
  printf '%s\\0' "$(tr -cd '\\000' <"$t/$list" | wc -c)"
  head -z -n {NAMED} -- "$t/$list"
  printf '\\0'
done
""")

# Sessions wait for this, and each git command is a process in the sandbox: what is set already is not written again.
_ADOPT = script(f"""bundle=$1 commit=$2 base=$3 branch=$4 name=$5 email=$6 origin=$7 shallow=$8
[ -z "$bundle" ] || trap 'rm -f -- "$bundle"' EXIT
declare -A is
while IFS= read -r -d '' entry; do is[${{entry%%$'\\n'*}}]=${{entry#*$'\\n'}}; done < <(
  g config --local -z --get-regexp '^(sandyard\\.checkout|user\\.name|user\\.email|remote\\.origin\\.url)$')
[ "${{is[sandyard.checkout]:-}}" != "$branch" ] || exit 0
[ "${{is[sandyard.checkout]:-}}" = {PREPARED} ] || exit {_OTHER}
if [ -n "$bundle" ]; then
{ADD_SHALLOW}  g bundle unbundle "$bundle" >/dev/null || exit 1
fi
read -r at <"$d/HEAD"
if [ "$at" != "$commit" ]; then
  g -c checkout.workers=0 checkout -q -f --detach "$commit" -- || exit 1
fi
printf 'update %s\\0%s\\0\\0' "refs/remotes/origin/$base" "$commit" "refs/heads/$branch" "$commit" |
  g update-ref --no-deref -z --stdin || exit 1
g symbolic-ref HEAD "refs/heads/$branch" || exit 1
[ "${{is[user.name]:-}}" = "$name" ] || g config user.name "$name" || exit 1
[ "${{is[user.email]:-}}" = "$email" ] || g config user.email "$email" || exit 1
[ -z "$origin" ] || [ "${{is[remote.origin.url]:-}}" = "$origin" ] || g config remote.origin.url "$origin" || exit 1
g config sandyard.checkout "$branch"
""")


async def seal(runner: Runner, commit: str) -> Sealed:
    ran = await runner.script(_SEAL, commit, timeout_s=TRANSFER_S)
    return await parsed(ran.stdout, _parse)


def _parse(output: bytes) -> Sealed:
    lists: list[tuple[int, tuple[str, ...]]] = []
    rest = output
    for _ in range(2):
        count, _, rest = rest.partition(b"\0")
        names = []
        while rest and not rest.startswith(b"\0"):
            name, _, rest = rest.partition(b"\0")
            names.append(shown(name))
        rest = rest[1:]
        lists.append((int(count) if count.isdigit() else len(names), tuple(names[:NAMED])))
    (restored_count, restored), (ignored_count, ignored) = lists
    return Sealed(restored, restored_count, ignored, ignored_count)


async def adopt(
    runner: Runner,
    bundle: Bundle | None,
    *,
    commit: str,
    base_branch: str,
    branch: str,
    identity: Identity,
    origin: str,
) -> None:
    path = "" if bundle is None else await upload(runner, bundle.path)
    shallow = "" if bundle is None else "\n".join(bundle.shallow)
    ran = await runner.script(
        _ADOPT,
        *(path, commit, base_branch, branch, identity.name, identity.email, origin, shallow),
        ok=(0, _OTHER),
        timeout_s=TRANSFER_S,
    )
    if ran.exit_code == _OTHER:
        raise GitFailedError(f"{runner.folder} already contains another repository, or another branch of this one.")
