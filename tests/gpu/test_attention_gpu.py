"""Attention on a GPU against the reference, within the tolerance of its graphs, into memory that was NaN before.

CUDNNPY_PROPERTY_EXAMPLES is how many problems are drawn.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from attention_problems import (
    NUMBERS,
    Arrays,
    Drawn,
    arguments,
    as_operand,
    drawn,
    for_graph,
    graph_of,
    has_dbias,
    in_float8,
    in_pages,
    in_sequences,
    keys_of,
    padded,
    queries_of,
    sequences,
)

import cudnnpy
from cudnnpy import Attention, NoAlgorithmError, raw, reference
from cudnnpy._layers.attention import AMAX

EXAMPLES = int(os.environ.get("CUDNNPY_PROPERTY_EXAMPLES", "60"))
SIZES = (1, 2, 5, 16, 33, 64, 80, 130, 320)  # of queries, and of keys
LENGTHS = cudnnpy.TensorSpec((2,), "int32")
LARGE = [
    # batch, heads, heads of k, queries, keys, head size, head size of v
    (2, 4, 4, 256, 256, 64, 64),
    (1, 8, 2, 128, 384, 128, 128),
    (1, 2, 1, 200, 120, 96, 64),
    (1, 2, 2, 1, 512, 64, 64),
    (1, 1, 1, 64, 64, 256, 256),
    (2, 2, 2, 192, 64, 32, 40),
]


needs_measured = pytest.mark.skipif(raw.version() < 91900, reason="float8 needs cuDNN 9.19")
needs_ragged = pytest.mark.skipif(raw.version() < 91800, reason="packed sequences need cuDNN 9.18")


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    cudnnpy.clear_cache()
    yield
    cudnnpy.clear_cache()


def on_device(arrays: Arrays) -> Arrays:
    """Copies of the arrays, one for each: an array with two names is one on the device, too."""
    made = {id(array): cudnnpy.to_device(array) if np.ndim(array) else array for array in arrays.values()}
    return {name: made[id(array)] for name, array in arrays.items()}


def poison(shape: tuple[int, ...], dtype: Any) -> Any:
    return cudnnpy.to_device(np.full(shape, np.nan).astype(dtype))


def expected_results(problem: Drawn) -> tuple[Arrays, Arrays]:
    """The reference's results of forward and of backward, by name."""
    twin, arrays = reference.Attention(**problem.options), problem.arrays
    made = dict(zip(("out", "statistics"), twin.forward(**problem.without_dout(), statistics=True), strict=True))
    given = (arrays["dout"], *(arrays[name] for name in "qkv"), made["out"], made["statistics"])
    has_sum = has_dbias(problem)
    gradients = twin.backward(*given, **problem.others(), dbias=has_sum)
    return made, dict(zip(("dq", "dk", "dv", *(("dbias",) if has_sum else ())), gradients, strict=True))


def compare(operation: str, problem: Drawn, given: Arrays, found: Arrays, expected: Arrays) -> None:
    made = padded({**given, **expected}, layout := problem.options["layout"])
    graph = graph_of(Attention(**problem.options), operation, given, dbias="dbias" in expected)
    allowed = reference.tolerance(graph, for_graph(graph, given, layout))
    for name in found:
        values = cudnnpy.to_numpy(found[name]).astype(np.float64)
        if values.ndim == 3:
            beside = np.ones(len(values), bool)
            for tokens in sequences(name, {**given, name: values}):
                beside[tokens] = False
            assert not values[beside].any(), f"{operation} {name}: beside the sequences"
        values = as_operand(name, padded({**given, name: values}, layout)[name], layout)
        right = as_operand(name, made[name].astype(np.float64), layout)
        has_keys = right == right
        if right.ndim == 4 and operation == "forward" and not name.startswith("amax"):
            has_keys = np.broadcast_to(np.isfinite(made["statistics"]), right.shape)
        assert (values[~has_keys] == right[~has_keys]).all(), f"{operation} {name}: queries without keys"
        assert np.isfinite(values[has_keys]).all(), f"{operation} {name}: NaN or infinite"
        # A dbias is added in its own type by some engines, in any order. Products of float8 are added with some 14 bits, and
        # the greatest magnitude of out is that of rounded weights.
        shares = {"dbias": 2.0**-6, "amax_o": 2.0**-3}
        greatest = np.abs(right[np.isfinite(right)]).max(initial=0.0)
        more = shares.get(name, 2.0**-9 if "scale_s" in given else 0.0) * greatest
        ratios = np.abs(values[has_keys] - right[has_keys]) / (allowed[name] + more + 1e-30)[has_keys]
        worst = np.max(ratios, initial=0.0)
        assert worst <= 1, f"{operation} {name}: {worst:.3g} of the tolerance"


