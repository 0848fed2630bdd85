"""Plans in a store that somebody exchanged: what is planned again is the problem that was asked for, all else is refused."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from campaign import Campaign
from test_plan_texts import bytes_of, monster

from cudnnpy._planning import plan_text
from cudnnpy._planning.engines import engine_name
from cudnnpy._planning.options import PlanningOptions
from cudnnpy.errors import LibraryVersionError

INDICES = [*range(90), 1 << 16, 1 << 31, 1 << 62]
VALUES = [-(1 << 40), -1, 0, 1, 2, 3, 5, 8, 16, 100, 1 << 31, 1 << 62]


def exchanged(random: Random, text: str) -> str:
    """Another engine, other knobs or another part, described consistently and with a right digest."""
    content = json.loads(text)
    if content["engine"] is not None:
        knobs = content["engine"]["knobs"] or []
        if random.random() < 0.5:
            content["engine"]["index"] = random.choice(INDICES)
        if random.random() < 0.3:
            knobs = [[kind, random.choice(VALUES)] for kind in sorted(random.sample(range(64), random.randrange(6)))]
        elif knobs and random.random() < 0.7:
            random.choice(knobs)[1] = random.choice(VALUES)
        content["engine"]["knobs"] = knobs or None
        content["name"] = engine_name(content["engine"]["index"], tuple(map(tuple, knobs)))
    if random.random() < 0.2:
        content[random.choice(["part", "problem"])] = json.loads(text)["problem"]
    if random.random() < 0.2:
        content[random.choice(["source", "name", "kind", "strict", "part", "cudnn"])] = random.choice(
            ["knobs", 0, True, {}]
        )
    del content["sha256"]
    return json.dumps({**content, "sha256": plan_text.digest(content)})


def draw(random: Random) -> tuple[str, str]:
    from plan_samples import samples

    asked, other = (random.choice(samples()) for _ in range(2))
    if random.random() < 0.2:
        return asked, random.choice([bytes_of, monster])(random, asked)
    return asked, exchanged(random, asked if random.random() < 0.9 else other)


def run(case: tuple[str, str]) -> str:
    import planner
    from plan_samples import samples

    samples()
    asked, text = case
    problem: Any = plan_text.read(asked, 0).problem
    try:
        found = plan_text.rebuilt(text, problem, PlanningOptions(prefer="autotune"), planner.TARGET)
    except LibraryVersionError:
        return "another release"
    except ValueError:
        return "refused"
    content = json.loads(text)
    assert content["problem"] == problem.plain()
    if found.rejection_reason:
        return "rejected"
    assert found.lowering is not None
    assert found.lowering.plain() == content["part"]
    if found.engine is None or found.compiled_at_run_time:
        return "not planned here"
    return "not supported" if found.prepare() is None else "planned"


STORED = Campaign(draw, run)


def test_an_exchanged_plan_is_refused_or_planned_for_its_problem(planning_environment: dict[str, str]) -> None:
    outcomes = STORED.carry_out(__file__, "STORED", least=300, environment=planning_environment)
    print(dict(outcomes))
    assert {"refused", "planned"} <= outcomes.keys()
