"""The drawing in docs/how-it-works.md: it is what the script draws, and what it draws is how a call goes."""

from __future__ import annotations

from importlib.util import find_spec
from xml.etree import ElementTree

from tools import draw_call_path as drawing

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
