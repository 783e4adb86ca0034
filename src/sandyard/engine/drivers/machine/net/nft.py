"""nftables through libnftables (Debian: libnftables1), in this process: a tenth of the cost of the command."""

from __future__ import annotations

import ctypes
import errno
import json
import signal
import struct
import subprocess
from collections.abc import Iterator
from typing import Any

from sandyard.engine.drivers.machine.net.netlink import (
    Message,
    Netlink,
    NetlinkError,
    pack_text,
    parse_attributes,
    split_attributes,
)
from sandyard.kit.python import make_bare_python_command

LIBRARY = "libnftables.so.1"
_DEFAULT, _JSON = 0, 1 << 4
NETFILTER = 12
"""The netlink protocol."""
_NFT_MSG_GETTABLE, _NFT_MSG_GETSETELEM = 10 << 8 | 1, 10 << 8 | 13
_NFPROTO_INET, _NFTA_TABLE_NAME = 1, 1
_ELEM_LIST_TABLE, _ELEM_LIST_SET, _ELEM_LIST_ELEMENTS = 1, 2, 3
_SET_ELEM_KEY = 1
_CHECK_SECONDS = 20.0
_LIST_TABLES = f"""
import ctypes
library = ctypes.CDLL("{LIBRARY}")
library.nft_ctx_new.restype = ctypes.c_void_p
context = ctypes.c_void_p(library.nft_ctx_new(0))
library.nft_ctx_buffer_output(context)
library.nft_ctx_buffer_error(context)
library.nft_run_cmd_from_buffer(context, b"list tables")
"""
"""A program that reads all rules, as the library does before many changes."""
_GENMSG_BYTES, _ATTRIBUTE_BYTES = 4, 4  # sizes of headers


class NftError(Exception):
    """nftables rejected a transaction; nothing of it was applied."""


class NftUnavailableError(Exception):
    """nftables cannot be used here; the message contains the reason and the remedy."""


def check_library(program: str = _LIST_TABLES) -> None:
    """Raise NftUnavailableError if the library crashes on the rules of this network namespace, which would end this
    process. Debian 12's does so on sets that a newer version created, such as in a container with the host's network."""
    try:
        ended = subprocess.run(
            make_bare_python_command("-c", program), capture_output=True, timeout=_CHECK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return  # it says nothing about the rules
    if ended.returncode < 0:
        name = signal.Signals(-ended.returncode).name
        raise NftUnavailableError(
            f"{LIBRARY} crashes ({name}) on the rules of this machine, probably because a program with a newer version "
            "has created some, such as in a container that uses the host's network. Install a newer nftables, or find "
            "its table with `nft list chains` and remove it"
        )


class Nft:
    """A libnftables context. Not thread-safe; bound to the network namespace of the thread that creates it."""

    def __init__(self) -> None:
        try:
            # The library ends the whole process if it cannot open a socket, so try that first.
            self._netlink = Netlink(NETFILTER)
        except OSError as error:
            raise NftUnavailableError(f"the kernel offers no nftables ({error.strerror})") from error
        try:
            self._library = _load_library()
        except OSError as error:
            self._netlink.close()
            raise NftUnavailableError(f"{LIBRARY} is not installed: apt install libnftables1") from error
        self._context = self._library.nft_ctx_new(_DEFAULT)
        if not self._context:
            raise NftUnavailableError("libnftables could not create a context")
        self._library.nft_ctx_buffer_output(self._context)
        self._library.nft_ctx_buffer_error(self._context)

    def close(self) -> None:
        if self._context:
            self._library.nft_ctx_free(self._context)
            self._context = None
            self._netlink.close()

    def run(self, commands: str) -> None:
        """Apply all commands or none."""
        self._run(commands, 0)

    def has_table(self, name: str) -> bool:
        """Return whether there is a table of the family inet with this name. Asks the kernel for this table only: the
        library would list all tables, and Debian 12's crashes if other programs change them in the meantime."""
        payload = struct.pack("=BBH", _NFPROTO_INET, 0, 0) + pack_text(_NFTA_TABLE_NAME, name)
        try:
            self._netlink.request(Message(_NFT_MSG_GETTABLE, payload))
        except NetlinkError as error:
            if error.errno == errno.ENOENT:
                return False
            raise
        return True

    def read_keys(self, table: str, name: str) -> list[bytes]:
        """Return the keys of a set's elements; see `stream_keys`."""
        return list(stream_keys(self._netlink, table, name))

    def query(self, command: str) -> list[dict[str, Any]]:
        """Return the objects that a `list` command prints, as JSON."""
        answer = json.loads(self._run(command, _JSON) or b"{}")
        return [item for item in answer.get("nftables", ()) if "metainfo" not in item]

    def _run(self, commands: str, flags: int) -> bytes:
        if not self._context:
            raise NftError("the nftables context is closed")
        self._library.nft_ctx_output_set_flags(self._context, flags)
        failed = self._library.nft_run_cmd_from_buffer(self._context, commands.encode())
        output: bytes = self._library.nft_ctx_get_output_buffer(self._context) or b""
        error: bytes = self._library.nft_ctx_get_error_buffer(self._context) or b""
        if failed:
            raise NftError(error.decode(errors="replace").strip() or "nftables reported no reason")
        return output


def stream_keys(netlink: Netlink, table: str, name: str) -> Iterator[bytes]:
    """Yield the keys of a set's elements as the kernel stores them: each part of a key is padded to four bytes. For
    large sets: the library takes many times as long. Raises NetlinkError."""
    payload = (
        struct.pack("=BBH", _NFPROTO_INET, 0, 0) + pack_text(_ELEM_LIST_TABLE, table) + pack_text(_ELEM_LIST_SET, name)
    )
    for part in netlink.stream(Message(_NFT_MSG_GETSETELEM, payload)):
        elements = parse_attributes(part[_GENMSG_BYTES:]).get(_ELEM_LIST_ELEMENTS, b"")
        for _, element in split_attributes(elements):
            key = next(content for kind, content in split_attributes(element) if kind == _SET_ELEM_KEY)
            yield key[_ATTRIBUTE_BYTES:]  # it contains one attribute, the value


def _load_library() -> ctypes.CDLL:
    library = ctypes.CDLL(LIBRARY)
    pointer, number, string = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "nft_ctx_new": (pointer, [ctypes.c_uint32]),
        "nft_ctx_free": (None, [pointer]),
        "nft_ctx_buffer_output": (number, [pointer]),
        "nft_ctx_buffer_error": (number, [pointer]),
        "nft_ctx_get_output_buffer": (string, [pointer]),
        "nft_ctx_get_error_buffer": (string, [pointer]),
        "nft_ctx_output_set_flags": (None, [pointer, ctypes.c_uint]),
        "nft_run_cmd_from_buffer": (number, [pointer, string]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
