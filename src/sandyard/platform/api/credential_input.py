"""Credentials as they are given in a request."""

from __future__ import annotations

from typing import Any

from pydantic import Field, SecretStr

from sandyard.kit.secret import Secret
from sandyard.platform.api.schema import Input, example
from sandyard.platform.domain.projects.credentials import MAX_TOKEN, AppKey, Draft, checked
from sandyard.platform.domain.projects.keys import MAX_KEY


class App(Input):
    """A GitHub App that is installed for the repository."""

    app_id: str = Field(
        min_length=1, max_length=40, coerce_numbers_to_str=True, description="Its number or its client id."
    )
    installation_id: str = Field(min_length=1, max_length=20, coerce_numbers_to_str=True)
    private_key: SecretStr = Field(
        min_length=1, max_length=MAX_KEY, description="The .pem file that GitHub made for it."
    )


class GivenCredentials(Input):
    """Each that is given replaces the one of its kind; the others stay."""

    model_config = example(token="github_pat_…")  # noqa: S106

    token: SecretStr | None = Field(None, min_length=1, max_length=MAX_TOKEN)
    username: str | None = Field(
        None, min_length=1, max_length=200, description="Beside the token; x-access-token if left out."
    )
    ssh_key: SecretStr | None = Field(
        None, min_length=1, max_length=MAX_KEY, description="A private key without a passphrase."
    )
    app: App | None = None
    webhook_secret: SecretStr | None = Field(None, min_length=1, max_length=MAX_TOKEN)

    def given(self) -> dict[str, Any]:
        """As `Credentials.put` takes them."""
        return {
            "token": secret(self.token),
            "username": self.username,
            "ssh_key": secret(self.ssh_key),
            "app": _app(self.app),
            "webhook_secret": secret(self.webhook_secret),
        }

    def drafts(self) -> list[Draft]:
        """InvalidInputError says what is wrong with one. Blocks for some milliseconds when there are keys."""
        given = self.given()
        return checked(given["token"], given["username"], given["ssh_key"], given["app"], given["webhook_secret"])


def secret(given: SecretStr | None) -> Secret | None:
    return None if given is None else Secret(given.get_secret_value())


def _app(given: App | None) -> AppKey | None:
    if given is None:
        return None
    return AppKey(given.app_id, given.installation_id, Secret(given.private_key.get_secret_value()))
