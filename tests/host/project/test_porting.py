"""The pages on porting: the names of their tables exist. Their programs: test_docs.py."""

from __future__ import annotations

import re

import pages
import pytest

import cudnnpy
from cudnnpy import descriptors, raw, reference
from cudnnpy._checks.other_names import advice
from cudnnpy._convolution.options import algorithm_named
from cudnnpy.descriptors import FUNCTIONS

FOLDER = pages.ROOT / "docs" / "porting"
SOURCES = ("from-c.md", "cudnn-frontend.md", "theano.md", "singa.md", "mxnet.md", "cupy.md", "torch.md", "jax.md")


def rows(page: str) -> list[list[str]]:
    """The cells of every row of a page's tables but the headings'."""
    found = []
    for line in (FOLDER / page).read_text().splitlines():
        if line.startswith("| "):
            found.append([cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        elif line.startswith("|---"):
            found.pop()
    return found


def code(cell: str) -> str:
    """What stands in backticks in a cell."""
    return " ".join(re.findall(r"`([^`]+)`", cell))


@pytest.mark.parametrize("page", SOURCES)
def test_our_names_exist(page: str) -> None:
    """In the cells beside theirs: what follows "cudnnpy.", and what starts with a capital and is called or stands alone."""
    cells = [cell for row in rows(page) for cell in row[1:]]
    ours = " ".join(map(code, cells))
    classes = set(re.findall(r"`([A-Z][a-z]\w+)[`(]", " ".join(cells))) - {"ConvolutionLayer", "None"}  # the example's
    assert len(classes) >= 3 or page == "singa.md"
    assert [name for name in classes if name not in (*reference.__all__, "Graph")] == []
    assert [name for name in re.findall(r"\bcudnnpy\.([A-Za-z]\w*)", ours) if not known(name)] == []
    assert [name for name in re.findall(r"\bcudnnpy\.descriptors\.(\w+)", ours) if not hasattr(descriptors, name)] == []


def known(name: str) -> bool:
    return name in ("descriptors", "backend") or name in cudnnpy.__all__


def test_the_cs_names_exist_or_are_listed_as_removed() -> None:
    text = " ".join(code(cell) for row in rows("from-c.md") for cell in row)
    names = set(re.findall(r"\b(?:cudnn[A-Z]|CUDNN_)\w+", text.replace("cudnnXxx", "").replace("cudnnDestroy...", "")))
    assert len(names) > 100
    assert [name for name in names if name not in advice("raw") and not hasattr(raw, name)] == []


def test_theanos_algorithm_names_are_what_the_page_says() -> None:
    table = [row for row in rows("theano.md") if len(row) == 4]
    named = {name for row in table for name in re.findall(r"`(\w+)`", row[0])}
    assert named >= {"none", "small", "large", "deterministic", "fft", "fft_tiling", "winograd", "winograd_non_fused"}
    for operation, column in (("forward", 1), ("backward_data", 2), ("backward_filter", 3)):
        for row in table:
            ours = row[column].partition(" ")[0]
            for name in re.findall(r"`(\w+)`", row[0]):
                if not row[column]:
                    with pytest.raises(ValueError, match="must be one of"):
                        algorithm_named(operation, name)
                    continue
                found = algorithm_named(operation, name)
                assert found == (name.replace("non_fused", "nonfused") if row[column] == "the same" else ours)
                assert (found in FUNCTIONS[operation].nondeterministic) is ("not deterministic" in row[column])


def test_theanos_policies_are_options() -> None:
    table = [row for row in rows("theano.md") if row[0].startswith(("`guess_", "`time_"))]
    assert [code(row[0]) for row in table] == [
        "guess_once",
        "guess_on_shape_change",
        "time_once",
        "time_on_shape_change",
    ]
    for name, ours, _ in table:
        conv = eval(f"cudnnpy.Convolution({code(ours)})", {"cudnnpy": cudnnpy})
        assert conv.options.prefer == ("autotune" if "time" in name else "fastest")
        assert conv.options.policy == ("once" if "once" in name else "on_shape_change")


@pytest.mark.parametrize("page", ["theano.md", "mxnet.md"])
def test_options_in_the_tables_are_taken(page: str) -> None:
    """prefer=, policy=, deterministic=, tf32=, layout= with a value, as a reader would copy them."""
    found = 0
    for row in rows(page):
        for text in re.findall(r"`([^`]+)`", row[1]):
            if re.match(r"(prefer|policy|deterministic|tf32|layout)=[^`]*[\"\w]$", text) and "=," not in text:
                eval(f"nn.Convolution({text})", {"nn": reference})
                eval(f"nn.Convolution({text})", {"nn": cudnnpy})
                found += 1
    assert found >= 4
