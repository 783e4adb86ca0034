"""Settings: a frozen model whose fields come from options, then environment variables, then defaults."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from sandyard.kit.errors import InvalidInputError

ENV_PREFIX = "SANDYARD_"
PATH_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "GIT_SSL_CAINFO", "TMPDIR")
"""Other programs' environment variables that name a file or a directory."""
LOG_LEVELS = frozenset(("debug", "info", "warning", "error"))


class Settings(BaseModel):
    """The environment variable of a field is `SANDYARD_<NAME>`, unless `variables` names another one, or None for no variable."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True, extra="forbid")
    variables: ClassVar[Mapping[str, str | None]] = {}

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None, **given: Any) -> Self:
        """Return the settings. `given` (options that are not None) overrides variables, which override defaults. Raises InvalidInputError,
        which names the invalid field."""
        environ = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        for name in cls.model_fields:
            variable = cls.variables.get(name, ENV_PREFIX + name.upper())
            if variable is not None and (text := environ.get(variable)):
                values[name] = text
        values |= {name: value for name, value in given.items() if value is not None}
        try:
            return cls(**values)
        except ValidationError as error:
            first_error = error.errors(include_input=False, include_url=False)[0]
            name = ".".join(str(part) for part in first_error["loc"])
            which = f"The setting {name!r} is" if name else "The settings are"
            raise InvalidInputError(f"{which} not valid: {first_error['msg']}.") from None


def make_paths_absolute(environ: Mapping[str, str], *kinds: type[Settings]) -> dict[str, str]:
    """Return `environ` with absolute paths, for a process that starts in another directory."""
    result = dict(environ)
    for kind in kinds:
        for name, field in kind.model_fields.items():
            variable = kind.variables.get(name, ENV_PREFIX + name.upper())
            if variable is None or "Path" not in str(field.annotation) or not (text := environ.get(variable)):
                continue
            parts = text.split(",") if "tuple" in str(field.annotation) else [text]
            result[variable] = ",".join(str(Path(part.strip()).absolute()) for part in parts if part.strip())
    for variable in PATH_VARIABLES:
        if text := environ.get(variable):
            result[variable] = str(Path(text).absolute())
    return result


def validate_log_level(value: str) -> str:
    """Validate a log level: the least severe level to log."""
    if value.lower() not in LOG_LEVELS:
        raise ValueError("must be one of debug, info, warning, error")
    return value.lower()


def get_default_data_dir() -> Path:
    """Return the default data directory."""
    if os.geteuid() == 0:
        return Path("/var/lib/sandyard")
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "sandyard"