def check_forward(problem: Drawn, attention: Any, on_gpu: Arrays, expected: Arrays) -> bool:
    """Forward is the reference's, with the same bits without statistics if it is deterministic; False without an engine."""
    results = {name: poison(array.shape, array.dtype) for name, array in expected.items()}
    alone = {"out": poison(expected["out"].shape, expected["out"].dtype)}
    try:
        attention.forward(**on_gpu, **results)
    except NoAlgorithmError:
        assert may_lack_engine_of_one_query(problem)
        return False
    attention.forward(**on_gpu, **alone)
    for found in (results, alone):
        compare("forward", problem, problem.without_dout(), found, expected)
    if attention.deterministic:
        assert cudnnpy.to_numpy(alone["out"]).tobytes() == cudnnpy.to_numpy(results["out"]).tobytes()
    return True


def check(problem: Drawn, **options: Any) -> None:
    """Forward and backward are the reference's; backward takes the reference's results of forward."""
    arrays, attention = problem.arrays, Attention(**problem.options, **options)
    made, gradients = expected_results(problem)
    on_gpu = on_device({**arrays, **made})
    inputs = {name: on_gpu[name] for name in problem.without_dout()}
    if not check_forward(problem, attention, inputs, made):
        return
    if "bias" in arrays and keys_of(problem) == 1:
        return  # refused by name
    if "dbias" in gradients and (options.get("deterministic") or arrays["bias"].shape[3] % 8):
        del gradients["dbias"]  # no engine is known to add it in one order, nor for other numbers of keys
    results = {name: poison(array.shape, array.dtype) for name, array in gradients.items()}
    given = {name: on_gpu[name] for name in ("dout", "q", "k", "v", "out", "statistics", *problem.others())}
    try:
        attention.backward(**given, **results)
    except NoAlgorithmError:
        assert may_lack_engines(problem)
        return
    compare("backward", problem, {**arrays, **made}, results, gradients)


def may_lack_engine_of_one_query(problem: Drawn) -> bool:
    """Return whether more than eight heads share keys, with another mask than lengths of keys (attention-shared-keys)."""
    options, arrays = problem.options, problem.arrays
    heads, kv_heads = (arrays[name].shape[1 if options["layout"] == "BHSD" else -2] for name in "qk")
    has_other = (
        any(name in arrays for name in ("offsets_q", "bias")) or "dropout" in options or options["causal"] is True
    )
    has_window = any(limit is not None for limit in options.get("window", ()))
    return queries_of(problem) == 1 and heads > 8 * kv_heads and (has_other or has_window)


def may_lack_engines(problem: Drawn) -> bool:
    """Return whether there may be no engine for the gradients: of masks by many lengths and rows, or of some head sizes."""
    size, value_size = (problem.arrays[name].shape[-1] for name in "qv")
    if 128 < size <= 192 and 64 < value_size <= 128:
        return True
    lengths = sum(name in problem.arrays for name in ("lengths_q", "lengths_kv"))
    is_left = problem.options.get("window", (None,))[0] is not None
    too_many = "lengths_q" in problem.arrays and lengths + is_left + (queries_of(problem) > 1) > 2
    return too_many and problem.options["causal"] == "bottom_right"


