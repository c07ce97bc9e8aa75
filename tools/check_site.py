#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Looks at the built site as a reader does: from a folder, without a server and without a network, in a browser.

usage: check_site.py SITE               check the site; screenshots land in SITE/../screenshots
       check_site.py SITE --self-test   plant faults in copies and demand that they are noticed

Exit code 77: no browser here.
"""
import html.parser
import shutil
import sys
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

SKIPPED = 77
ANIMATION = 5000  # ms until the animated terminal of the front page is complete
SHOTS = [("index.html", "light", 1280), ("index.html", "dark", 1280), ("index.html", "light", 390), ("get_started.html", "light", 1280),
         ("get_started.html", "dark", 390), ("concepts/paged_attention.html", "dark", 1280), ("concepts/index.html", "dark", 390),
         ("performance/index.html", "light", 1280), ("performance/index.html", "light", 390), ("guides/conformance.html", "light", 390),
         ("reference/python.html", "light", 1280)]
PHONE = 390  # px: an iPhone 14's width; wide tables scroll inside their own box
SEARCH = ("block table", "reference/contract.html")  # words, and a page that must be among the first results
PATIENCE = 15_000  # ms for a page or the search; a page takes 0.2 s on an idle core


class Links(html.parser.HTMLParser):
    """Targets of links, scripts, styles and images of a page, and the ids that others may point at."""

    def __init__(self) -> None:
        super().__init__()
        self.targets, self.loaded, self.ids = [], [], set()

    def handle_starttag(self, tag: str, attributes) -> None:
        found = dict(attributes)
        self.ids.update(found[name] for name in ("id", "name") if found.get(name))
        if tag == "a" and found.get("href"):
            self.targets.append(found["href"])
        if tag in ("script", "img", "iframe", "source") and found.get("src"):
            self.loaded.append(found["src"])
        if tag == "link" and found.get("href") and found.get("rel") != "canonical":
            self.loaded.append(found["href"])


def read_pages(site: Path) -> "dict[Path, Links]":
    pages = {}
    for path in sorted(site.rglob("*.html")):
        pages[path] = Links()
        pages[path].feed(path.read_text(encoding="utf-8"))
    return pages


def broken_links(site: Path) -> "list[str]":
    """Links to a file or an anchor that does not exist, and things that would be loaded from the network."""
    pages, found = read_pages(site), []
    for page, links in pages.items():
        if page.name == "404.html":  # served from anywhere, so its links begin at the root of a server
            continue
        name = page.relative_to(site)
        found += [f"{name}: loads {target} from the network" for target in links.loaded if urlsplit(target).netloc]
        for target in links.targets + [one for one in links.loaded if not urlsplit(one).netloc]:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            file = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if not file.exists():
                found.append(f"{name}: link to {target}, which does not exist")
            elif parts.fragment and file in pages and unquote(parts.fragment) not in pages[file].ids | {"__search", "__drawer"}:
                found.append(f"{name}: link to {target}, which has no such anchor")
    return found


def unreachable(site: Path) -> "list[str]":
    """Pages to which no path of links leads from the front page."""
    pages, front = read_pages(site), site / "index.html"
    seen, queue = {front}, [front]
    while queue:
        page = queue.pop()
        for target in pages[page].targets:
            parts = urlsplit(target)
            file = (page.parent / unquote(parts.path)).resolve()
            if not parts.scheme and not parts.netloc and file in pages and file not in seen:
                seen.add(file)
                queue.append(file)
    return [f"{page.relative_to(site)}: no link leads here" for page in pages if page not in seen and page.name != "404.html"]


# --- in a browser -----------------------------------------------------------------------------------------------------------------

def watched(context, found: "list[str]"):
    """A page that reports console errors and every request that leaves the folder."""
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.on("console", lambda message: found.append(f"console: {message.text}") if message.type == "error" else None)
    page.on("pageerror", lambda error: found.append(f"script error: {error}"))
    page.on("request", lambda request: found.append(f"request to {request.url}")
            if not request.url.startswith(("file://", "data:", "blob:", "about:")) else None)
    return page


def search_finds(page, site: Path) -> "list[str]":
    words, wanted = SEARCH
    page.goto((site / "index.html").as_uri())
    page.locator("input.md-search__input").click()
    page.locator("input.md-search__input").press_sequentially(words)  # the search listens to keys
    try:
        page.locator(f'a.md-search-result__link[href*="{wanted}"]').first.wait_for(state="attached")
    except Exception:  # noqa: BLE001: playwright's timeout
        return [f"search for {words!r} does not find {wanted}"]
    return []


def too_wide(page, site: Path, path: Path) -> "list[str]":
    page.set_viewport_size({"width": PHONE, "height": 844})
    extra = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    return [f"{path.relative_to(site)}: scrolls sideways by {extra} px on a phone"] if extra > 0 else []


def missing_pictures(page) -> "list[str]":
    return page.evaluate("[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)")


def look(site: Path, browser, shots: "Path | None", pages: "list[Path]") -> "list[str]":
    found: "list[str]" = []
    context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
    page = watched(context, found)
    found += search_finds(page, site)
    for path in pages:
        page.set_viewport_size({"width": 1280, "height": 900})
        page.goto(path.as_uri())
        found += [f"{path.relative_to(site)}: picture {src} does not load" for src in missing_pictures(page)]
        found += too_wide(page, site, path)
    context.close()
    for name, scheme, width in SHOTS if shots else []:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce")
        page = context.new_page()
        page.goto((site / name).as_uri())
        page.wait_for_timeout(ANIMATION if name == "index.html" else 0)
        page.screenshot(path=shots / f"{name.replace('/', '-')[:-5]}-{scheme}-{width}.png")
        context.close()
    return found


def self_test(site: Path, browser) -> "list[str]":
    """Each fault is planted in a copy of the site's front page."""
    front = (site / "index.html").read_text(encoding="utf-8")
    faults = {"a broken link": '<a href="gone.html">x</a>', "a missing anchor": '<a href="get_started.html#gone">x</a>',
              "a script from the network": '<script src="https://example.org/x.js"></script>',
              "a wide element": '<div style="width:3000px">x</div>', "a missing picture": '<img src="gone.png">',
              "a script error": "<script>throw new Error('planted')</script>"}
    problems = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder).resolve() / "site"
        shutil.copytree(site, copy)

        def noticed(text: str) -> "list[str]":
            (copy / "index.html").write_text(text, encoding="utf-8")
            return broken_links(copy) + look(copy, browser, None, [copy / "index.html"])

        problems += [f"a right page was refused: {what}" for what in noticed(front)]
        problems += [f"{what} went unnoticed" for what, text in faults.items() if not noticed(front.replace("</article>", text + "</article>"))]
        problems += [f"a right site was refused: {what}" for what in unreachable(copy)]
        (copy / "alone.html").write_text(front, encoding="utf-8")
        if unreachable(copy) != ["alone.html: no link leads here"]:
            problems.append("a page that no link leads to went unnoticed")
        index = copy / "search/search_index.js"
        index.write_text("var __index = {config:{lang:['en'],separator:' '},docs:[]}", encoding="utf-8")
        if not noticed(front):
            problems.append("a search that finds nothing went unnoticed")
        index.unlink()
        if not noticed(front):
            problems.append("a search without its index went unnoticed")
    return problems


def main(arguments: "list[str]") -> int:
    if not arguments or arguments[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    site = Path(arguments[0]).resolve()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("skipped: no playwright")
        return SKIPPED
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not program:
        print("skipped: no chromium")
        return SKIPPED
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        if arguments[1:] == ["--self-test"]:
            problems = self_test(site, browser)
        else:
            shots = site.parent / "screenshots"
            shots.mkdir(exist_ok=True)
            pages = [path for path in sorted(site.rglob("*.html")) if path.name != "404.html"]
            problems = broken_links(site) + unreachable(site) + look(site, browser, shots, pages)
        browser.close()
    print("\n".join(dict.fromkeys(problems)) or "ok")  # a problem of all pages is printed once
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
