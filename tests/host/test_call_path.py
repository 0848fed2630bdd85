"""The drawing in docs/how-it-works.md: it is what the script draws, and what it draws is how a call goes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from xml.etree import ElementTree

from stand_in_device import Array, StandInDevice

import cudnnpy
from tools import draw_call_path as drawing

PACKAGE = Path(cudnnpy.__file__).parent
SVG = "{http://www.w3.org/2000/svg}"


def test_the_committed_drawing_is_what_the_script_draws() -> None:
    assert drawing.FILE.read_text() == drawing.draw(), "python -m tools.draw_call_path draws it again"


def test_every_module_in_it_exists() -> None:
    modules = [f"cudnnpy.{box.module}" for box in drawing.BOXES.values() if box.module]
    assert len(modules) > 8
    assert [name for name in modules if find_spec(name) is None] == []


def test_texts_are_within_their_boxes_and_boxes_do_not_overlap() -> None:
    root = ElementTree.fromstring(drawing.draw())
    texts = [text.text or "" for text in root.iter(f"{SVG}text")]
    for box in drawing.BOXES.values():
        assert box.title in texts
        assert box.text in texts
        for text, size in ((box.title, 15), (f"cudnnpy.{box.module}", 12), (box.text, 12)):
            assert len(text) * drawing.CHARACTER[size] < drawing.WIDTH, text
    corners = [drawing.corner(box) for box in drawing.BOXES.values()]
    assert len(set(corners)) == len(corners)
    assert drawing.STEP > drawing.HEIGHT
    width, height = (float(root.attrib[name]) for name in ("width", "height"))
    assert max(x for x, _ in corners) + drawing.WIDTH < width
    assert max(y for _, y in corners) + drawing.HEIGHT < height


def test_every_box_is_reached_from_the_call() -> None:
    reached = {"call"}
    while more := {end for start, end in drawing.ARROWS if start in reached} - reached:
        reached |= more
    assert reached == set(drawing.BOXES)


# What it draws


def entered(call: Callable[[], object]) -> list[str]:
    """The modules of the package whose functions a call enters, in the order of their first."""
    found: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and PACKAGE in file.parents:
            found[".".join(file.relative_to(PACKAGE).with_suffix("").parts)] = None

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return list(found)


def column(number: int) -> list[str]:
    return [box.module for box in sorted(drawing.BOXES.values(), key=lambda box: box.row) if box.column == number]


def test_a_first_call_takes_the_whole_path_and_a_known_one_plans_nothing(stand_in: StandInDevice) -> None:
    """A stand-in selects and runs here, so that the modules of the choice and of executables are not entered."""
    conv = cudnnpy.Convolution(padding=1)
    x, w, y = Array(2, 4, 6, 6), Array(8, 4, 3, 3), Array(2, 8, 6, 6)
    first = entered(lambda: conv.forward(x, w, out=y))
    replaced = {"_planning.selection", "_planning.candidates", "_measuring.search", "_launch.steps"}
    assert {*column(0), *column(1)} - {"", *replaced} <= set(first)
    in_order = ["_options.convolution_methods", "_runtime.dispatch", "_memory.arrays"]
    in_order += ["convolution.problem", "_planning.plan", "_runtime.launcher"]
    assert [module for module in first if module in in_order] == in_order
    known = entered(lambda: conv.forward(x, w, out=y))
    assert [module for module in known if module in column(1)] == []
    on_path = [module for module in column(0) if module in known]
    assert [module for module in known if module in column(0)] == on_path
    assert on_path[-2:] == ["_runtime.plan_cache", "_runtime.launcher"]
    assert len(stand_in.launches) == 2
