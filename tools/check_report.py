#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Opens report pages in a headless Chromium and uses them as a reader would. Saves screenshots beside the pages.

usage: check_report.py RENDER_REPORT FOLDER [REPORT.json...]   render and check the samples (tests/report/make_samples.py), or these
       check_report.py --self-test                              plant one fault of every kind in a page and demand that each is found

Checks: nothing on the console, no request beyond the page itself, no sideways scrolling, enough contrast (WCAG AA) in both colour
schemes, every control reachable by Tab with a visible focus, details, maps, filters and theme usable by keyboard, hostile text shown
as text, printable. Exit status 77: no Chromium or no playwright here.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SKIPPED = 77
SCREENS = [("light", 1280), ("dark", 1280), ("light", 500), ("dark", 400)]


class Browser:
    """One headless Chromium, one tab at a time; `events` is what a page said or asked for since it was opened."""

    def __init__(self, playwright, program: str):
        arguments = ["--hide-scrollbars", "--force-color-profile=srgb", "--no-sandbox"]  # the sandbox does not start as root
        self.browser = playwright.chromium.launch(executable_path=program, args=arguments)
        self.page, self.events = self.browser.new_page(reduced_motion="reduce"), []
        self.page.on("pageerror", lambda error: self.events.append(f"exception: {error}"))
        self.page.on("console", lambda message: self.events.append(f"console: {message.type} {message.text}"))
        self.page.on("request", lambda request: self.events.append(f"request: {request.url}"))

    def close(self) -> None:
        self.browser.close()

    def script(self, expression: str):
        return self.page.evaluate(expression)

    def press(self, key: str) -> None:
        self.page.keyboard.press(key)

    def type(self, text: str) -> None:
        self.page.keyboard.insert_text(text)

    def open(self, page: Path, scheme: str, width: int) -> None:
        self.events.clear()
        self.page.emulate_media(color_scheme=scheme)
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.goto(page.as_uri())
        self.settle()

    def settle(self) -> None:
        """Waits until what was changed is drawn."""
        self.script("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def screenshot(self, file: Path) -> None:
        height = self.script("Math.min(9000, document.documentElement.scrollHeight)")
        width = self.page.viewport_size["width"]
        self.page.screenshot(path=file, full_page=True, clip={"x": 0, "y": 0, "width": width, "height": height})

    def print(self, file: Path) -> None:
        self.page.pdf(path=file)


# Every text with its colour and what lies behind it, unless it is hidden. Returns those below WCAG AA.
CONTRAST = r"""
(() => {
  const parse = (c) => { const p = c.match(/[\d.]+/g).map(Number); return {rgb: p.slice(0, 3), alpha: p.length > 3 ? p[3] : 1}; };
  const light = (rgb) => { const f = rgb.map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)); return 0.2126 * f[0] + 0.7152 * f[1] + 0.0722 * f[2]; };
  const behind = (node) => { for (; node; node = node.parentElement) { const c = parse(getComputedStyle(node).backgroundColor); if (c.alpha === 1) return c.rgb; } return [255, 255, 255]; };
  const found = new Map();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !node.checkVisibility() || node.closest("script, noscript, .unseen, .skip")) continue;
    const style = getComputedStyle(node), size = parseFloat(style.fontSize);
    const a = light(parse(style.color).rgb), b = light(behind(node));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const needed = size >= 24 || (size >= 18.6 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
    if (ratio < needed) found.set(`${node.tagName.toLowerCase()}.${node.className}`, `${ratio.toFixed(2)} < ${needed} in "${walker.currentNode.data.trim().slice(0, 40)}"`);
  }
  return [...found].map(([where, what]) => `contrast of ${where}: ${what}`);
})()"""

# Links of the navigation that lie outside of the window.
CUT = """[...document.querySelectorAll("nav a")].filter((a) => { const at = a.getBoundingClientRect(); return at.left < 0 || at.right > innerWidth || at.right > a.parentElement.getBoundingClientRect().right + 1; }).map((a) => `cut off in the navigation: ${a.textContent}`)"""

# Numbers every control, so that Tab can tick them off.
CONTROLS = r"""
(() => {
  const controls = [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]")].filter((n) => n.checkVisibility() && n.tagName !== "MAIN");
  controls.forEach((n, i) => (n.dataset.control = i));
  window.nameOf = (n) => `${n.tagName.toLowerCase()}${n.id ? "#" + n.id : ""} "${(n.getAttribute("aria-label") || n.textContent || n.placeholder || "").trim().slice(0, 40)}"`;
  const silent = controls.filter((n) => !(n.getAttribute("aria-label") || n.textContent.trim() || n.placeholder)).map((n) => n.outerHTML.slice(0, 80));
  document.body.tabIndex = -1;  // Tab goes on from where the focus was last: the beginning
  document.body.focus();
  document.body.removeAttribute("tabindex");
  return [controls.length, silent];
})()"""
FOCUSED = r"""
(() => {
  const n = document.activeElement;
  if (!n || n === document.body) return null;
  const style = getComputedStyle(n);
  const visible = (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1) || style.boxShadow !== "none";
  return [n.dataset.control === undefined ? -1 : Number(n.dataset.control), window.nameOf(n), visible];
})()"""
UNREACHED = "(seen) => [...document.querySelectorAll('[data-control]')].filter((n) => !seen.includes(Number(n.dataset.control))).map((n) => window.nameOf(n))"


def check_quiet(browser: Browser, page: Path) -> "list[str]":
    """Checks that the page wrote nothing to the console and requested nothing beyond itself."""
    quiet = (f"request: {page.as_uri()}", "request: data:")
    return [event for event in browser.events if event != quiet[0] and not event.startswith(quiet[1])]


def check_layout(browser: Browser, scheme: str, width: int) -> "list[str]":
    found = browser.script(CONTRAST)
    wide = browser.script("document.documentElement.scrollWidth")
    if wide > width:
        found.append(f"scrolls sideways: {wide} px at a width of {width} px")
    found += browser.script(CUT)
    if width >= 1280:
        low = browser.script("Math.round(document.querySelector('.brief #next')?.getBoundingClientRect().bottom + scrollY || 0)")
        if low > 1000:
            found.append(f"the next step ends {low} px down, below 1000")
    if not browser.script("document.querySelector('h1') && document.querySelector('h1').textContent.trim()"):
        found.append("no verdict in words")
    return [f"{text} ({scheme}, {width} px)" for text in found]


def check_tab_order(browser: Browser) -> "list[str]":
    count, silent = browser.script(CONTROLS)
    found, seen = [f"control without a name: {html}" for html in silent], []
    for step in range(count + 5):
        browser.press("Tab")
        focused = browser.script(FOCUSED)
        if focused is None or focused[0] in seen:
            break
        number, name, visible = focused
        seen.append(number)
        if not visible:
            found.append(f"focus is not visible on {name}")
        if step == 0 and "Skip" not in name:
            found.append(f"the first Tab goes to {name}, not to the skip link")
    return found + [f"not reachable by Tab: {name}" for name in browser.script(f"({UNREACHED})({json.dumps(seen)})")]


def check_folds(browser: Browser) -> "list[str]":
    """Opens every folded section by its keyboard; leaves them open, so that what they hold is checked, too."""
    found = []
    for index in range(browser.script("document.querySelectorAll('details').length")):
        fold = f"document.querySelectorAll('details')[{index}]"
        browser.script(f"{fold}.querySelector('summary').focus()")
        browser.press("Enter")
        if not browser.script(f"{fold}.open"):
            found.append(f"Enter does not open the folded section {index}")
    browser.settle()
    return found


def check_keyboard_use(browser: Browser, page: Path) -> "list[str]":
    found = []
    if browser.script("const e = document.querySelector('.expand'); e && e.focus(); !!e"):
        browser.press("Enter")
        if not browser.script("document.querySelector('tr.detail')?.textContent.length > 10"):
            found.append("Enter on a row's button does not open its details")
        browser.script("scrollTo(0, 0)")
        browser.screenshot(page.with_name(f"{page.stem}_opened.png"))
        if browser.script("document.querySelectorAll('.expand').length > 1"):
            browser.press("ArrowDown")
            if browser.script("[...document.querySelectorAll('.expand')].indexOf(document.activeElement) !== 1"):
                found.append("ArrowDown does not go to the next row")
    maps = browser.script("document.querySelectorAll('.frame').length")
    for index in range(min(maps, 3)):
        said = []
        browser.script(f"document.querySelectorAll('.frame')[{index}].focus()")
        for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
            browser.press(key)
            said.append(browser.script(f"document.querySelectorAll('.map')[{index}].querySelector('.readout').textContent"))
        if len(set(said)) < 2 or not all(said):
            found.append(f"arrow keys do not move through map {index}: it says {said[0]!r}")
    if browser.script(
        "const s = document.querySelector('.expand')?.closest('section')?.querySelector('input[type=search]'); s && s.focus(); !!s"
    ):
        before = browser.script("document.activeElement.closest('section').querySelectorAll('tbody tr').length")
        browser.type("zzz-nothing-has-this")
        if (
            browser.script(
                "document.activeElement.closest('section').querySelectorAll(':scope > div > .table > table > tbody > tr').length"
            )
            >= before
        ):
            found.append("the filter does not filter")
    return found


def check_theme(browser: Browser) -> "list[str]":
    paint = "getComputedStyle(document.body).backgroundColor"
    before = browser.script(paint)
    browser.script("document.getElementById('theme')?.focus()")
    browser.press("Enter")
    return [] if browser.script(paint) != before else ["the theme button changes nothing"]


def check_hostile(browser: Browser) -> "list[str]":
    run = browser.script("window.pwned === 1 || {}.polluted === true")
    tags = browser.script(
        "[document.scripts.length, document.querySelectorAll('img, iframe, object, embed, [onerror], [href^=javascript]').length]"
    )
    return (["text of the report was run"] if run else []) + (
        [f"text of the report became tags: {tags}"] if tags != [2, 0] else []
    )


def check_page(browser: Browser, page: Path, screens=SCREENS) -> "list[str]":
    """Opens one page in every scheme and width; returns what is wrong with it."""
    found = []
    for scheme, width in screens:
        browser.open(page, scheme, width)
        found += check_layout(browser, scheme, width)
        browser.screenshot(page.with_name(f"{page.stem}_{scheme}_{width}.png"))
    browser.open(page, *screens[0])
    found += check_folds(browser)
    found += check_tab_order(browser) + check_keyboard_use(browser, page) + check_layout(browser, *screens[0])
    found += check_theme(browser) + check_hostile(browser) + check_quiet(browser, page)
    browser.print(page.with_suffix(".pdf"))
    return list(dict.fromkeys(found))


GOOD = """<!doctype html><html lang="en"><title>t</title><body style="background:#fff;color:#111">
<a href="#m">Skip</a><h1>pass</h1><button id="theme" onclick="document.body.style.background='#eee'">Theme</button><p>text</p><!--here-->
<script type="application/json">{}</script><script>/*script*/</script></body></html>"""
PLANTED = {
    "console: error": ("/*script*/", "console.error('x')"),
    "exception:": ("/*script*/", "throw new Error('x')"),
    "request:": ("<!--here-->", "<link rel=stylesheet href='file:///nowhere.css'>"),
    "scrolls sideways": ("<!--here-->", "<div style='width:3000px'>x</div>"),
    "contrast of": ("<p>", "<p style='color:#999'>"),
    "not reachable by Tab": ("<!--here-->", "<button tabindex='-1'>x</button>"),
    "focus is not visible": ("<!--here-->", "<button style='outline:none'>x</button>"),
    "not to the skip link": ("Skip", "Jump"),
    "control without a name": ("<!--here-->", "<button></button>"),
    "no verdict in words": ("<h1>pass</h1>", ""),
    "theme button changes nothing": ("'#eee'", "'#fff'"),
    "was run": ("/*script*/", "window.pwned = 1"),
    "became tags": ("<!--here-->", "<img alt='' src='data:,'>"),
    "does not open its details": ("<!--here-->", "<button class='expand'>x</button>"),
    "arrow keys do not move": (
        "<!--here-->",
        "<div class='map'><p class='readout'>x</p><div class='frame' tabindex=0>x</div></div>",
    ),
    "does not open the folded": (
        "<!--here-->",
        "<details onclick='return false'><summary>x</summary>y</details>",
    ),
    "cut off in the navigation": (
        "<!--here-->",
        "<nav style='width:90px;overflow:hidden;white-space:nowrap'><a href='#m'>one item</a> <a href='#m'>another item</a></nav>",
    ),
    "px down, below 1000": ("<!--here-->", "<div class=brief><p style='margin-top:1100px'>x</p><p id=next>x</p></div>"),
    "does not filter": (
        "<!--here-->",
        "<section><input type=search aria-label=x><div><div class=table><table><tbody><tr><td><button class='expand'>x</button></table></div></div></section>",
    ),
}


def self_test(browser: Browser, folder: Path) -> "list[str]":
    missed = []
    for kind, (old, new) in {"": ("", ""), **PLANTED}.items():
        page = folder / "planted.html"
        page.write_text(GOOD.replace(old, new, 1) if old else GOOD, encoding="utf-8")
        found = check_page(browser, page, screens=[("light", 1280)])
        if kind and not any(kind in text for text in found):
            missed.append(f"not found: {kind} {new}; found {found}")
        if not kind and found:
            missed.append(f"a good page is blamed: {found}")
    return missed


def rendered(renderer: str, folder: Path, reports: "list[str]") -> "list[Path]":
    folder.mkdir(parents=True, exist_ok=True)
    if not reports:
        subprocess.run([sys.executable, "-B", ROOT / "tests/report/make_samples.py", folder], check=True)
        reports = [str(file) for file in sorted(folder.glob("*.json"))]
    pages = []
    for report in reports:
        pages.append((folder / Path(report).stem).with_suffix(".html").resolve())
        subprocess.run([renderer, report, pages[-1]], check=True)
    return pages


def main() -> int:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        print("skipped: no chromium")
        return SKIPPED
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("skipped: no playwright")
        return SKIPPED
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        browser = Browser(playwright, program)
        try:
            if "--self-test" in sys.argv:
                problems = self_test(browser, Path(scratch))
            else:
                problems = []
                for page in rendered(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]):
                    started = time.monotonic()
                    problems += [f"{page.name}: {text}" for text in check_page(browser, page)]
                    print(f"{page.name}: looked at in {len(SCREENS)} screens, {time.monotonic() - started:.1f} s")
        finally:
            browser.close()
    print("\n".join(problems) or "ok")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
