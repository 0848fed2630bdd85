"""The problems of surveys: grouped convolutions that a seed draws, and the cells of lists of networks."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from cudnnpy._convolution.specification import ConvolutionSpec
from cudnnpy._planning import problem_notation
from tools.benchmark.networks import catalogue
from tools.benchmark.networks.cells import KINDS, OPERATIONS
from tools.ranking.drawing import OF_NO_NETWORK, draw

GROUPED = catalogue.FILE.with_name("grouped.txt")


def test_drawn_grouped_convolutions_are_of_all_kinds_and_of_no_network() -> None:
    drawn = [draw(1, number, grouped=1.0) for number in range(200)]
    assert drawn == [draw(1, number, grouped=1.0) for number in range(200)]
    assert {one.network for one in drawn} == {OF_NO_NETWORK}
    problems = [cast("ConvolutionSpec", problem_notation.parse(one.text)[0]) for one in drawn]
    assert all(2 <= one.groups <= 128 and one.x.shape[1] <= 128 * one.groups for one in problems)
    assert {one.operation for one in problems} == set(OPERATIONS)
    assert {one.x.dtype for one in problems} == {kind.dtype for kind in KINDS}
    assert {one.x.shape[1] == one.y.shape[1] for one in problems} == {True, False}


def test_no_model_is_trained_on_the_grouped_networks() -> None:
    others = [Path(catalogue.FILE), catalogue.FILE.with_name("left_out.txt")]
    surveyed = {layer for file in others for network in catalogue.read(file) for layer in network.layers}
    assert not surveyed & {layer for network in catalogue.read(GROUPED) for layer in network.layers}
