"""The built site in a headless browser: nothing is cut off at any width, and search finds the best page first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser
import pytest
from browser import Browser

HTML = Path(__file__).resolve().parents[2] / "build" / "docs" / "html"
PAGES = sorted(HTML.rglob("*.html"))
LONG = 126  # characters of a line of code that fits at 1,400 pixels

# Blocks that are wider than their place: the longest line, and the height of the scroll bar.
WIDE = """[...document.querySelectorAll('article pre')].filter((one) => one.scrollWidth > one.clientWidth).map(
    (one) => [Math.max(...one.textContent.split('\\n').map((line) => line.length)), one.offsetHeight - one.clientHeight])"""
BEYOND = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    path = browser.program()
    if path is None:
        pytest.skip(f"no browser is installed: one of {', '.join(browser.PROGRAMS)}")
    with Browser(path) as found:
        yield found


def resize(window: Browser, width: int) -> None:
    window.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)


def test_code_fits_at_1400_pixels_or_shows_a_scroll_bar(window: Browser) -> None:
    """On every page, and no page is wider than the window."""
    assert len(PAGES) > 400
    resize(window, 1400)
    wide, beyond = {}, []
    for page in PAGES:
        window.open(page)
        wide[page.name] = window.value(WIDE)
        if window.value(BEYOND) > 0:
            beyond.append(page.name)
    assert beyond == []
    found: list[Any] = [(name, block) for name, blocks in wide.items() for block in blocks]
    assert [(name, line) for name, (line, _) in found if line <= LONG] == []
    assert [(name, bar) for name, (_, bar) in found if bar < 8] == []


@pytest.mark.parametrize("width", [400, 1000])
@pytest.mark.parametrize(
    "name", ["index", "installation", "errors", "api", "reference/cudnnpy.Convolution", "not-here"]
)
def test_a_narrow_window_shows_whole_pages(window: Browser, width: int, name: str) -> None:
    resize(window, width)
    window.open(HTML / f"{name}.html")
    assert window.value(BEYOND) <= 0
    assert [bar for _, bar in window.value(WIDE) if bar < 8] == []


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("cudnnConvolutionForward", "reference/c/cudnnConvolutionForward.html"),
        ("cudnnSetTensor4dDescriptor", "reference/c/cudnnSetTensor4dDescriptor.html"),
        ("cudnnCreate", "reference/c/cudnnCreate.html"),
        ("FusedConvolution", "reference/cudnnpy.FusedConvolution.html"),
    ],
)
def test_search_finds_the_page_of_a_name_first(window: Browser, words: str, first: str) -> None:
    resize(window, 1400)
    window.open(HTML / "search.html", f"?q={words}")
    wait = """new Promise((done) => { let tries = 0; const look = () => {
        const link = document.querySelector('#search-results li a');
        if (link || ++tries > 100) done(link && link.getAttribute('href')); else setTimeout(look, 100); }; look(); })"""
    assert str(window.value(wait)).partition("#")[0].partition("?")[0] == first
