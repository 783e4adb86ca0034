"""`python -m tests.acceptance.isolation FOLDER`: write the document if the records in FOLDER confirm every outcome."""

from __future__ import annotations

import sys
from pathlib import Path

from . import document


def main(folder: Path) -> None:
    if unconfirmed := document.find_unconfirmed(folder):
        sys.exit("\n  ".join(("The document was not written. No test has confirmed these outcomes:", *unconfirmed)))
    document.TARGET.write_text(document.write())
    print(
        f"{document.TARGET.relative_to(document.ROOT)}: {len(document.SCENARIOS)} scenarios, {len(document.LEVELS)} levels"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
