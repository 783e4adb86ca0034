"""SSH replacement for local repositories that the platform's user cannot read.

The process that started the platform runs git there as the owner, without hooks, and git talks to it as to any remote:

    python3 -I -S local_client.py SOCKET [OPTION…] HOST "git-upload-pack '/path'"

Passes its three standard file descriptors to that process and waits. Standard library only: it is started as a file for
every connection.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys

MAX_RESPONSE_BYTES = 8192


def main() -> int:
    command = shlex.split(sys.argv[-1])
    if len(command) != 2 or command[0] not in ("git-upload-pack", "git-receive-pack"):
        sys.stderr.write(f"fatal: local repository: {command[0][:80]} is not served.\n")
        return 128
    request = {"service": command[0], "path": command[1], "protocol": os.environ.get("GIT_PROTOCOL", "")}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            connection.connect("\0" + sys.argv[1])
            socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
            response = json.loads(connection.recv(MAX_RESPONSE_BYTES))
        except (OSError, ValueError) as error:
            response = {"refused": f"`sandyard up` did not respond ({error})."}
    if "refused" in response:
        sys.stderr.write(f"fatal: local repository: {response['refused']}\n")
        return 128
    return int(response["code"])


if __name__ == "__main__":
    sys.exit(main())
