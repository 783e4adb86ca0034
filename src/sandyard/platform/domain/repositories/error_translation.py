"""Translate git's error output to the platform's errors and messages."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable
from urllib.parse import quote

from sandyard.kit.errors import NoSpaceError, SandyardError
from sandyard.kit.hidden_characters import HIDDEN
from sandyard.kit.text import append_quote
from sandyard.platform.domain.repositories.errors import (
    BranchMovedError,
    GitFailedError,
    RemoteMissingError,
    RemoteRefusedError,
    RemoteRejectedError,
    RemoteUnreachableError,
    RepositoryInvalidError,
    TooMuchError,
)
from sandyard.platform.domain.repositories.model import Credential

_PREFIX = re.compile(r"^(fatal|error|remote|warning|hint): ?")
_NOISE = re.compile(r"^(hint:|warning:|To |Cloning into|From |Everything up-to-date|Warning: Permanently added)")
_LOCAL_REPOSITORY_ERROR = re.compile(r"(?m)^fatal: local repository: (.+)$")  # see local_client.py
_MAX_LENGTH = 500
_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_UNSTORABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

KEY_UNREADABLE = "The project's SSH key cannot be read: it is not a private key, or it has a passphrase. Enter a key without a passphrase."
LOCAL_PATH_REFUSED = (
    "The repository is a path on the platform's own machine, which only projects owned by an administrator may use. Change it to an "
    "https or ssh URL, or ask an administrator to create the project."
)
TOO_LARGE = "The repository is larger than the platform's limit. An administrator can raise it (git_repository_limit)."
_TOO_MUCH_MEMORY = "A file or commit is too large, or has too many files, for the memory that Git may use."
_HOST_CHANGED = (
    "The remote's host key has changed. If that is expected, remove its line from `known_hosts` in the platform's git folder; "
    "if not, the connection may be intercepted."
)
_DUMB_HTTP = "The remote offers only the dumb HTTP protocol, which is not supported. Use a Git server with the smart HTTP protocol, or SSH."
HOST_NOT_FOUND = "The remote's host was not found: its name is wrong, or there is no network."
_SERVER_ERROR = "The remote failed internally. Nothing was lost; try again."
_UNTRUSTED = "The remote's certificate is not trusted by this machine."
_RULE_TABLE: tuple[tuple[str, type[SandyardError], str | None], ...] = (
    # the platform's own machine
    (
        r"(?m)^(?!remote:).*(No space left on device|Disk quota exceeded)",
        NoSpaceError,
        "The platform's disk is full: Git could not write.",
    ),
    (r"(?m)^(?!remote:).*: File too large$", TooMuchError, TOO_LARGE),
    (
        r"(?mi)^(?!remote:|fatal: remote error).*(attempting to allocate \d+ over limit|out of memory|cannot allocate memory)",
        TooMuchError,
        _TOO_MUCH_MEMORY,
    ),
    (r"(?m)^fatal: dumb http transport does not support", RepositoryInvalidError, _DUMB_HTTP),
    # rejected by the server; before the network errors, which git reports afterwards
    (r"\(non-fast-forward\)|\(fetch first\)|\(needs force\)|\(stale info\)", BranchMovedError, None),
    (r"pre-receive hook declined|protected branch|\[remote rejected\]|GH\d{3}: ", RemoteRejectedError, ""),
    # authentication
    (r"Host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED", RemoteRefusedError, _HOST_CHANGED),
    (r"Load key .{0,500}(invalid format|error in libcrypto|incorrect passphrase)", RemoteRefusedError, KEY_UNREADABLE),
    (r"Authentication failed|could not read (Username|Password)|Permission denied \(", RemoteRefusedError, None),
    (r"requested URL returned error: (401|403)|Write access to repository not granted", RemoteRefusedError, None),
    (r"Permission to \S+ denied|not allowed to push|access denied|deploy key", RemoteRefusedError, None),
    # missing repositories
    (r"requested URL returned error: (404|410)|[Rr]epository .*not found", RemoteMissingError, None),
    (
        r"does not appear to be a git repository|Repository not found|project you were looking for",
        RemoteMissingError,
        None,
    ),
    (r"not valid: is this a git repository", RemoteMissingError, "There is no Git repository at this URL."),
    (
        r"requested URL returned error: 3\d\d|unable to update url base from redirection",
        RemoteMissingError,
        "The remote redirects to another URL. Use the repository's current URL, with .git at its end if the server requires it.",
    ),
    # the connection
    (r"[Cc]ould not resolve (host|proxy)", RemoteUnreachableError, HOST_NOT_FOUND),
    (
        r"requested URL returned error: 429",
        RemoteUnreachableError,
        "The remote is rate-limiting requests (429). Try again later.",
    ),
    (r"requested URL returned error: 5\d\d|HTTP 5\d\d", RemoteUnreachableError, _SERVER_ERROR),
    (r"SSL certificate problem|certificate verify failed|server certificate", RemoteUnreachableError, _UNTRUSTED),
    (
        r"[Cc]onnection (refused|reset|timed out|closed)|Failed to connect|Couldn't connect",
        RemoteUnreachableError,
        None,
    ),
    (
        r"early EOF|RPC failed|unexpected disconnect|hung up unexpectedly|remote failed to report",
        RemoteUnreachableError,
        None,
    ),
    (
        r"Operation (timed out|too slow)|Empty reply|transfer closed|Broken pipe|No route to host",
        RemoteUnreachableError,
        None,
    ),
    (r"Network is unreachable|SSL_|GnuTLS|TLS connection|invalid index-pack output", RemoteUnreachableError, None),
    (r"Could not read from remote repository", RemoteUnreachableError, None),
)
_RULES = tuple((re.compile(pattern), kind, message) for pattern, kind, message in _RULE_TABLE)


def translate_error(stderr: str, action: str) -> SandyardError:
    """Return the error for git's output after it failed at `action` ("fetch", "push", …). `stderr` must not contain credentials."""
    if refused := _LOCAL_REPOSITORY_ERROR.search(stderr):
        missing = "does not appear to be" in refused[1]
        return (RemoteMissingError if missing else RemoteRefusedError)(_truncate(refused[1]))
    for pattern, kind, message in _RULES:
        if pattern.search(stderr):
            if kind is RemoteRejectedError:
                return RemoteRejectedError(
                    append_quote("The remote rejected the push.", extract_server_message(stderr) or summarize(stderr))
                )
            return kind(message)
    return GitFailedError(append_quote(f"Git failed ({action}).", summarize(stderr)))


