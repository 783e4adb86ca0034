"""An image as seen by builds, and the credentials that a client may send with its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from sandyard.engine.contract import Layers
from sandyard.kit.errors import InvalidInputError
from sandyard.kit.secret import Secret

Report = Callable[[str], None]
"""Called with progress messages for users, in the event loop; must not block."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image that is on this machine. `layers` are complete: a sandbox can be created from them directly.

    `digest` is that of the manifest (for an archive of `docker save`, which has none, of the image's configuration): it
    identifies the content. `env` contains the image's variables and what this machine's network needs. `user` is a name
    in the image's /etc/passwd and `workdir` an absolute path, as its author set them; None if not set.
    """

    layers: Layers
    digest: str
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    workdir: str | None = None


def _wrap_secret(value: Any) -> Any:
    return Secret(value) if isinstance(value, str) else value


SecretText = Annotated[Secret, BeforeValidator(_wrap_secret)]


class RegistryAuth(BaseModel):
    """Credentials for a registry as the SDKs send them: one of the three types below. Never logged, never stored."""

    model_config = ConfigDict(
        frozen=True, arbitrary_types_allowed=True, alias_generator=to_camel, populate_by_name=True
    )

    @staticmethod
    def parse(raw: Mapping[str, Any]) -> RegistryAuth:
        """Parse the value of `fromImageRegistry`. InvalidInputError names the wrong field, but never its value."""
        try:
            return cast("RegistryAuth", _AUTH_ADAPTER.validate_python(dict(raw)))
        except ValidationError as error:
            wrong = error.errors(include_input=False, include_url=False, include_context=False)[0]
            name = ".".join(str(part) for part in wrong["loc"] if part not in ("registry", "aws", "gcp")) or "type"
            raise InvalidInputError(
                f"The credentials in fromImageRegistry are not valid: {name}: {wrong['msg'].lower()}. The type must be "
                "registry (username, password), aws (awsAccessKeyId, awsSecretAccessKey, awsRegion) or gcp (serviceAccountJson)."
            ) from None


class PasswordAuth(RegistryAuth):
    type: Literal["registry"] = "registry"
    username: str = Field(min_length=1, max_length=1000)
    password: SecretText


class AwsAuth(RegistryAuth):
    type: Literal["aws"] = "aws"
    aws_access_key_id: str = Field(min_length=1, max_length=200)
    aws_secret_access_key: SecretText
    aws_region: str = Field(pattern=r"^[a-z0-9-]{1,40}$")


class GcpAuth(RegistryAuth):
    type: Literal["gcp"] = "gcp"
    service_account_json: SecretText


_AUTH_ADAPTER: TypeAdapter[Any] = TypeAdapter(Annotated[PasswordAuth | AwsAuth | GcpAuth, Field(discriminator="type")])