@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_drawn_problems(seed: int) -> None:
    check(drawn(seed, sizes=SIZES), deterministic=seed % 2 == 1)


@needs_ragged
@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_drawn_problems_of_packed_sequences(seed: int) -> None:
    check(in_sequences(drawn(seed, sizes=SIZES), seed), deterministic=seed % 2 == 1)


@needs_ragged
@pytest.mark.parametrize("deterministic", [False, True])
def test_one_plan_serves_packed_sequences_of_other_lengths(deterministic: bool) -> None:
    """The first launches are by cuDNN, the last ones direct."""
    problem = in_sequences(large(0, (3, 4, 2, 160, 200, 64, 64), "bfloat16", causal=True), 1)
    for seed in range(5):
        random = np.random.default_rng(seed)
        most = (("lengths_q", 160), ("lengths_kv", 200))
        lengths = {name: random.integers(0, n + 1, 3).astype(np.int32) for name, n in most}
        check(problem._replace(arrays={**problem.arrays, **lengths}), deterministic=deterministic)


def large(seed: int, sizes: tuple[int, ...], dtype: str, **options: Any) -> Drawn:
    batch, heads, kv_heads, queries, keys, size, value_size = sizes
    random = np.random.default_rng(seed)
    shapes = {
        "q": (batch, heads, queries, size),
        "k": (batch, kv_heads, keys, size),
        "v": (batch, kv_heads, keys, value_size),
        "dout": (batch, heads, queries, value_size),
    }
    arrays = {name: random.standard_normal(shape, np.float32).astype(NUMBERS[dtype]) for name, shape in shapes.items()}
    return Drawn({"layout": "BHSD", "causal": False, **options}, arrays)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("causal", [False, True, "bottom_right"])
@pytest.mark.parametrize("at", range(len(LARGE)))
def test_large_problems(at: int, causal: Any, deterministic: bool) -> None:
    check(large(at, LARGE[at], ("float16", "bfloat16")[at % 2], causal=causal), deterministic=deterministic)


