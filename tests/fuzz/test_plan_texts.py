"""Plan.from_json of spoiled texts: a text is refused with one line, or a plan of the problem that it names is loaded."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from campaign import Campaign

from cudnnpy._planning.choice import Engine
from cudnnpy._planning.engines import engine_name
from cudnnpy._planning.plan import Plan
from cudnnpy._planning.problem_notation import text_of
from cudnnpy.errors import LibraryVersionError, StatusError

JUNK: list[Any] = [
    None,
    True,
    0,
    -1,
    7,
    1 << 40,
    1 << 63,
    1 << 70,
    1.5,
    1e300,
    "",
    "zz",
    "\ud800",
    [],
    {},
    [[1]],
    [0] * 500,
]
INDICES = [*range(90), 1 << 16, 1 << 31, 1 << 62]
VALUES = [-(1 << 40), -1, 0, 1, 2, 3, 5, 8, 16, 100, 1 << 31, 1 << 62]


def bytes_of(random: Random, text: str) -> str:
    """A few characters changed, left out or repeated, as a disk or a copy would."""
    for _ in range(random.choice([1, 1, 2, 8])):
        at, until = sorted(random.randrange(len(text) + 1) for _ in range(2))
        text = random.choice(
            [
                text[:at] + random.choice('0123456789"[]{},:-. aZ\\\n\u1234') + text[at + 1 :],
                text[:at] + text[at + random.choice([1, 2, 50]) :],
                text[:at] + text[at : at + 30] + text[at:],
                text[:until],
            ]
        )
    return text


def fields_of(random: Random, text: str) -> str:
    """Fields exchanged with junk or with those of another plan, left out or added; and a digest that fits."""
    from plan_samples import samples, sealed

    whole, another = json.loads(text), json.loads(random.choice(samples()))
    pairs = [(whole, another), (whole["choice"], another["choice"])]
    engines = whole["choice"]["engine"], another["choice"]["engine"]
    fields, other = random.choice([*pairs, engines] if all(engines) else pairs)
    for name in random.sample(sorted(fields), random.choice([1, 1, 2, 3])):
        fields[name] = random.choice([other[name], other[name], random.choice(JUNK)])
    if not random.randrange(8):
        fields.pop(random.choice(sorted(fields)))
    return sealed(whole)


def words_of(random: Random, text: str) -> str:
    """Words of the problem or of the lowering exchanged, left out, repeated or changed; and a digest that fits."""
    from plan_samples import samples, sealed

    whole = json.loads(text)
    fields, name = random.choice([(whole, "problem"), (whole, "problem"), (whole["choice"], "lowering")])
    words = fields[name].split(" ")
    at = random.randrange(len(words))
    words[at : at + 1] = random.choice(
        [
            [],
            [words[at]] * 2,
            [random.choice(json.loads(random.choice(samples()))["problem"].split(" "))],
            [bytes_of(random, words[at])],
            [words[at], random.choice(["float16", "channels_last", "beta=1", "bias", "relu", "pad=1:2", "tf32=False"])],
        ]
    )
    fields[name] = " ".join(words)
    return sealed(whole)


def engine_of(random: Random, text: str) -> str:
    """Another engine or other knobs, described consistently; and a digest that fits."""
    from plan_samples import sealed

    whole = json.loads(text)
    choice = whole["choice"]
    engine = choice["engine"] or {**Engine(0)._fields(), "knobs": None}
    knobs = engine["knobs"] or []
    before = engine_name(engine["index"], tuple(map(tuple, knobs)))
    if random.random() < 0.5 or choice["engine"] is None:
        engine["index"] = random.choice(INDICES)
    if random.random() < 0.3:
        knobs = [[kind, random.choice(VALUES)] for kind in sorted(random.sample(range(64), random.randrange(6)))]
    elif knobs and random.random() < 0.7:
        random.choice(knobs)[1] = random.choice(VALUES)
    name = engine_name(engine["index"], tuple(map(tuple, knobs))) + choice["name"].removeprefix(before)
    choice |= {"engine": {**engine, "knobs": knobs or None}, "name": name}
    return sealed(whole)


def monster_of(random: Random, text: str) -> str:
    """Deep, long, or of huge numbers."""
    deep, long = random.choice([20, 1000, 200_000]), random.choice([100, 5000, 500_000])
    return random.choice(
        [
            "[" * deep,
            '{"a":' * deep + "1" + "}" * deep,
            '"\\' + '\\"' * long,
            "[" + "[],{}," * long + "1]",
            "9" * long,
            f"1e{'9' * long}",
            text.replace("92800", "9" * long, 1),
            text.replace('"version":6', '"version":NaN'),
            text.replace('"version":6', '"version":5'),
            " " * long,
            "\ufeff" + text,
        ]
    )


def draw(random: Random) -> tuple[str, str]:
    from plan_samples import samples

    text = random.choice(samples())
    spoil = random.choice([bytes_of, fields_of, words_of, words_of, engine_of, engine_of, monster_of, None])
    return ("whole", text) if spoil is None else (spoil.__name__, spoil(random, text))


def run(case: tuple[str, str]) -> str:
    from plan_samples import samples

    kind, text = case
    samples()
    try:
        plan = Plan.from_json(text)
    except LibraryVersionError:
        return "another release"
    except StatusError:
        return "refused by cuDNN"
    except ValueError as error:
        check_refusal(kind, str(error))
        return "refused"
    fields, again = json.loads(text), plan.to_json()
    assert fields["choice"]["name"] == plan.name
    assert Plan.from_json(again).to_json() == again
    if kind == "whole":
        assert fields["problem"] == text_of(plan.problem)
    return "loaded"


def check_refusal(kind: str, message: str) -> None:
    assert message.startswith("text must be a "), message
    assert len(message) < 1000
    assert kind != "whole"


TEXTS = Campaign(draw, run)


def test_a_spoiled_text_is_refused_or_loaded(planning_environment: dict[str, str]) -> None:
    outcomes = TEXTS.carry_out(__file__, "TEXTS", least=120, environment=planning_environment)
    print(dict(outcomes))
    assert {"refused", "loaded", "refused by cuDNN"} <= outcomes.keys()
