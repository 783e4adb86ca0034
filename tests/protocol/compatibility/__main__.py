"""`python -m tests.protocol.compatibility FOLDER`: write the document from the records in FOLDER."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.protocol.cli import SCRIPT, find_node

from . import document, verbs


def main(folder: Path) -> None:
    seen = document.read(folder)
    if not seen:
        sys.exit(f"{folder} has no records: run the tests with SANDYARD_COMPATIBILITY={folder} first.")
    known = [*verbs.python(), *verbs.javascript(), *verbs.commands(_run_cli)]
    document.TARGET.write_text(document.write(known, seen, verbs.versions()))
    missing = sorted({f"{verb.row} ({verb.language})" for verb in known if verb not in seen})
    print(f"{document.TARGET.relative_to(document.ROOT)}: {len(known)} verbs, {len(missing)} not covered")
    for line in missing:
        print(f"  {line}")


def _run_cli(*arguments: str) -> str:
    environment = {"PATH": os.environ["PATH"], "NO_UPDATE_NOTIFIER": "1", "HOME": "/nonexistent"}
    result = subprocess.run(
        [find_node(), str(SCRIPT), *arguments], env=environment, capture_output=True, text=True, check=True
    )
    return result.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]))
