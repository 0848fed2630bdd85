"""Pictures cut into tiles: everything is covered once, with its neighbours, by tiles of one shape and bounded size."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from cudnnpy.cli import tiles


@given(st.integers(1, 300), st.integers(0, 320))
@example(1, 0)
@example(4, 3)
def test_the_results_follow_each_other_and_have_their_neighbours(size, longest):
    found = tiles.spans(size, longest)
    assert [index for span in found for index in range(span.result.start, span.result.stop)] == list(range(size))
    assert {span.read.stop - span.read.start for span in found} == {min(size, max(longest, 3))}
    for span in found:
        assert span.result.start < span.result.stop
        assert 0 <= span.read.start <= max(span.result.start - 1, 0)
        assert size >= span.read.stop >= min(span.result.stop + 1, size)
        assert list(range(size))[span.read][span.inner] == list(range(size))[span.result]


@given(st.integers(1, 20_000), st.integers(1, 200_000), st.sampled_from([1 << 18, 1 << 21]))
@example(1, 178_956_970, 1 << 18)
@example(178_956_970, 1, 1 << 18)
def test_a_tile_is_bounded_whatever_the_picture_is(height, width, area):
    first = tiles.tiles(height, width, area)[0]
    rows, columns = first.rows.read, first.columns.read
    assert (rows.stop - rows.start) * (columns.stop - columns.start) <= area


def test_a_picture_within_the_area_is_one_tile():
    assert len(tiles.tiles(1080, 1920, 1 << 21)) == 1
    assert len(tiles.tiles(1080, 1920, 1080 * 1920 - 1)) == 2
    assert len(tiles.tiles(5, 2 * tiles.LONGEST, 1 << 21)) == 3
