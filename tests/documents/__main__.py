"""`python -m tests.documents`: write every page of docs/reference."""

from __future__ import annotations

from tests.documents import FOLDER, PAGES, ROOT, render

FOLDER.mkdir(exist_ok=True)
for name in PAGES:
    path = FOLDER / f"{name}.md"
    path.write_text(render(name))
    print(path.relative_to(ROOT))