@pytest.mark.parametrize(("causal", "are_equal"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("at", range(len(LARGE)))
def test_large_problems_with_both_lengths(at: int, causal: bool, are_equal: bool) -> None:
    """Gradients skip what is beyond them. Equal ones are one array, of which forward masks queries alone."""
    problem = large(at, LARGE[at], ("float16", "bfloat16")[at % 2], causal=causal)
    batch, *_, queries, keys, _, _ = LARGE[at]
    random = np.random.default_rng(at)
    most = (("lengths_q", queries), ("lengths_kv", keys))
    lengths = {name: random.integers(0, n + 1, batch).astype(np.int32) for name, n in most}
    if are_equal:
        lengths = dict.fromkeys(lengths, np.minimum(*lengths.values()))
    check(problem._replace(arrays={**problem.arrays, **lengths}), deterministic=bool(at % 2))


def check_float8(problem: Drawn) -> None:
    """Forward of float8 is the reference's, by cuDNN and then directly, and the same without statistics."""
    names = "out", "statistics", *AMAX
    made = reference.Attention(**problem.options).forward(**arguments(problem.arrays), statistics=True)
    expected: Arrays = dict(zip(names, made, strict=True))
    attention: Any = Attention(**problem.options)
    on_gpu = arguments(on_device(problem.arrays))
    for names_of_results in (names[:2],) * 4 + (names[:1],):
        results = {name: poison(expected[name].shape, expected[name].dtype) for name in names_of_results}
        try:
            *_, amax_s, amax_o = attention.forward(**on_gpu, **results)
        except NoAlgorithmError:
            assert queries_of(problem) == 1
            return
        compare("forward", problem, problem.without_dout(), {**results, "amax_s": amax_s, "amax_o": amax_o}, expected)


@needs_measured
@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_drawn_problems_of_float8(seed: int) -> None:
    check_float8(in_float8(drawn(seed, sizes=SIZES), seed))


@needs_measured
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("at", [0, 1, 2, 5])
def test_large_problems_of_float8(at: int, causal: bool) -> None:
    problem = in_float8(large(at, LARGE[at], "float16", causal=causal), at)
    check_float8(problem)
    lengths = np.random.default_rng(at).integers(0, keys_of(problem) + 1, LARGE[at][0])
    check_float8(problem._replace(arrays={**problem.arrays, "lengths_kv": lengths.astype(np.int32)}))


@needs_measured
def test_a_plan_of_float8_runs_on_raw_addresses() -> None:
    """It has the factors as operands, in device memory: one plan serves all."""
    problem = in_float8(large(0, LARGE[0], "float16", causal=True), 0)
    problem.arrays["lengths_kv"] = np.array([200, 0], np.int32)
    attention = Attention(causal=True)
    given = {**problem.arrays, "lengths_q": np.full(2, 256, np.int32)}
    names = "out", "statistics", *AMAX
    plan = attention.plan("forward", *(cudnnpy.to_device(given[name]) for name in "qkv"), lengths_kv=LENGTHS)
    workspace = cudnnpy.empty((max(plan.workspace_size, 1),), "uint8")
    for factor in (1.0, 0.5):
        given["scale_o"] = problem.arrays["scale_o"] = np.array([factor], np.float32)
        made = reference.Attention(causal=True).forward(**arguments(problem.arrays), statistics=True)
        expected: Arrays = dict(zip(names, made, strict=True))
        results = {name: poison(array.shape, array.dtype) for name, array in expected.items()}
        on_gpu = {**on_device(given), **results}
        for _ in range(3):
            plan.execute(*(on_gpu[name].pointer for name in plan.operands), workspace.pointer, 0)
        compare("forward", problem, problem.arrays, results, expected)


def check_pages(problem: Drawn) -> None:
    """Forward of pages is the reference's, with and without the lengths of queries if these are all."""
    made = reference.Attention(**problem.options).forward(**problem.arrays, statistics=True)
    expected: Arrays = dict(zip(("out", "statistics"), made, strict=True))
    attention: Any = Attention(**problem.options)
    on_gpu = {name: cudnnpy.to_device(array) for name, array in problem.arrays.items()}
    every = problem.arrays["q"].shape[1 if problem.options["layout"] == "BSHD" else 2]
    for is_given in (True, False):
        if not is_given and (problem.arrays["lengths_q"] != every).any():
            continue
        given = {name: array for name, array in on_gpu.items() if is_given or name != "lengths_q"}
        check_forward(problem, attention, given, expected)


@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_drawn_pages(seed: int) -> None:
    check_pages(in_pages(drawn(seed, sizes=SIZES), seed))


@pytest.mark.parametrize("causal", [False, True, "bottom_right"])
@pytest.mark.parametrize("at", range(len(LARGE)))
def test_large_problems_in_pages(at: int, causal: Any) -> None:
    problem = in_pages(large(at, LARGE[at], ("float16", "bfloat16")[at % 2], causal=causal), at)
    check_pages(problem)
    lengths = np.random.default_rng(at).integers(0, problem.arrays["lengths_kv"][0] + 1, LARGE[at][0])
    check_pages(problem._replace(arrays={**problem.arrays, "lengths_kv": lengths.astype(np.int32)}))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "value_size", "keys"),
    [
        (8, 2, 64, 64, 2048),
        (16, 1, 128, 128, 4096),
        (12, 12, 64, 96, 2560),
        (40, 8, 96, 96, 5120),
        (24, 2, 256, 256, 3840),
        (64, 2, 128, 128, 2100),
        (27, 3, 128, 64, 300),
    ],
)
def test_one_query_of_pages(heads: int, kv_heads: int, size: int, value_size: int, keys: int) -> None:
    problem = large(keys, (3, heads, kv_heads, 1, keys, size, value_size), ("float16", "bfloat16")[size % 3 % 2])
    problem = in_pages(problem, keys)
    lengths = np.array([keys, 0, min(keys, 133)], np.int32)
    for queries in ([1, 1, 1], [0, 1, 1]):
        arrays = {**problem.arrays, "lengths_kv": lengths, "lengths_q": np.array(queries, np.int32)}
        check_pages(problem._replace(arrays=arrays))


