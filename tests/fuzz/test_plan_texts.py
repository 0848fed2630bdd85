"""Plan.from_json of spoiled texts: what is loaded is a plan of the problem that it names, all else is a ValueError."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

from campaign import Campaign

from cudnnpy import raw
from cudnnpy._core.dtypes import dtype_of
from cudnnpy._core.layouts import with_height
from cudnnpy._planning.plan import Plan
from cudnnpy.errors import LibraryVersionError, StatusError

JUNK: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    7,
    1 << 40,
    1 << 63,
    1 << 70,
    1.5,
    1e300,
    "",
    "zz",
    "1",
    "float16",
    [],
    {},
]
JUNK += [[1], [1, 1], {"a": 1}, "x" * 5000, "\ud800", [[[[[[]]]]]], [0] * 500]
NUMBERS = [0, -1, 2, 3, 10, -2, 1 << 31, 1 << 62]


def bytes_of(random: Random, text: str) -> str:
    """A few characters changed, left out or repeated, as a disk or a copy would."""
    for _ in range(random.choice([1, 1, 2, 8])):
        at, until = sorted(random.randrange(len(text) + 1) for _ in range(2))
        how = random.randrange(5)
        if how == 0:
            text = text[:at] + random.choice('0123456789"[]{},:-. aZ\\\n\u1234') + text[at + 1 :]
        elif how == 1:
            text = text[:at] + text[at + random.choice([1, 2, 50]) :]
        elif how == 2:
            text = text[:at] + text[at : at + 30] + text[at:]
        elif how == 3:
            text = text[:at] + text[until:]
        else:
            text = text[:until]
        text = text or " "
    return text


def digit_of(random: Random, text: str) -> str:
    """One digit changed, and a digest that fits."""
    from plan_samples import sealed

    inner = text[: text.rindex('"sha256"')]
    at = random.choice([at for at, mark in enumerate(inner) if mark.isdigit()])
    text = text[:at] + random.choice("0123456789") + text[at + 1 :]
    try:
        return sealed(json.loads(text))
    except ValueError:  # 01 is no number
        return text


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to everything in a content."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, other in inside for found in places(other, (*path, key)))]


def structure_of(random: Random, text: str) -> str:
    """Values and keys changed, left out, renamed, exchanged and repeated; and a digest that fits."""
    from plan_samples import sealed

    content = json.loads(text)
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        *path, key = random.choice(places(content)[1:])
        at = content
        for step in path:
            at = at[step]
        how = random.randrange(8)
        if how == 0:
            del at[key]
        elif how == 1 and isinstance(at, dict):
            at[random.choice([f"{key}x", str(key)[:-1], str(key).upper(), "extra"])] = at.pop(key)
        elif how == 2 and isinstance(at, list):
            at.insert(key, copy.deepcopy(at[key]))
        elif how == 3:
            other = random.choice(list(at) if isinstance(at, dict) else range(len(at)))
            at[key], at[other] = at[other], at[key]
        elif how == 4 and isinstance(at[key], str) and at[key]:
            place = random.randrange(len(at[key]))
            at[key] = at[key][:place] + random.choice("_1QX") + at[key][place + 1 :]
        elif how == 5 and isinstance(at[key], int):
            at[key] = random.choice([at[key] * 2, at[key] + 1, -at[key], *NUMBERS])
        else:
            at[key] = copy.deepcopy(random.choice(JUNK))
    return sealed(content)


def transplant_of(random: Random, text: str) -> str:
    """Another batch, direction or dtype, exchanged tensors, or a part of another plan; and a digest that fits."""
    from plan_samples import samples, sealed

    content, other = json.loads(text), json.loads(random.choice(samples()))
    for problem in filter(None, (content["problem"], content["part"])):
        if random.randrange(2):
            continue
        if content["kind"] == "graph":
            _transplant_calls(random, problem, other["problem"])
        else:
            _transplant_tensors(random, problem, other["problem"])
    for name in random.sample(sorted(content), random.choice([0, 1, 1, 2])):
        content[name] = other[name]
    if content["plan"] and other["plan"] and not random.randrange(3):
        name = random.choice(["operationGraph", "engine"])
        content["plan"][name] = other["plan"][name]
    return sealed(content)


def _transplant_tensors(random: Random, problem: dict[str, Any], other: dict[str, Any]) -> None:
    how = random.randrange(5)
    if how == 0:
        one, two = random.sample(["x", "w", "y"], 2)
        problem[one], problem[two] = problem[two], problem[one]
    elif how == 1:
        batch = random.choice([0, 1, 4, 16, -8])
        for name in random.choice([("x",), ("y",), ("x", "y")]):
            problem[name][0][0] = batch
    elif how == 2:
        problem["operation"] = random.choice(["forward", "backward_data", "backward_filter"])
    elif how == 3:
        dtype = random.choice(["float16", "bfloat16", "float32", "float64", "int8"])
        for name in random.choice([("x", "w", "y"), ("x",), ("y",)]):
            problem[name][1] = dtype
    else:
        name = random.choice(["alpha", "beta", "groups", "mode", "activation", "bias", "compute_dtype", "geometry"])
        problem[name] = other.get(name)


def _transplant_calls(random: Random, problem: dict[str, Any], other: dict[str, Any]) -> None:
    """Of a graph: nodes that others take the place of, calls in another order, of another graph, or with other options."""
    calls = problem["calls"]
    how = random.randrange(5)
    _, arguments = random.choice(calls)
    nodes = [name for name, value in arguments.items() if type(value) is int]
    if how == 0 and nodes:
        arguments[random.choice(nodes)] = random.randrange(len(calls) + 2)
    elif how == 1:
        random.shuffle(calls)
    elif how == 2:
        calls.insert(random.randrange(len(calls) + 1), random.choice(other.get("calls", calls)))
    elif how == 3:
        for _, found in calls:
            if "mode" in found:
                found["mode"] = random.choice(["tanh_fwd", "add", "mul", "relu_fwd", "convolution", "rms_norm"])
    else:
        batch = random.choice([1, 2, 16])
        specs = [found["like"] for method, found in calls if method == "tensor"]
        for spec in [*specs, *(tensor[1:] for tensor in problem["tensors"])]:
            spec[0][0] = batch


def monster(random: Random, text: str) -> str:
    """Deep, long, or of huge numbers."""
    deep, long = random.choice([20, 1000, 200_000]), random.choice([100, 5000, 500_000])
    return random.choice(
        [
            "[" * deep,
            '{"a":' * deep + "1" + "}" * deep,
            "[" * deep + "]" * deep,
            '"\\' + '\\"' * long,
            "[" + "[],{}," * long + "1]",
            "[" + '"a",' * long + "1]",
            "9" * long,
            "-" + "9" * long,
            f"1e{'9' * long}",
            text.replace("92800", "9" * long, 1),
            text.replace('"format": 4', '"format": NaN'),
            text.replace('"format": 4', '"format": 4, "format": 4'),
            text.replace('"problem": {', '"problem": ' + '{"a": ' * deep, 1),
            " " * long,
            "\ufeff" + text,
            "\x00" * long,
        ]
    )


def draw(random: Random) -> tuple[str, str]:
    from plan_samples import samples

    text = random.choice(samples())
    kind = random.choice([bytes_of, digit_of, structure_of, structure_of, structure_of, transplant_of, monster, None])
    return ("whole", text) if kind is None else (kind.__name__, kind(random, text))


def run(case: tuple[str, str]) -> str:
    from plan_samples import planned, samples

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
    again = plan.to_json()
    assert Plan.from_json(again).to_json() == again
    what = planned(plan)
    if what is not None:
        check_planned(plan, what)
    return "loaded"


def check_refusal(kind: str, message: str) -> None:
    assert message.startswith("text must be a serialized cudnnpy plan; got invalid text: "), message
    assert len(message) < 1000
    assert kind != "whole"


def check_planned(plan: Plan, what: dict[str, Any]) -> None:
    """What cuDNN planned is the part that the plan's other steps, and its checks of addresses, count on."""
    if plan.operation == "graph":
        check_graph(plan, what)
        return
    part = plan._lowering.part
    tensors = {tensor["name"]: tensor for tensor in what["operationGraph"]["tensors"]}
    for uid, spec in (("1", part.x), ("2", part.w), ("3", part.y)):
        shape, strides = with_height(spec)
        there = tensors[uid]
        assert there["dim"] == list(shape)
        assert [s for s, n in zip(there["stride"], shape, strict=True) if n > 1] == [
            s for s, n in zip(strides, shape, strict=True) if n > 1
        ]
        assert there["dataType"] == raw.cudnnDataType_t(dtype_of(spec.dtype).number).name
        assert there["ptrAlignment"] == spec.alignment
    node = what["operationGraph"]["nodes"][0]
    kinds = {"forward": "FORWARD", "backward_data": "BACKWARD_DATA", "backward_filter": "BACKWARD_FILTER"}
    assert node["operation"] == f"CUDNN_BACKEND_OPERATION_CONVOLUTION_{kinds[part.operation]}_DESCRIPTOR"
    rank = len(part.geometry.stride)
    for name, numbers in (("stride", part.geometry.stride), ("dilation", part.geometry.dilation)):
        assert node[name][-rank:] == list(numbers)
    assert node.get("pad", node.get("pad_lower"))[-rank:] == list(part.geometry.pre_padding)
    assert node.get("pad", node.get("pad_upper"))[-rank:] == list(part.geometry.post_padding)
    assert (node["alpha"], node["beta"], node["mode"]) == (part.alpha, part.beta, f"CUDNN_{part.mode.upper()}")


