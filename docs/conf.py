"""How Sphinx builds the documentation site: see `make docs`.

The source folder is the root of the repository, so that every link in a document means the same here as in a checkout. Documents are plain
Markdown: the navigation is made here, and nothing on a page is special to Sphinx.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "src/sandyard/__init__.py").read_text())
assert VERSION is not None

project = "Sandyard"
release = version = VERSION[1]
copyright = "the authors of Sandyard. Apache-2.0"
html_title = f"Sandyard {release}"

extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**.md"]
# these folders hold no pages
exclude_patterns = [".*", "bench", "build", "dist", "requirements", "scripts", "src", "tests", "web"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

html_theme = "furo"
html_theme_options = {"top_of_page_buttons": []}
html_extra_path = ["site/index.html"]
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False

SECTIONS = {
    "Begin": ["start", "github", "models", "agents"],
    "Use": ["tasks", "sessions", "network", "previews", "editors", "api"],
    "E2B SDKs": ["e2b", "templates", "domains", "e2b-compatibility", "e2b-clients"],
    "Operate": ["team", "operating", "snapshots", "many-hosts", "security-model", "isolation"],
    "Judge": ["comparison", "proof", "performance"],
    "Reference": ["reference/settings", "reference/cli", "reference/events", "reference/api"],
}
"""The pages of each part of the navigation, below docs/. Pages that are not named here are listed in a last part."""
PROJECT = ["README", "ARCHITECTURE", "CONTRIBUTING", "SECURITY", "CHANGELOG"]
DECISIONS = "docs/decisions/README"


def make_toctree(caption: str, pages: list[str]) -> str:
    """Return a hidden table of contents, which only the navigation shows."""
    return "\n".join(["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```", ""])


def add_navigation(_: Any, name: str, source: list[str]) -> None:
    """Append the navigation to the first page, and the list of decisions to theirs."""
    if name == root_doc:
        source[0] += "".join(make_toctree(caption, pages) for caption, pages in list_sections())
    elif name == DECISIONS:
        source[0] += make_toctree("Decisions", [path.stem for path in sorted((ROOT / "docs/decisions").glob("0*.md"))])


def list_sections() -> list[tuple[str, list[str]]]:
    """Return the parts of the navigation with the addresses of their pages."""
    found = {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").glob("**/*.md")}
    found -= {"index"} | {page for page in found if page.startswith("decisions/")}
    sections = [(caption, [page for page in pages if page in found]) for caption, pages in SECTIONS.items()]
    others = sorted(found - {page for _, pages in sections for page in pages})
    sections += [("More", others)] if others else []
    project_pages = [f"/{page}" for page in PROJECT]
    return [*sections, ("Project", [f"/{DECISIONS}", *project_pages])]


def setup(app: Any) -> None:
    """Register what Sphinx calls. A page that links to a folder, or to a missing anchor, is a warning and so an error."""
    app.connect("source-read", add_navigation)