@pytest.mark.parametrize("keys", [64, 300, 1000])
@pytest.mark.parametrize("heads", [1, 9, 64])
def test_one_query_of_heads_that_share_keys(heads: int, keys: int) -> None:
    """With lengths of keys, and of queries, some 0."""
    problem = large(keys, (3, 2 * heads, 2, 1, keys, 64, 64), ("float16", "bfloat16")[heads % 2])
    lengths = {"lengths_kv": np.array([keys, 0, keys // 2], np.int32)}
    check_long_cache(problem, lengths)
    check_long_cache(problem, {**lengths, "lengths_q": np.array([1, 1, 0], np.int32)})


@pytest.mark.parametrize("left", [0, 40])
@pytest.mark.parametrize("keys", [64, 300, 1000])
@pytest.mark.parametrize("is_paged", [False, True])
def test_one_query_in_a_window(left: int, keys: int, is_paged: bool) -> None:
    """Of the last keys of each sequence."""
    problem = large(keys, (3, 8, 2, 1, keys, 64, 64), "float16", causal="bottom_right", window=(left, None))
    problem = problem._replace(arrays={**problem.arrays, "lengths_kv": np.array([keys, 0, keys // 2], np.int32)})
    if is_paged:
        check_pages(in_pages(problem, keys))
    else:
        check(problem)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(
    "options", [{"causal": True}, {"causal": "bottom_right"}, {"window": (40, 0)}, {"window": (5, 5)}]
)
@pytest.mark.parametrize("length", [64, 192, 320])
def test_lengths_of_64_modulo_128_with_a_mask(length: int, options: dict[str, Any], deterministic: bool) -> None:
    """PyTorch's issue #196678 has NaN in their gradients."""
    problem = large(length, (2, 4, 2, length, length, 128, 128), "bfloat16", **options)
    check(problem, deterministic=deterministic)
    lengths = {name: np.array([length, length - 64], np.int32) for name in ("lengths_q", "lengths_kv")}
    check(problem._replace(arrays={**problem.arrays, **lengths}), deterministic=deterministic)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("keys", [1, 64, 100, 1024])
def test_one_query(keys: int, deterministic: bool) -> None:
    """cudnn-frontend's issue #1072 has NaN in its gradients."""
    for kv_heads in (1, 4):
        check(large(keys, (3, 4, kv_heads, 1, keys, 64, 64), "float16"), deterministic=deterministic)


def check_long_cache(problem: Drawn, more: Arrays, **preferences: Any) -> None:
    """Forward is the reference's, by cuDNN and then directly, and the same without statistics."""
    inputs = {**problem.without_dout(), **more}
    twin, attention = reference.Attention(**problem.options), Attention(**problem.options, **preferences)
    made = dict(zip(("out", "statistics"), twin.forward(**inputs, statistics=True), strict=True))
    on_gpu = on_device(inputs)
    for names in (*[tuple(made)] * 4, ("out",)):
        results = {name: poison(made[name].shape, made[name].dtype) for name in names}
        attention.forward(**on_gpu, **results)
        compare("forward", problem, inputs, results, made)


@pytest.mark.parametrize("prefer", ["fastest", "no_workspace"])
@pytest.mark.parametrize("causal", [False, "bottom_right"])
@pytest.mark.parametrize("kv_heads", [1, 2, 8])
@pytest.mark.parametrize("keys", [513, 1000, 4096])
def test_lengths_of_one_query_in_a_long_cache(keys: int, kv_heads: int, causal: Any, prefer: Any) -> None:
    """Lengths are the only masks: one operation computes them."""
    problem = large(keys, (5, 8, kv_heads, 1, keys, 64, 64), ("float16", "bfloat16")[keys % 2], causal=causal)
    check_long_cache(problem, {"lengths_kv": np.array([keys, 0, 1, 130, keys - 1], np.int32)}, prefer=prefer)


@pytest.mark.parametrize("layout", ["BHSD", "BSHD"])
@pytest.mark.parametrize("keys", [600, 1104])
@pytest.mark.parametrize(
    ("queries", "heads", "kv_heads", "size"),
    [(2, 8, 2, 64), (3, 12, 4, 72), (7, 6, 6, 128), (16, 8, 1, 64), (31, 9, 3, 40), (33, 6, 1, 256)],
)
def test_few_queries_of_a_long_cache(
    queries: int, heads: int, kv_heads: int, size: int, keys: int, layout: str
) -> None:
    """Each is a head, also with lengths or a bias of keys."""
    problem = large(keys, (3, heads, kv_heads, queries, keys, size, size), ("float16", "bfloat16")[size % 3 % 2])
    if layout == "BSHD":
        turned = {name: np.ascontiguousarray(array.swapaxes(1, 2)) for name, array in problem.arrays.items()}
        problem = Drawn({**problem.options, "layout": layout}, turned)
    bias = np.random.default_rng(keys).standard_normal((3, 1, 1, keys)).astype(problem.arrays["q"].dtype)
    bias[0, ..., keys // 2 :] = -np.inf
    lengths = {"lengths_kv": np.array([keys, 0, 133], np.int32)}
    for more in ({}, lengths, {"bias": bias}):
        check_long_cache(problem, more)
    check_pages(in_pages(problem._replace(arrays={**problem.arrays, **lengths}), keys))


def numbers(seed: int, offset: int) -> Arrays:
    """What a dropout draws from, on the GPU."""
    given = {"seed": seed, "offset": offset}
    return {name: cudnnpy.to_device(np.array([number], np.int64)) for name, number in given.items()}


def kept(problem: Drawn, seed: int, offset: int, **options: Any) -> Any:
    """The mask of a dropout, but 0 where a key is masked: with the values 1 at one key each, the result has the weights."""
    layout, keys = problem.options["layout"], keys_of(problem)
    v = as_operand("v", problem.arrays["v"], layout)
    identity = np.broadcast_to(np.eye(keys, -(-keys // 8) * 8), (*v.shape[:2], keys, -(-keys // 8) * 8))
    arrays = {**problem.without_dout(), "v": as_operand("v", identity.astype(v.dtype), layout)}
    attention: Any = Attention(**problem.options, **options)
    out = attention.forward(
        **{name: cudnnpy.to_device(np.ascontiguousarray(array)) for name, array in arrays.items()},
        **numbers(seed, offset),
    )
    weights = as_operand("out", cudnnpy.to_numpy(out).astype(np.float32), layout)[..., :keys]
    return (weights != 0).astype(np.float32)


def check_dropout(problem: Drawn, seed: int, offset: int, **options: Any) -> None:
    """Forward and backward keep the same weights, which a product with the identity shows."""
    attention = Attention(**problem.options, **options)
    try:
        mask = kept(problem, seed, offset, **options)
    except NoAlgorithmError:
        assert may_lack_engine_of_one_query(problem)
        return
    problem = problem._replace(arrays={**problem.arrays, "mask": mask})
    made, gradients = expected_results(problem)
    on_gpu = {name: cudnnpy.to_device(array) for name, array in {**problem.arrays, **made}.items() if name != "mask"}
    on_gpu |= numbers(seed, offset)
    results = {name: poison(array.shape, array.dtype) for name, array in made.items()}
    attention.forward(**{name: on_gpu[name] for name in on_gpu if name not in ("dout", *made)}, **results)
    compare("forward", problem, problem.without_dout(), results, made)
    if "bias" in problem.arrays and keys_of(problem) == 1:
        return  # refused by name
    gradients.pop("dbias", None)
    results = {name: poison(array.shape, array.dtype) for name, array in gradients.items()}
    try:
        attention.backward(**on_gpu, **results)
    except NoAlgorithmError:
        assert may_lack_engines(problem)
        return
    compare("backward", problem, {**problem.arrays, **made}, results, gradients)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(
    "sizes", [(2, 4, 4, 128, 128, 64), (1, 8, 2, 200, 64, 128), (2, 2, 1, 64, 256, 96), (3, 2, 2, 1, 128, 64)]
)
def test_what_a_dropout_draws_from_a_seed(sizes: tuple[int, ...], deterministic: bool) -> None:
    dropout, dtype = 0.25, ("float16", "bfloat16")[sizes[0] % 2]
    problem = large(sizes[3], (*sizes, sizes[4]), dtype, dropout=dropout)
    mask = kept(problem, 2**40 + 1, 3, deterministic=deterministic)
    assert abs(mask.mean() - (1 - dropout)) < 4 * (dropout * (1 - dropout) / mask.size) ** 0.5
    assert (mask == kept(problem, 2**40 + 1, 3, deterministic=deterministic)).all()
    for seed, offset in ((2**40 + 2, 3), (1, 3), (2**40 + 1, 3 + 2**20)):
        share = (mask == kept(problem, seed, offset, deterministic=deterministic)).mean()
        assert abs(share - (1 - 2 * dropout * (1 - dropout))) < 6 * mask.size**-0.5, f"{seed}, {offset}: {share}"
    check_dropout(problem, 2**40 + 1, 3, deterministic=deterministic)


@pytest.mark.parametrize("seed", range(EXAMPLES // 3))
def test_drawn_dropouts(seed: int) -> None:
    problem = drawn(seed, sizes=SIZES[:-1])
    dropout = (0.1, 0.5, 0.75)[seed % 3]
    problem = problem._replace(options={**problem.options, "dropout": dropout})
    check_dropout(problem, seed * 2**33 + 1, seed, deterministic=seed % 2 == 1)


def test_deterministic_gradients_have_the_same_bits_in_two_runs() -> None:
    problem = large(0, (2, 8, 2, 512, 512, 64, 64), "bfloat16", causal=True)
    made, gradients = expected_results(problem)
    on_gpu = {name: cudnnpy.to_device(array) for name, array in {**problem.arrays, **made}.items()}
    runs = [
        b"".join(
            cudnnpy.to_numpy(one).tobytes() for one in Attention(causal=True, deterministic=True).backward(**on_gpu)
        )
        for _ in range(5)
    ]
    assert len(set(runs)) == 1
    assert len(gradients) == 3


@pytest.mark.parametrize(("queries", "keys"), [(96, 64), (300, 200)])
def test_queries_without_keys_give_zeros_exactly(queries: int, keys: int) -> None:
    problem = large(0, (2, 2, 2, queries, keys, 64, 64), "float16", causal=True)
    lengths = {"lengths_q": np.array([queries, 50], np.int32), "lengths_kv": np.array([0, 30], np.int32)}
    problem = problem._replace(arrays={**problem.arrays, **lengths})
    check(problem)
    on_gpu = {name: cudnnpy.to_device(array) for name, array in problem.arrays.items()}
    dout, attention = on_gpu.pop("dout"), Attention(causal=True)
    out, statistics = attention.forward(**on_gpu, statistics=True)
    dq, _, _ = attention.backward(dout, **on_gpu, out=out, statistics=statistics)
    for array in (cudnnpy.to_numpy(out), cudnnpy.to_numpy(dq)):
        assert not array[0].any()
        assert not array[1, :, 50:].any()
        assert array[1, :, :50].any()


@pytest.mark.parametrize("deterministic", [False, True])
def test_plans_run_on_raw_addresses(deterministic: bool) -> None:
    problem = large(0, (1, 2, 2, 64, 512, 64, 64), "float16")
    made, gradients = expected_results(problem)
    attention: Any = Attention(deterministic=deterministic)
    on_gpu = {name: cudnnpy.to_device(array) for name, array in {**problem.arrays, **made}.items()}
    for operation, expected in (("forward", made), ("backward", gradients)):
        plan = attention.plan(operation, *(on_gpu[name] for name in "qkv"))
        assert plan.deterministic or not deterministic
        results = {name: poison(array.shape, array.dtype) for name, array in expected.items()}
        pointers = [{**on_gpu, **results}[name].pointer for name in plan.operands]
        workspace = cudnnpy.empty((max(plan.workspace_size, 1),), "uint8")
        for _ in range(3):  # the buffer is cleared in each
            plan.execute(*pointers, workspace.pointer, 0)
        given = problem.without_dout() if operation == "forward" else {**problem.arrays, **made}
        compare(operation, problem, given, results, expected)
        again = cudnnpy.Plan.from_json(plan.to_json())
        assert again.workspace_size == plan.workspace_size


def test_what_no_engine_does_is_an_error() -> None:
    q = cudnnpy.to_device(np.ones((1, 2, 64, 64), np.float16))
    with pytest.raises(NoAlgorithmError, match="the limit is 0 bytes"):
        Attention(prefer="no_workspace").backward(q, q, q, q, q, cudnnpy.to_device(np.zeros((1, 2, 64, 1), np.float32)))


REPORTED: dict[str, tuple[tuple[int, ...], dict[str, Any], str]] = {
    "pytorch 196678: NaN in dq, lengths of 64 modulo 128 with a mask": ((2, 4, 4, 192, 192, 64, 64), {}, "bias"),
    "pytorch 196678, causal": ((1, 2, 2, 320, 320, 128, 128), {"causal": True}, "bias"),
    "cudnn-frontend 1072: NaN in dk and dv of one query": ((2, 4, 2, 1, 256, 64, 64), {}, ""),
    "cudnn-frontend 1072, bottom right": ((1, 2, 2, 1, 130, 128, 128), {"causal": "bottom_right"}, ""),
    "cudnn-frontend 160: NaN in gradients": ((2, 2, 2, 257, 257, 64, 64), {"causal": True}, ""),
    "cudnn-frontend 160, with lengths": ((2, 2, 2, 200, 200, 96, 96), {"causal": True}, "lengths"),
}


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("report", REPORTED)
def test_faults_that_others_report_are_not_here(report: str, deterministic: bool) -> None:
    sizes, options, what = REPORTED[report]
    problem, random = large(1, sizes, "bfloat16", **options), np.random.default_rng(2)
    batch, heads, _, queries, keys = sizes[:5]
    others: Arrays = {}
    if what == "bias":
        others["bias"] = np.where(random.random((batch, heads, queries, keys)) < 0.5, -np.inf, 0.0).astype(np.float32)
    elif what == "lengths":
        others = {name: np.array([64, 129], np.int32) for name in ("lengths_q", "lengths_kv")}
    check(problem._replace(arrays={**problem.arrays, **others}), deterministic=deterministic)


def test_calls_that_differ_in_scale_or_strides_alone_have_their_own_results() -> None:
    for scale in (0.1, 0.5, None):
        check(large(3, (2, 2, 2, 64, 96, 64, 64), "float16", **({} if scale is None else {"scale": scale})))
    problem = large(3, (2, 2, 2, 64, 96, 64, 64), "float16")
    swapped = {name: np.ascontiguousarray(array.swapaxes(1, 2)) for name, array in problem.arrays.items()}
    check(problem._replace(options={**problem.options, "layout": "BSHD"}, arrays=swapped))
