"""The problems of surveys: grouped convolutions that a seed draws, and the cells of lists of networks."""

from __future__ import annotations

from typing import cast

from cudnnpy._convolution.specification import ConvolutionSpec
from cudnnpy._planning import problem_notation
from tools.benchmark.networks import catalogue
from tools.benchmark.networks.cells import KINDS, OPERATIONS
from tools.ranking.drawing import OF_NO_NETWORK, draw


def test_drawn_grouped_convolutions_are_of_all_kinds_and_of_no_network() -> None:
    drawn = [draw(1, number, grouped=1.0) for number in range(200)]
    assert drawn == [draw(1, number, grouped=1.0) for number in range(200)]
    assert {one.network for one in drawn} == {OF_NO_NETWORK}
    problems = [cast("ConvolutionSpec", problem_notation.parse(one.text)[0]) for one in drawn]
    assert all(2 <= one.groups <= 128 and one.x.shape[1] <= 128 * one.groups for one in problems)
    assert {one.operation for one in problems} == set(OPERATIONS)
    assert {one.x.dtype for one in problems} == {kind.dtype for kind in KINDS}
    assert {one.x.shape[1] == one.y.shape[1] for one in problems} == {True, False}


def test_the_lists_of_networks_have_no_convolution_twice() -> None:
    """The list timm.txt, whose figures docs/dev/ranking.md has, is of convolutions that no model is trained on."""
    names = ("catalogue", "left_out", "grouped", "timm")
    lists = [catalogue.read(catalogue.FILE.with_name(f"{name}.txt")) for name in names]
    layers = [{layer for network in networks for layer in network.layers} for networks in lists]
    assert sum(map(len, layers)) == len(set[catalogue.Layer]().union(*layers))
