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

LONGEST = 8192


def main() -> int:
    words = shlex.split(sys.argv[-1])
    if len(words) != 2 or words[0] not in ("git-upload-pack", "git-receive-pack"):
        sys.stderr.write(f"fatal: local repository: {words[0][:80]} is not served.\n")
        return 128
    order = {"service": words[0], "path": words[1], "protocol": os.environ.get("GIT_PROTOCOL", "")}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        try:
            line.connect("\0" + sys.argv[1])
            socket.send_fds(line, [json.dumps(order).encode()], [0, 1, 2])
            answer = json.loads(line.recv(LONGEST))
        except (OSError, ValueError) as error:
            answer = {"refused": f"`sandyard up` did not respond ({error})."}
    if "refused" in answer:
        sys.stderr.write(f"fatal: local repository: {answer['refused']}\n")
        return 128
    return int(answer["code"])


if __name__ == "__main__":
    sys.exit(main())
