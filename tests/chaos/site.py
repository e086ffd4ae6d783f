"""``./dev chaos site``: two versions of the site, in a headless Chromium, at the width of a phone and of a desk.

No page scrolls sideways on a phone, and nothing in it is cut off; the search leads to the section of each error code
and option, and finds parts of a code; a link from when all codes were on one page leads to the section of the code; the
menu is folded into few groups; the choice of a version leads to the same page of the other one. Writes the pictures of
the site in docs/pictures with ``--pictures``.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from tests.chaos.support.record import ROOT
from tests.support.chromium import Chromium, NavigatedError, installed
from tools.site import build

_OLD, _NEW = "0.1.0", "0.2.0"
_PHONE: Final = (390, 844)
_DESK: Final = (1280, 900)
_PICTURES: Final = {
    "front": "index",
    "reference": "reference/kafka",
    "avro": "reference/avro",
    "performance": "performance",
}

# How wide a page is: Furo hides what the window would scroll to, and lets the box of the whole content scroll instead.
_WIDTH: Final = """Math.max(...['html', '.content'].map(each => document.querySelector(each).scrollWidth))"""

# What ends right of the screen, and has no box of its own around it that scrolls.
_CUT_OFF: Final = """[...document.querySelectorAll('article *')].filter(each => {
  if (each.getBoundingClientRect().right <= innerWidth + 1) return false;
  for (let box = each.parentElement; box.tagName != 'ARTICLE'; box = box.parentElement)
    if (['auto', 'scroll'].includes(getComputedStyle(box).overflowX)) return false;
  return true;
}).slice(0, 3).map(each => each.tagName + ' ' + each.textContent.slice(0, 60))"""

# Sphinx's own search, for many words in one call: the first results of each.
_SEARCH: Final = """(words => Object.fromEntries(words.map(word => {
  const found = Search._performSearch(...Search._parseQuery(word));
  return [word, found.slice(-5).map(each => each[0] + (each[2] ?? ''))];
})))"""


class _Quiet(SimpleHTTPRequestHandler):
    def handle(self) -> None:
        with suppress(ConnectionError):  # the browser leaves a page before all of it has come
            super().handle()

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - http.server's name
        del format, arguments


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on the loopback interface; gives its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def wait_for(browser: Chromium, expression: str) -> Any:
    """Return the value of an expression as soon as it is true."""
    for _ in range(300):
        with suppress(NavigatedError):
            if value := browser.value(expression):
                return value
        time.sleep(0.1)
    raise AssertionError(f"never true: {expression}")


def check_widths(browser: Chromium, address: str, pages: list[str]) -> str:
    """Check that nothing of a page is out of reach on a phone."""
    browser.screen(*_PHONE)
    for page in pages:
        browser.open(f"{address}/{page}")
        width = browser.value(_WIDTH)
        assert width <= _PHONE[0], f"{page} is {width} wide on a phone"
        cut_off = browser.value(_CUT_OFF)
        assert not cut_off, f"{page} hides on a phone: {cut_off}"
    return f"{len(pages)} pages fit a screen {_PHONE[0]} pixels wide"


def headings(folder: str, pattern: str, after: str = "") -> dict[str, set[str]]:
    """Return the names in the headings of a folder of docs/reference, with the pages of each."""
    pages: dict[str, set[str]] = {}
    for path in sorted((ROOT / "docs/reference" / folder).glob("*.md")):
        text = path.read_text(encoding="utf-8").partition(after)[2] if after else path.read_text(encoding="utf-8")
        for name in re.findall(pattern, text, re.MULTILINE):
            pages.setdefault(name, set()).add(path.relative_to(ROOT / "docs").with_suffix("").as_posix())
    return pages


def check_search(browser: Chromium, address: str) -> str:
    """Check that the search leads to the section of each error code and each option first, and finds parts of codes."""
    codes, options = (
        headings("errors", r"^## `([A-Z_.]+)`$"),
        headings("", r"^### `([\w.]+)`$", "\n## Options in detail\n"),
    )
    assert len(codes) > 100
    assert len(options) > 100
    parts = {"_".join(code.split("_")[:2]) for code in codes if code.count("_") > 1}
    browser.open(f"{address}/search.html?q=SPOOL_NOT_WRITABLE")
    wait_for(browser, "document.querySelectorAll('ul.search > li').length")
    found = browser.value(f"{_SEARCH}({json.dumps([*codes, *options, *parts])})")
    lost = [word for word in parts if not any("reference/errors" in each for each in found[word])]
    assert not lost, f"the search does not find {lost}"
    elsewhere = {
        name: found[name]
        for name, pages in {**codes, **options}.items()
        if not any(f"{page}#" in (found[name] or [""])[-1] for page in pages)
    }
    assert not elsewhere, f"the search does not lead to the section of {elsewhere}"
    browser.open(f"{address}/index.html")
    browser.value(
        "(box => { box.value = 'SPOOL_DISK'; box.form.submit(); })(document.querySelector('.sidebar-search'))"
    )
    first = wait_for(browser, "document.querySelector('ul.search > li > a')?.getAttribute('href')")
    assert first.startswith("reference/errors/spool.html#spool-disk"), first
    return f"the search leads to {len(codes)} codes and {len(options)} options, and finds {len(parts)} parts"


def check_old_links(browser: Chromium, address: str) -> str:
    """Check that links to a code on the page of all codes lead to its section, as the site and GitHub wrote them."""
    index = f"{address}/reference/errors.html"
    browser.open(index)
    wanted = browser.value(
        """[...document.querySelectorAll('article a[href^="errors/"] code')]"""
        ".map(code => [code.textContent, code.closest('a').href])"
    )
    assert len(wanted) > 100
    for number, (code, section) in enumerate(wanted):
        anchors = (re.sub(r"[^a-z0-9]+", "-", code.lower()), re.sub(r"[^a-z0-9_]", "", code.lower()))
        browser.open(f"{index}?{number}#{anchors[number % 2]}")
        wait_for(browser, f"location.href === {json.dumps(section)}")
        assert browser.value("document.querySelector(':target h2').textContent").startswith(code), section
    browser.open(f"{index}#no-such-code")
    assert browser.value("location.pathname").endswith("/reference/errors.html")
    return f"{len(wanted)} links to codes on the page of all codes lead to their sections"


def check_menu(browser: Chromium, address: str) -> str:
    """Check that the menu has few groups, of which that of the page is open."""
    browser.screen(*_DESK)
    browser.open(f"{address}/reference/kafka.html")
    groups = browser.value("[...document.querySelectorAll('.sidebar-tree details')].map(each => each.open)")
    outside = browser.value("document.querySelectorAll('.sidebar-tree > ul > li').length")
    assert len(groups) + outside <= 9, groups
    assert groups.count(True) == 1, groups
    return f"the menu has {len(groups)} groups, of which one is open"


def check_versions(browser: Chromium, site: str) -> str:
    """Check the choice of a version, and what an old one says."""
    browser.open(f"{site}/")
    wait_for(browser, f"location.pathname == '/{_NEW}/index.html'")
    browser.open(f"{site}/{_NEW}/reference/kafka.html")
    offered = wait_for(browser, "[...document.querySelectorAll('#version-choice option')].map(each => each.value)")
    assert offered == [_NEW, _OLD], offered
    assert browser.value("document.querySelector('.version strong').textContent") == _NEW
    assert not browser.value("document.querySelector('.old-version') !== null")
    choose = f"choice => {{ choice.value = '{_OLD}'; choice.dispatchEvent(new Event('change')); }}"
    browser.value(f"({choose})(document.getElementById('version-choice'))")
    wait_for(browser, f"location.pathname == '/{_OLD}/reference/kafka.html'")
    note = wait_for(browser, "document.querySelector('.old-version')?.textContent")
    assert note == f"This is version {_OLD}; the latest is {_NEW}.", note
    return f"{_OLD} and {_NEW} lead to each other"


def write_pictures(browser: Chromium, address: str, folder: Path, names: dict[str, str]) -> None:
    """Write what the pages look like, light and dark, on a desk and on a phone, each way once."""
    for name, page in names.items():
        for kind, size, dark in (("desk", _DESK, False), ("phone", _PHONE, True)):
            browser.screen(*size, dark=dark)
            browser.open(f"{address}/{page}.html")
            browser.picture(folder / f"site-{name}-{kind}.png")


def main() -> int:
    """Build the versions, and check them; the exit code is 1 if a check failed."""
    parser = argparse.ArgumentParser(prog="./dev chaos site", description="The site in a headless Chromium.")
    parser.add_argument("--pictures", action="store_true", help="also write docs/pictures/site-*.png")
    command_line = parser.parse_args()
    if installed() is None:
        print("no Chromium is installed: apt-get install chromium")
        return 1
    with tempfile.TemporaryDirectory(prefix="site-") as folder:
        site = Path(folder, "site")
        site.mkdir()
        for version in (_OLD, _NEW):
            assert build(site, version) == 0
        pages = sorted(path.relative_to(site / _OLD).as_posix() for path in (site / _OLD).rglob("*.html"))
        with served(site) as address, Chromium(Path(folder, "profile")) as browser:
            old = f"{address}/{_OLD}"
            print(check_versions(browser, address), flush=True)
            print(check_menu(browser, old), flush=True)
            print(check_search(browser, old), flush=True)
            print(check_old_links(browser, old), flush=True)
            print(check_widths(browser, old, pages), flush=True)
            if command_line.pictures:
                there = {name: page for name, page in _PICTURES.items() if f"{page}.html" in pages}
                write_pictures(browser, f"{address}/{_NEW}", ROOT / "docs/pictures", there)
    return 0


if __name__ == "__main__":
    sys.exit(main())
