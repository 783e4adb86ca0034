"""Pull requests like those of GitHub: refused under the same conditions, merged by real git, drafts changed only through GraphQL."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tests.forge.calls import Answer, Request, refusal
from tests.forge.repositories import GitError, Repository

if TYPE_CHECKING:
    from tests.forge.facade import GitHub

MUTATIONS = {"markPullRequestReadyForReview": False, "convertPullRequestToDraft": True}


class Pulls:
    def __init__(self, github: GitHub) -> None:
        self._github = github

    def correct(self, request: Request) -> Answer | None:
        """Return None, because the answer of emulate is correct."""
        if request.method == "POST" and request.rest == "pulls":
            return self._open(request)
        if request.method == "PUT" and (found := re.fullmatch(r"pulls/(\d+)/merge", request.rest)):
            return self._merge(request, int(found[1]))
        if request.method == "PATCH" and re.fullmatch(r"pulls/\d+", request.rest):
            request.body = {name: value for name, value in (request.body or {}).items() if name != "draft"}
        if request.method == "POST" and (found := re.fullmatch(r"issues/(\d+)/assignees", request.rest)):
            return self._assign(request, int(found[1]))
        if request.method == "GET" and (found := re.fullmatch(r"pulls/(\d+)/files", request.rest)):
            return self._files(request, int(found[1]))
        return None

    def _open(self, request: Request) -> Answer | None:
        repository, body = _repository(request), request.body or {}
        owner, _, head = str(body.get("head", "")).rpartition(":")
        base = str(body.get("base", ""))
        with self._github.lock:
            for name, branch in (("head", head), ("base", base)):
                if repository.head(branch) is None or (name == "head" and owner not in ("", repository.owner)):
                    return _invalid({"field": name, "code": "invalid"})
            if not repository.git("rev-list", "-1", f"{base}..{head}"):
                return _invalid({"code": "custom", "message": f"No commits between {base} and {head}"})
            query = f"/repos/{repository.slug}/pulls?state=open&base={base}&head={repository.owner}:{head}"
            if self._github.root_call("GET", query):
                message = f"A pull request already exists for {repository.owner}:{head}."
                return _invalid({"code": "custom", "message": message})
            answer = self._github.forward(request)
            if answer.status == 201:
                commits = repository.resolve(base), repository.resolve(head)
                facts = self._github.describe_changes(repository, str(commits[0]), str(commits[1]))
                self._github.update_pull(repository, {"number": answer.body["number"], "base_sha": commits[0], **facts})
                known = {name: value for name, value in facts.items() if name != "head_sha"}
                answer.body |= {**known, "mergeable": None, "mergeable_state": "unknown"}  # GitHub computes it later
            return answer

    def _merge(self, request: Request, number: int) -> Answer:
        repository, body = _repository(request), request.body or {}
        method = body.get("merge_method", "merge")
        with self._github.lock:
            pull = self._github.root_call("GET", f"/repos/{repository.slug}/pulls/{number}")
            base, head = pull["base"]["ref"], pull["head"]["ref"]
            if pull["draft"]:
                return refusal(405, "Pull Request is still a draft")
            if pull["state"] != "open" or repository.head(head) is None:
                return refusal(405, "Pull Request is not mergeable")
            if body.get("sha") not in (None, repository.head(head)):
                return refusal(409, "Head branch was modified. Review and try the merge again.")
            default = (
                f"Merge pull request #{number} from {repository.owner}/{head}"
                if method == "merge"
                else f"{pull['title']} (#{number})"
            )
            before = str(repository.head(base))
            try:
                made = repository.merged(
                    base,
                    head,
                    method=method,
                    title=body.get("commit_title") or default,
                    message=body.get("commit_message") or "",
                )
            except GitError:
                return refusal(405, "Pull Request is not mergeable")
            self._github.emulate.call_route("merging", {"slug": repository.slug, "number": number, "commit": made})
            repository.git("update-ref", f"refs/heads/{base}", made)
            answer = self._github.forward(request)
            if answer.status != 200:
                repository.git("update-ref", f"refs/heads/{base}", before)
                return refusal(405, answer.body["message"])
            answer.body["sha"] = made
            if self._github.root_call("GET", f"/repos/{repository.slug}")["delete_branch_on_merge"]:
                repository.git("update-ref", "-d", f"refs/heads/{head}")
            self._github.synchronize(repository)
            return answer

    def _assign(self, request: Request, number: int) -> Answer:
        """GitHub silently ignores unknown users."""
        repository = _repository(request)
        logins = (request.body or {}).get("assignees", [])
        self._github.emulate.call_route("assign", {"slug": repository.slug, "number": number, "logins": logins})
        return Answer(201, self._github.root_call("GET", f"/repos/{repository.slug}/pulls/{number}"))

    def _files(self, request: Request, number: int) -> Answer:
        repository = _repository(request)
        pull = self._github.root_call("GET", f"/repos/{repository.slug}/pulls/{number}")
        names = {"A": "added", "D": "removed", "M": "modified", "R": "renamed"}
        lines = repository.git("diff", "--name-status", f"{pull['base']['sha']}...{pull['head']['sha']}").splitlines()
        rows = [line.split("\t") for line in lines]
        return Answer(200, [{"filename": row[-1], "status": names.get(row[0][0], "changed")} for row in rows])

    def graphql(self, request: Request) -> Answer:
        """Handle the two mutations that change the draft state, which REST cannot change."""
        if request.token is None:
            return refusal(401, "This endpoint requires you to be authenticated.")
        query, variables = str((request.body or {}).get("query", "")), (request.body or {}).get("variables") or {}
        mutation = next((name for name in MUTATIONS if name in query), None)
        node = next(iter(re.findall(r'"(PR_[^"]+|[A-Za-z0-9+/=_]{8,})"', query)), None) or _first_text(variables)
        if mutation is None or node is None:
            return Answer(200, {"errors": [{"message": "the double knows two mutations: " + ", ".join(MUTATIONS)}]})
        if not request.token.write:
            return Answer(
                200, {"data": {mutation: None}, "errors": [{"type": "FORBIDDEN", "message": "Resource not accessible"}]}
            )
        change = {"node": node, "draft": MUTATIONS[mutation], "token": self._github.root_token.text}
        login = request.token.login if not request.token.login.endswith("[bot]") else self._github.root_token.login
        answer = self._github.emulate.client.post("/_double/draft", json={**change, "login": login})
        if answer.status_code == 404:
            message = f"Could not resolve to a node with the global id of '{node}'"
            return Answer(200, {"data": {mutation: None}, "errors": [{"type": "NOT_FOUND", "message": message}]})
        pull = answer.json()
        result = {"id": node, "number": pull["number"], "isDraft": pull["draft"]}
        return Answer(200, {"data": {mutation: {"pullRequest": result}}})


def _repository(request: Request) -> Repository:
    assert request.repository is not None, "called for repositories only"
    return request.repository


def _first_text(variables: Any) -> str | None:
    for value in variables.values() if isinstance(variables, dict) else ():
        if isinstance(value, str):
            return value
        if found := _first_text(value):
            return found
    return None


def _invalid(error: dict[str, str]) -> Answer:
    return refusal(422, "Validation Failed", errors=[{"resource": "PullRequest", **error}])