def extract_server_message(stderr: str) -> str:
    """Return the server's messages, without git's own."""
    lines = [line.removeprefix("remote:").strip() for line in stderr.splitlines() if line.startswith("remote:")]
    return _truncate(" ".join(line for line in lines if line and not set(line) <= set("=-* ")))


def summarize(stderr: str) -> str:
    """Return the lines that say what went wrong."""
    lines = [line.strip() for line in stderr.splitlines()]
    fatal = [line for line in lines if line.startswith(("fatal:", "error:", "remote: ", "ssh: ", "!"))]
    relevant = fatal or [line for line in lines if line and not _NOISE.match(line)]
    return _truncate(" ".join(_PREFIX.sub("", line).strip() for line in relevant))


def clean_line(text: str) -> str:
    """Return the text as one line that any database, log and terminal accepts: no control characters, surrogates or line breaks.
    Invisible characters are removed."""
    return _UNSTORABLE.sub(" ", _ESCAPE.sub("", HIDDEN.sub("", text)))


def _truncate(text: str) -> str:
    text = clean_line(text)
    return text if len(text) <= _MAX_LENGTH else text[: _MAX_LENGTH - 1] + "…"


def create_mask(credential: Credential | None) -> Callable[[str], str]:
    """Return a function that removes every form of the credential that git or a server could repeat from a text."""
    forms = sorted({form for form in _iterate_credential_forms(credential) if len(form) >= 4}, key=len, reverse=True)
    if not forms:
        return lambda text: text
    pattern = re.compile("|".join(re.escape(form) for form in forms))
    return lambda text: pattern.sub("***", text)


def _iterate_credential_forms(credential: Credential | None) -> Iterable[str]:
    if credential is None:
        return
    if credential.token:
        token = credential.token.reveal()
        yield from (token, quote(token, safe=""))
        for text in (token, f"{credential.username}:{token}"):
            encoded = base64.b64encode(text.encode()).decode()
            yield from (encoded, encoded.rstrip("="))
    if credential.ssh_key:
        yield from (line for line in credential.ssh_key.reveal().splitlines() if not line.startswith("-----"))
