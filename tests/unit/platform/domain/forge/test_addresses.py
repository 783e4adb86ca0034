"""Which forge a repository is on, and which hosts get its token."""

from __future__ import annotations

import pytest

from sandyard.platform.db.models import Project
from sandyard.platform.domain.forge import addresses
from sandyard.platform.domain.forge.errors import ForgeUnsupportedError
from sandyard.platform.domain.forge.model import ForgeKind
from sandyard.platform.domain.repositories.errors import RepositoryInvalidError


def project(repository: str | None, **forge: str) -> Project:
    return Project(id="prj_1", repository=repository, template=None, settings={"forge": forge})


@pytest.mark.parametrize(
    ("repository", "forge", "kind"),
    [
        ("https://github.com/acme/site.git", {}, ForgeKind.GITHUB),
        ("git@github.com:acme/site.git", {}, ForgeKind.GITHUB),
        ("ssh://git@ssh.github.com:443/acme/site.git", {}, ForgeKind.GITHUB),
        ("https://git.example.org/acme/site.git", {}, ForgeKind.PLAIN),
        ("https://github.com.evil.example/acme/site.git", {}, ForgeKind.PLAIN),
        ("https://ghe.example.org/acme/site", {"apiUrl": "https://ghe.example.org/api/v3"}, ForgeKind.GITHUB),
        ("https://github.com/acme/site.git", {"kind": "plain"}, ForgeKind.PLAIN),
        ("https://ghe.example.org/acme/site", {"kind": "github"}, ForgeKind.GITHUB),
        ("/srv/git/site.git", {}, ForgeKind.PLAIN),
        ("/srv/git/site.git", {"apiUrl": "https://ghe.example.org/api/v3"}, ForgeKind.PLAIN),
    ],
)
def test_auto_detects_github(repository: str, forge: dict[str, str], kind: ForgeKind) -> None:
    assert addresses.get_forge(project(repository, **forge)) is kind


@pytest.mark.parametrize(
    ("repository", "forge", "host"),
    [
        ("https://git.example.org/acme/site.git", {}, "git.example.org"),
        ("git@git.example.org:acme/site.git", {}, "git.example.org"),
        ("https://git.example.org/acme/site.git", {"kind": "plain"}, None),
        ("https://ghe.example.org/acme/site", {"apiUrl": "https://ghe.example.org/api/v3"}, None),
        ("https://github.com/acme/site.git", {}, None),
        ("/srv/git/site.git", {}, None),
        (None, {}, None),
    ],
)
def test_explains_unknown_forge(repository: str | None, forge: dict[str, str], host: str | None) -> None:
    explanation = addresses.explain_missing_pull_requests(project(repository, **forge))
    assert explanation == (
        host
        and f"{host} is not github.com, so branches are pushed without pull requests. If it is a GitHub Enterprise "
        "Server, set its API URL."
    )


@pytest.mark.parametrize(
    ("repository", "forge", "api"),
    [
        ("https://github.com/acme/site.git", {}, "https://api.github.com"),
        ("git@github.com:acme/site.git", {}, "https://api.github.com"),
        ("git@ghe.example.org:a/b", {"apiUrl": "https://ghe.example.org/api/v3"}, "https://ghe.example.org/api/v3"),
        ("https://git.example.org/a/b", {"apiUrl": "http://127.0.0.1:9/api/v3"}, "http://127.0.0.1:9/api/v3"),
        ("https://git.example.org/a/b", {"apiUrl": "http://[::1]:9"}, "http://[::1]:9"),
    ],
)
def test_api_address(repository: str, forge: dict[str, str], api: str) -> None:
    assert addresses.get_api_url(project(repository, **forge)) == api


@pytest.mark.parametrize(
    "repository", ["https://git.example.org/acme/site.git", "git@git.example.org:acme/site", "/srv/site.git"]
)
def test_token_is_not_sent_to_other_host(repository: str) -> None:
    with pytest.raises(ForgeUnsupportedError, match=r"not on github\.com, so the project's token is not sent there"):
        addresses.get_api_url(project(repository, kind="github"))


@pytest.mark.parametrize(
    "url", ["http://ghe.example.org/api/v3", "http://127.0.0.1.example.org", "http://10.0.0.1/api"]
)
def test_token_is_not_sent_unencrypted(url: str) -> None:
    with pytest.raises(ForgeUnsupportedError, match="Use https://"):
        addresses.get_api_url(project("https://ghe.example.org/acme/site", apiUrl=url))


def test_rejects_missing_repository_or_owner() -> None:
    with pytest.raises(RepositoryInvalidError, match="has no repository"):
        addresses.get_forge(project(None))
    with pytest.raises(ForgeUnsupportedError, match="OWNER/NAME"):
        addresses.get_slug(project("https://github.com/site"))
    assert addresses.get_slug(project("https://github.com/acme/site.git")) == "acme/site"
