"""The list of networks, the families of operations, and the order of their rows: no GPU, no torch."""

from __future__ import annotations

import math
from collections import Counter
from operator import attrgetter
from pathlib import Path

import pytest
from network_rows import LINES

from tools.benchmark import operations
from tools.benchmark.networks import catalogue
from tools.benchmark.networks.catalogue import Layer, Network, layer
from tools.benchmark.networks.cells import KINDS, cells, in_order

NETWORKS = catalogue.read()


# --- the list


def test_the_list_has_the_networks_that_it_is_to_have() -> None:
    names = {network.name for network in NETWORKS}
    wanted = (
        "resnet vgg mobilenet_v2 mobilenet_v3 efficientnet convnext regnet resnext densenet inception googlenet "
        "shufflenet mnasnet alexnet squeezenet deeplab fcn r3d mc3 r2plus1d unet unet_3d stable_diffusion_unet "
        "stable_diffusion_decoder dcgan pix2pix whisper wavenet vit swin"
    )
    assert len(names) >= 25
    assert [name for name in wanted.split() if not any(other.startswith(name) for other in names)] == []
    assert all(network.batch > 1 and network.layers for network in NETWORKS)
    layers = {layer for network in NETWORKS for layer in network.layers}
    assert {layer.axes for layer in layers} == {1, 2, 3}
    assert all(any(test(layer) for layer in layers) for test in (attrgetter("transposed"), attrgetter("depthwise")))
    assert any(max(layer.output_padding) for layer in layers)
    assert len(next(network for network in NETWORKS if network.name == "resnet50").layers) == 23


def test_the_committed_list_is_what_is_written_from_it() -> None:
    assert catalogue.FILE.read_text(encoding="utf-8") == catalogue.write(NETWORKS)


@pytest.mark.parametrize("line", LINES)
def test_a_line_reads_back(line: str) -> None:
    assert layer(line).text == line


def test_a_line_says_what_it_says() -> None:
    made = layer(LINES[3])
    assert made == Layer(128, (128, 128), 64, (3, 3), (2, 2), (1, 1), (1, 1), (1, 1), 1, True, True)
    assert (made.x_shape(4), made.w_shape, made.y_shape(4)) == ((4, 128, 128, 128), (128, 64, 3, 3), (4, 64, 256, 256))
    assert made.operations(4) == 2 * 4 * 128 * 128 * 128 * 64 * 9
    plain = layer(LINES[2])
    assert (plain.w_shape, plain.y_shape(2), plain.depthwise) == ((512, 1, 1, 7), (2, 512, 17, 17), True)
    assert plain.operations(2) == 2 * 2 * 512 * 17 * 17 * 7
    assert layer("64x8x8 -> 64, 1x1").moved_bytes(2, 2) == 2 * (2 * 64 * 64 + 64 * 64 + 2 * 64 * 64)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("64x56x56", "a layer must be a line such as"),
        ("64x56x56 -> 128, 3x3, strides 2", r"an option must be one of .*; got 'strides 2'"),
        ("64x56x56 -> 128, 3x3x3", "an option must be one number, or 2; got"),
        ("64x56x56 -> 128, 3x3, padding 1x1x1", "an option must be one number, or 2; got"),
        ("64x56x56 -> 128, 3x3, padding -1", "a size must be integers"),
        ("64x56x56 -> 128, 3x3, groups 3", "groups must divide the channels"),
        ("64x2x2 -> 128, 3x3", "the result must not be empty"),
    ],
)
def test_a_line_that_is_none_is_refused_with_its_number(text: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=expected):
        layer(text)
    file = tmp_path / "list.txt"
    file.write_text(f"# a list\n[net] batch 2, here\n{text}\n")
    with pytest.raises(ValueError, match=r"list\.txt, line 3: .*" + expected):
        catalogue.read(file)


@pytest.mark.parametrize(
    "text", ["64x8x8 -> 64, 1x1\n", "[a]\n", "[a] batch 2, x\n8x8x8 -> 8, 1x1\n[a] batch 2, x\n8x8x8 -> 8, 1x1\n"]
)
def test_a_list_without_its_networks_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "list.txt"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"list\.txt, line"):
        catalogue.read(file)


# --- the order of the cells


def test_each_distinct_cell_comes_once_with_all_its_networks() -> None:
    order = in_order(NETWORKS, 0)
    assert len({cell.key for cell in order}) == len(order)
    assert {cell.key for cell in order} == {cell.key for of in cells(NETWORKS).values() for cell in of}
    shared = layer("64x56x56 -> 64, 3x3, padding 1")
    having = tuple(network.name for network in NETWORKS if shared in network.layers)
    assert len(having) > 1
    assert {cell.networks for cell in order if cell.layer == shared and cell.batch == 1} == {having}
    assert {(cell.kind.name, cell.operation) for cell in order if cell.layer == shared} == {
        (kind.name, operation) for kind in KINDS for operation in ("forward", "backward_data", "backward_filter")
    }


def test_the_seed_draws_the_order() -> None:
    first = [cell.key for cell in in_order(NETWORKS, 1)]
    assert first == [cell.key for cell in in_order(NETWORKS, 1)]
    other = [cell.key for cell in in_order(NETWORKS, 2)]
    assert set(first) == set(other)
    assert len(set(first[:200]) & set(other[:200])) < 40


def test_a_short_sample_has_every_network_and_every_kind() -> None:
    sample = in_order(NETWORKS, 3)[: 2 * len(NETWORKS)]
    drawn = Counter(network for cell in sample for network in cell.networks)
    assert set(drawn) == {network.name for network in NETWORKS}
    assert {cell.kind for cell in sample} == set(KINDS)


def test_a_training_batch_of_one_is_no_second_cell() -> None:
    network = Network("a", 1, "here", (layer(LINES[0]),))
    assert len(in_order([network], 0)) == len(KINDS) * 3


# The families of operations


def test_the_order_of_operations_is_the_seeds_and_has_every_problem_once() -> None:
    first, again, other = (operations.in_order(seed) for seed in (3, 3, 4))
    assert [one.name for one in first] == [one.name for one in again] != [one.name for one in other]
    assert {one.name for one in first} == {one.name for one in other}
    assert len({one.name for one in first}) == len(first) == sum(map(len, operations.problems().values()))
    names = list(operations.problems())
    turns = [operations.operation(one.case.name, one.shape) for one in first[: 2 * len(names)]]
    assert sorted(turns[: len(names)]) == sorted(turns[len(names) :]) == sorted(names)


def test_the_families_reach_from_end_to_end() -> None:
    found = operations.in_order(0)
    rows, images = ([one for one in found if len(one.shape) == rank] for rank in (2, 4))
    assert {one.shape[1] for one in rows} >= {64, 50257, 131072}
    assert {one.shape[1] for one in images} >= {1, 3, 4096}
    assert {one.shape[2] for one in images} >= {1, 7, 56, 256}
    for some, kinds in ((rows, 4), (images, 8)):
        assert len({one.kind.name for one in some}) == kinds
    assert all(operations.MIN_ELEMENTS <= math.prod(one.shape) <= operations.MAX_ELEMENTS for one in found)
    assert all(min(one.shape[2:]) > 1 for one in images if "pooling" in one.case.name or "instance" in one.case.name)