def check_graph(plan: Any, what: dict[str, Any]) -> None:
    """What cuDNN planned has the tensors of the graph that the plan's checks of addresses count on, under its names."""
    tensors = {tensor["name"]: tensor for tensor in what["operationGraph"]["tensors"]}
    names = dict(zip(plan.executable.uids, plan.operands, strict=False))
    for uid, spec in zip(plan.executable.uids, plan.problem.specs, strict=False):
        there = tensors[str(uid)]
        assert (there["dim"], there["ptrAlignment"]) == (list(spec.shape), spec.alignment), names[uid]
        assert there["dataType"] == raw.cudnnDataType_t(dtype_of(spec.dtype).number).name
        assert not there["isVirtual"]
        real = [at for at, size in enumerate(spec.shape) if size > 1]
        assert [there["stride"][at] for at in real] == [spec.strides[at] for at in real]
    assert len(what["operationGraph"]["nodes"]) == len(plan.problem.graph.operations)


TEXTS = Campaign(draw, run)


def test_a_spoiled_text_is_refused(planning_environment: dict[str, str]) -> None:
    outcomes = TEXTS.carry_out(__file__, "TEXTS", least=3000, environment=planning_environment)
    print(dict(outcomes))
    assert {"refused", "loaded"} <= outcomes.keys()
    assert outcomes["refused"] > outcomes.total() // 2
