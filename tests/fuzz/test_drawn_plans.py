"""Plans of drawn graphs for the profile of an H200: no graph ends or blocks the process that plans it."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

from campaign import Campaign
from drawn_graphs import draw as draw_graph
from graph_checks import text_of
from offline_profiles import needs_profiles

from cudnnpy import DeviceProfile, Graph
from cudnnpy.errors import NoAlgorithmError
from cudnnpy.tuning.profiles.planner_process import PlanningError


class Case(NamedTuple):
    family: str
    graph: Graph

    def __repr__(self) -> str:
        return f"{self.family} {text_of(self.graph)}"


def draw(random: Random) -> Case:
    return Case(*draw_graph(random))


def run(case: Case) -> str:
    try:
        candidates: Any = case.graph.plan(DeviceProfile.load("h200")).candidates
    except NoAlgorithmError as error:
        candidates = error.candidates
    except ValueError as error:
        if "for which cuDNN" in str(error):
            return "rejected"
        raise
    except PlanningError as error:
        if " needs cuDNN 9." in str(error):
            return "not in this release"
        raise
    # On a GPU such a candidate would end the user's process.
    assert not [one for one in candidates if "ended" in one.rejection_reason]
    return "no algorithm" if all(one.rejection_reason for one in candidates) else "planned"


CAMPAIGN = Campaign(draw, run)


@needs_profiles
def test_no_graph_ends_the_process_that_plans_it() -> None:
    outcomes = CAMPAIGN.carry_out(
        __file__, "CAMPAIGN", least=5, environment={"CUDNNPY_STORE": "", "CUDNNPY_MODELS": ""}
    )
    assert set(outcomes) <= {"planned", "no algorithm", "rejected", "not in this release"}
    assert outcomes["planned"]
