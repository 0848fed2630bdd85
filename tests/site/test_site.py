"""The built site, which `make docs` tests: pages, names, links and search. It needs Sphinx, and neither a GPU nor cuDNN."""

from __future__ import annotations

import inspect
import json
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from sphinx.util.inventory import InventoryFile

from cudnnpy import raw
from cudnnpy.raw import _api
from tools import build_site as site
from tools import public_api

ROOT = Path(__file__).resolve().parents[2]
HTML = ROOT / "build" / "docs" / "html"


class Page(HTMLParser):
    """The links, the anchors and the text of a page."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file
        self.links: list[str] = []
        self.loaded: list[str] = []  # what a browser fetches by itself
        self.anchors: set[str] = set()
        self.text = ""
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attributes}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        self.loaded += [found[name] for name in ("src", "data") if name in found]
        if tag == "link" and found.get("rel") in ("stylesheet", "icon", "preload"):
            self.loaded.append(found["href"])

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="session")
def built() -> dict[Path, Page]:
    assert (HTML / "index.html").is_file(), "the site is not built: make docs"
    return {file: Page(file) for file in sorted(HTML.rglob("*.html"))}


@pytest.fixture(scope="session")
def objects() -> dict[str, str]:
    """The names of the reference -> where they are."""
    with (HTML / "objects.inv").open("rb") as stream:
        inventory = InventoryFile.load(stream, "", lambda base, name: name)
    return {
        name: item.uri for kind, items in inventory.items() if kind.startswith("py:") for name, item in items.items()
    }


# Pages and links


def test_every_page_of_docs_is_a_page_of_the_site(built: dict[Path, Page]) -> None:
    pages = [site.place(page).with_suffix(".html") for page in site.pages(ROOT)]
    assert len(pages) > 20
    assert [page for page in pages if HTML / page not in built] == []
    assert HTML / "project" / "CONTRIBUTING.html" in built
    assert HTML / "examples" / "edge_detector.html" in built


def test_every_link_leads_to_a_file_and_every_anchor_to_a_place_in_it(built: dict[Path, Page]) -> None:
    broken, checked = [], 0
    for file, page in built.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            checked += 1
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            if not target.is_file() or (
                parts.fragment and target in built and unquote(parts.fragment) not in built[target].anchors
            ):
                broken.append((file.name, link))
    assert checked > 1000
    assert broken == []


def test_nothing_is_fetched_from_elsewhere(built: dict[Path, Page]) -> None:
    """The site works without a network, and tells no one that it is read."""
    loaded = {link for page in built.values() for link in page.loaded}
    assert len(loaded) > 5
    assert [link for link in loaded if urlsplit(link).netloc] == []
    styles = "".join(file.read_text() for file in HTML.rglob("*.css"))
    assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", styles) == []


# The reference


def test_the_reference_has_every_public_name_and_nothing_else(objects: dict[str, str]) -> None:
    public = {*public_api.MODULES, *map(public_api.page_of, public_api.paths())}
    public |= {f"cudnnpy.raw.{name}" for name in raw.functions()}
    assert len(public) > 500
    assert sorted(public - set(objects)) == []
    ours = {name for name, place in objects.items() if place.startswith("reference/")}
    canonical = {
        f"{kind.__module__}.{kind.__qualname__}" for _, kind in public_api.objects() if hasattr(kind, "__qualname__")
    }
    strange = [
        name for name in ours - public if not any(name == one or name.startswith(f"{one}.") for one in canonical)
    ]
    assert strange == []


def signature(file: Path, path: str) -> str:
    """The signature of a name on its page, as text."""
    found = re.search(rf'<dt class="sig[^>]*id="{re.escape(path)}">(.*?)</dt>', file.read_text(), re.DOTALL)
    assert found, f"{file.name} has no signature of {path}"
    return unescape(re.sub(r"<[^>]+>", "", found[1]))


@pytest.mark.parametrize("path", [path for path, _ in public_api.objects()])
def test_a_public_name_has_a_page_with_its_signature_and_types(path: str) -> None:
    page = public_api.page_of(path)
    shown = signature(HTML / "reference" / f"{page}.html", page)
    value: Any = dict(public_api.objects())[path]
    if inspect.isfunction(value):
        annotated = [
            name for name, one in inspect.signature(value).parameters.items() if one.annotation is not one.empty
        ]
        assert [name for name in annotated if not re.search(rf"\b{name}:", shown)] == []
        assert len(annotated) == len(inspect.signature(value).parameters)
        assert "→" in shown, "no type of the result"


@pytest.mark.parametrize("name", raw.functions())
def test_a_function_of_c_has_a_page_with_its_facts(built: dict[Path, Page], name: str) -> None:
    text = " ".join(built[HTML / "reference" / "c" / f"{name}.html"].text.split())
    assert f"{raw.prototype(name).split('(')[0]}(" in text
    assert raw.since(name) is None or f"Since cuDNN {raw.since(name)}" in text
    replacements = raw.deprecated(name)
    assert ("Deprecated" in text) == (replacements is not None)
    for replacement in replacements or ():
        assert f"replaced by {replacements[0]}" in text
        assert replacement in text
    for parameter, kind, direction in raw.parameters(name):
        assert f"{parameter} {' '.join(kind.split())} {direction or 'not stated'}" in text
    assert text.count("rejected: TypeError for None, ValueError for NULL") == len(_api.NOT_NULL.get(name, ()))


def test_names_in_the_pages_lead_to_the_reference(built: dict[Path, Page]) -> None:
    links = set(built[HTML / "api.html"].links)
    wanted = ("cudnnpy.Convolution", "cudnnpy.Plan.execute", "cudnnpy.raw.call", "cudnnpy.errors.StatusError")
    for name in wanted:
        page = name if name != "cudnnpy.Plan.execute" else "cudnnpy.Plan"
        assert f"reference/{page}.html#{name}" in links


# Search


@pytest.fixture(scope="session")
def index() -> dict[str, Any]:
    text = (HTML / "searchindex.js").read_text()
    found: dict[str, Any] = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    return found


def names(index: dict[str, Any]) -> set[str]:
    """The names that a search finds, by whole paths."""
    return {
        f"{prefix}.{entry[4]}" if prefix else entry[4]
        for prefix, entries in index["objects"].items()
        for entry in entries
    }


def pages_with(index: dict[str, Any], term: str) -> set[str]:
    """The pages in whose text or headings a word is; its ending is cut off, as the search does."""
    found = [index[kind].get(term, []) for kind in ("terms", "titleterms")]
    numbers = [number for one in found for number in (one if isinstance(one, list) else [one])]
    return {index["docnames"][number] for number in numbers}


def test_a_search_finds_every_public_name(index: dict[str, Any]) -> None:
    found = names(index)
    assert "cudnnpy.Convolution" in found
    assert [name for name in raw.functions() if f"cudnnpy.raw.{name}" not in found] == []
    assert "cudnnpy.Convolution.forward" in found
    assert [path for path in public_api.paths() if public_api.page_of(path) not in found] == []


def test_a_search_finds_words_of_the_pages_and_their_titles(index: dict[str, Any]) -> None:
    assert pages_with(index, "workspac") >= {"choosing-algorithms", "arrays-and-streams"}
    assert "installation" in pages_with(index, "driver")
    assert {"Quickstart", "How it works"} <= set(index["titles"])
    assert (HTML / "search.html").is_file()


# What fails the build


BROKEN = {
    "[a](nothing.md)": "nothing.md",
    "[a](index.md#nowhere)": "nowhere",
    "[a](#nowhere)": "nowhere",
    "![a](nothing.png)": "nothing.png",
    "```{nonsense}\n```": "nonsense",
}


@pytest.mark.parametrize("text", BROKEN)
def test_a_fault_in_a_page_fails_the_build_with_its_line(
    text: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    files = {PurePosixPath("index.md"): b"# Start\n", PurePosixPath("page.md"): f"# Page\n\n{text}\n".encode()}
    assert site.build(tmp_path, files=files) != 0
    lines = [line for line in capfd.readouterr().err.splitlines() if "page.md:3" in line]
    assert lines
    assert BROKEN[text] in lines[0]
