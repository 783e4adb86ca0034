#!/usr/bin/env bash
# Restore HEAD, its branch, the index and the files from a commit of save_work_tree.sh.
# Arguments: folder commit.
# Exit codes: 92 it is not such a commit.
. ./enter_checkout.sh
commit=$1
. ./read_work_tree_commit.sh
branch= unborn=
while read -r name value; do
  case $name in branch:) branch=$value ;; unborn:) unborn=$value ;; esac
done <<<"$kind"
if [ -e "$d/rebase-merge" ] || [ -e "$d/rebase-apply" ]; then g rebase --quit 2>/dev/null || g am --quit 2>/dev/null; fi
rm -f -- "$d/MERGE_HEAD" "$d/MERGE_MSG" "$d/MERGE_MODE" "$d/CHERRY_PICK_HEAD" "$d/REVERT_HEAD"
g -c checkout.workers=0 read-tree --reset -u "$commit" && g clean -ffdq || exit 1
g read-tree -m "$commit" "$index" || exit 1
if [ -n "$unborn" ]; then g symbolic-ref HEAD "refs/heads/$branch" && g update-ref -d "refs/heads/$branch" || exit 1
elif [ -n "$branch" ]; then
  g update-ref -m 'sandyard: restored' "refs/heads/$branch" "$head" && g symbolic-ref HEAD "refs/heads/$branch" || exit 1
else g update-ref --no-deref -m 'sandyard: restored' HEAD "$head" || exit 1; fi
g update-index -q --refresh
exit 0
