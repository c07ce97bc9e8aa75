# SPDX-License-Identifier: Apache-2.0
"""Hooks of mkdocs.yml: what the site makes of the repository's pages.

* Pages that live outside docs/ (CHANGELOG.md, CONTRIBUTING.md) are shown under the names in OUTSIDE.
* The generated parts of docs/reference are filled in (site_reference.py).
* A page that stands alone in the navigation (Home, Get started, Performance) has no column of its neighbours.
* The search lists decisions after the other pages.
* A link to a file of the repository that is no page of the site becomes the file's path in code style: the site stands alone.
"""
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import site_reference  # noqa: E402

DOCS = ROOT / "docs"
OUTSIDE = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
CODE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
# What an image link of README.md may name, and pages of the site that a link may lead to.
SITE_FILES = (".md", ".svg", ".png", ".json", ".ipynb")


def is_on_site(path: Path) -> bool:
    return path.suffix in SITE_FILES and path.is_relative_to(DOCS)


def link_on_site(match: "re.Match", source: Path, page: str) -> str:
    """The link as the site can follow it: relative to the page, or the path in code style."""
    image, label, target, fragment = match[1], match[2], match[3], match[4] or ""
    if "://" in target or target.startswith("mailto:"):
        return match[0]
    path = Path(os.path.normpath(source.parent / target))
    shown_as = {ROOT / name: DOCS / shown for shown, name in OUTSIDE.items()}
    path = shown_as.get(path, path)
    if path.is_dir() and (path / "index.md").exists():
        path = path / "index.md"
    if not is_on_site(path):
        name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else target
        return label if label == f"`{name}`" or not name else f"`{name}`" if label.strip("`") == name else f"{label} (`{name}`)"
    return f"{image}[{label}]({os.path.relpath(path, (DOCS / page).parent)}{fragment})"


def rewritten(markdown: str, source: Path, page: str) -> str:
    """Links outside of code blocks, as link_on_site has them."""
    parts = CODE.split(markdown)
    return "".join(part if i % 2 else LINK.sub(lambda m: link_on_site(m, source, page), part) for i, part in enumerate(parts))


def on_files(files, config):
    from mkdocs.structure.files import File

    for shown, name in OUTSIDE.items():
        files.append(File.generated(config, shown, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown, page, config, files):
    name = page.file.src_uri
    if page.parent is None:
        page.meta.setdefault("hide", ["navigation"])
    if name.startswith("decisions/"):
        page.meta.setdefault("search", {"boost": 0.2})
    markdown = rewritten(markdown, ROOT / OUTSIDE[name] if name in OUTSIDE else DOCS / name, name)
    return site_reference.filled(markdown)
