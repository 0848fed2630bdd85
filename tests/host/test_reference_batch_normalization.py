"""The reference's batch normalization against the textbook's with autograd."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operands import (
    BAD_ARRAYS,
    MEMORY,
    NAN,
    bad_outs,
    check_scales,
    close,
    dtypes,
    laid_out,
    normal,
    refuses,
    same,
    scales,
    seeds,
    shapes,
)
from oracles import moments, pull_back, standardize

from cudnnpy.reference import BatchNormalization
from cudnnpy.reference._arrays import rounded

FIRST = {2: "NCHW", 3: "NCW", 4: "NCHW", 5: "NCDHW"}
LAST = {2: "NHWC", 3: "NWC", 4: "NHWC", 5: "NDHWC"}
memories = st.sampled_from(MEMORY)


@dataclass(frozen=True)
class Problem:
    """One batch normalization; the shape is in the layout's axis order."""

    mode: str
    layout: str
    shape: tuple[int, ...]
    epsilon: float
    memory: str
    seed: int

    @property
    def operation(self) -> BatchNormalization:
        return BatchNormalization(self.mode, self.epsilon, self.layout)

    @property
    def parameter_shape(self) -> tuple[int, ...]:
        if self.mode == "per_activation":
            return self.shape[1:]
        return (self.shape[-1 if self.layout.endswith("C") else 1],)

    @property
    def count(self) -> int:
        """How many values each mean is of."""
        return int(np.prod(self.shape)) // int(np.prod(self.parameter_shape))

    def tensors(self, number: int, dtype: Any = np.float64) -> list[np.ndarray]:
        """Arrays of x's shape."""
        return [1 + 2 * normal(self.seed + at, self.shape, dtype, self.memory) for at in range(number)]

    def parameters(self, number: int, dtype: Any = np.float64) -> list[np.ndarray]:
        """Arrays of the parameters' shape, whose values are those of a float32."""
        given = [normal(self.seed + 10 + at, self.parameter_shape, np.float32) for at in range(number)]
        return [laid_out(array.astype(dtype), self.memory) for array in given]

    def flat(self, array: np.ndarray) -> np.ndarray:
        """x as (N, parameters, rest)."""
        if self.mode == "spatial" and self.layout.endswith("C"):
            array = np.moveaxis(array, -1, 1)
        return array.reshape(len(array), int(np.prod(self.parameter_shape)), -1)

    def in_layout(self, array: np.ndarray) -> np.ndarray:
        """Back from that."""
        if self.mode == "spatial" and self.layout.endswith("C"):
            return np.moveaxis(array, 1, -1).reshape(self.shape)
        return array.reshape(self.shape)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    rank = draw(st.integers(2, 5))
    layout = draw(st.sampled_from([FIRST[rank], LAST[rank], "NCHW", "NHWC"]))
    return Problem(
        mode=draw(st.sampled_from(["spatial", "per_activation"])),
        layout=layout,
        shape=draw(shapes((rank,), layout)),
        epsilon=draw(st.sampled_from([1e-5, 1e-3, 0.5])),
        memory=draw(memories),
        seed=draw(seeds),
    )


def parameter_dtype(x: np.ndarray) -> np.dtype[Any]:
    return np.dtype(np.float64 if x.dtype == np.float64 else np.float32)


@settings(deadline=None, max_examples=300)
@given(problems(), st.floats(0, 1))
def test_training_and_gradients_match_the_textbook(problem: Problem, factor: float) -> None:
    op = problem.operation
    x, dy = problem.tensors(2)
    scale, bias, running_mean, running_variance = problem.parameters(4)
    expected, gradients = pull_back(
        lambda x, scale, bias: standardize(x, (0, 2), problem.epsilon) * scale[:, None] + bias[:, None],
        *(problem.flat(x), scale.ravel(), bias.ravel()),
    )
    batch_mean, variance = (array.reshape(problem.parameter_shape) for array in moments(problem.flat(x), (0, 2)))
    unbiased = variance * problem.count / max(problem.count - 1, 1)  # of one value, it is 0
    running = [
        factor * batch + (1 - factor) * before
        for batch, before in ((batch_mean, running_mean), (unbiased, running_variance))
    ]

    y, mean, inverse = op.forward_training(x, scale, bias, running_mean, running_variance, factor)
    close(y, problem.in_layout(expected))
    close(mean, batch_mean)
    close(inverse, 1 / np.sqrt(variance + problem.epsilon))
    close(running_mean, running[0])
    close(running_variance, running[1])
    wanted = gradients(problem.flat(dy))
    for saved in ((), (mean, inverse)):
        dx, dscale, dbias = op.backward(dy, x, scale, *saved)
        close(dx, problem.in_layout(wanted[0]))
        close(dscale, wanted[1].reshape(problem.parameter_shape))
        close(dbias, wanted[2].reshape(problem.parameter_shape))


@settings(deadline=None, max_examples=200)
@given(problems())
def test_inference_matches_the_textbook(problem: Problem) -> None:
    (x,) = problem.tensors(1)
    scale, bias, mean, variance = problem.parameters(4)
    variance = np.abs(variance)
    column = {"scale": scale, "bias": bias, "mean": mean, "deviation": np.sqrt(variance + problem.epsilon)}
    column = {name: array.reshape(-1, 1) for name, array in column.items()}
    apart = (problem.flat(x) - column["mean"]) / column["deviation"]
    expected = problem.in_layout(column["scale"] * apart + column["bias"])
    close(problem.operation.forward_inference(x, scale, bias, mean, variance), expected)


@settings(deadline=None, max_examples=200)
@given(problems(), dtypes, scales, scales, memories)
def test_scales_dtypes_and_out(problem: Problem, dtype: Any, alpha: float, beta: float, memory: str) -> None:
    """All three operations round once, into out if there is one; the parameters are float32 for narrow x."""
    op = problem.operation
    x, dy = problem.tensors(2, dtype)
    given = problem.parameters(4)
    given[3] = np.abs(given[3])

    def parameters(x: np.ndarray, number: int) -> list[np.ndarray]:
        return [array.astype(parameter_dtype(x)) for array in given[:number]]

    def training(x: np.ndarray, **options: Any) -> np.ndarray:
        return op.forward_training(x, *parameters(x, 2), **options)[0]

    def inference(x: np.ndarray, **options: Any) -> np.ndarray:
        return op.forward_inference(x, *parameters(x, 4), **options)

    def gradient(dy: np.ndarray, x: np.ndarray, **options: Any) -> np.ndarray:
        return op.backward(dy, x, *parameters(x, 1), **options)[0]

    def gradient_from_saved(dy: np.ndarray, x: np.ndarray, **options: Any) -> np.ndarray:
        scale, mean, _, inverse = parameters(x, 4)
        return op.backward(dy, x, scale, mean, inverse, **options)[0]

    check_scales(training, [x], alpha, beta, memory)
    check_scales(inference, [x], alpha, beta, memory)
    check_scales(gradient, [dy, x], alpha, beta, memory)
    check_scales(gradient_from_saved, [dy, x], alpha, beta, memory)


@settings(deadline=None, max_examples=150)
@given(problems(), dtypes, st.floats(0, 1), memories)
def test_statistics_are_rounded_once(problem: Problem, dtype: Any, factor: float, memory: str) -> None:
    """From the float64 ones, which the test against the textbook knows; the running ones in place."""
    op = problem.operation
    (x,) = problem.tensors(1, dtype)
    wide = parameter_dtype(x)
    scale, bias, running_mean, running_variance = problem.parameters(4, wide)
    batch = [np.zeros(problem.parameter_shape) for _ in range(2)]
    parameters64 = [array.astype(np.float64) for array in (scale, bias)]
    _, exact_mean, exact_inverse = op.forward_training(x.astype(np.float64), *parameters64, *batch, 1.0)
    running = [laid_out(running_mean, memory), laid_out(running_variance, memory)]
    y, mean, inverse = op.forward_training(x, scale, bias, *running, factor)
    assert y.dtype == dtype
    same(mean, rounded(exact_mean, wide))
    same(inverse, rounded(exact_inverse, wide))
    for now, before, of_batch in zip(running, (running_mean, running_variance), batch, strict=True):
        same(now, rounded(factor * of_batch + (1 - factor) * before.astype(np.float64), wide))
    same(op.forward_training(x, scale, bias)[0], y)


@settings(deadline=None, max_examples=150)
@given(problems(), dtypes, scales, scales, memories, st.booleans(), st.booleans())
def test_gradients_of_the_parameters_accumulate(
    problem: Problem, dtype: Any, alpha: float, beta: float, memory: str, with_scale: bool, with_bias: bool
) -> None:
    """Apart from dx, which has alpha and beta of its own; each into its own out, or a new array."""
    op = problem.operation
    x, dy = problem.tensors(2, dtype)
    wide = parameter_dtype(x)
    scale, *before = problem.parameters(3, wide)
    x64, dy64, scale64 = (array.astype(np.float64) for array in (x, dy, scale))
    exact = op.backward(dy64, x64, scale64)
    outs = [
        laid_out(array if beta else np.full_like(array, NAN), memory) if wanted else None
        for array, wanted in zip(before, (with_scale, with_bias), strict=True)
    ]
    asked = {"out_scale": outs[0], "out_bias": outs[1], "parameter_alpha": alpha, "parameter_beta": beta}
    if beta and not (with_scale and with_bias):
        with pytest.raises(ValueError, match=r"parameter_beta=.* without out_(scale|bias)"):
            op.backward(dy, x, scale, **asked)
        return
    results = op.backward(dy, x, scale, **asked, stream=object())
    same(results[0], rounded(exact[0], dtype))
    for result, out, old, gradient in zip(results[1:], outs, before, exact[1:], strict=True):
        expected = alpha * gradient
        if out is not None:
            assert result is out
            expected = expected + (beta * old.astype(np.float64) if beta else 0)
        same(result, rounded(expected, wide))


@settings(deadline=None, max_examples=100)
@given(problems(), dtypes)
def test_relu_cuts_the_result(problem: Problem, dtype: Any) -> None:
    (x,) = problem.tensors(1, dtype)
    scale, bias = problem.parameters(2, parameter_dtype(x))
    plain = problem.operation.forward_training(x, scale, bias)
    cut = problem.operation.forward_training(x, scale, bias, activation="relu")
    same(cut[0], np.maximum(plain[0], np.zeros((), dtype)))
    for a, b in zip(cut[1:], plain[1:], strict=True):
        same(a, b)


@settings(deadline=None, max_examples=40)
@given(problems().filter(lambda p: np.prod(p.shape) <= 40))
def test_gradients_are_differences(problem: Problem) -> None:
    op = problem.operation
    x, dy = problem.tensors(2)
    scale, bias = problem.parameters(2)
    step = 1e-6 * np.sqrt(problem.epsilon)
    for array, gradient in zip((x, scale, bias), op.backward(dy, x, scale), strict=True):
        size = np.abs(gradient).max() + np.abs(dy).max() * np.abs(scale).max() / np.sqrt(problem.epsilon)
        for index in np.ndindex(array.shape):
            kept = array[index]
            values = []
            for moved in (kept + step, kept - step):
                array[index] = moved
                values.append(np.vdot(op.forward_training(x, scale, bias)[0], dy))
            array[index] = kept
            assert gradient[index] == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-4, abs=1e-4 * size)


def test_saved_statistics_are_used_as_given() -> None:
    """As cuDNN does; another batch's give another gradient, by the same formula."""
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((2, 5, 3, 4))
    scale, mean, inverse = rng.standard_normal((3, 3))
    dx, dscale, dbias = BatchNormalization().backward(dy, x, scale, mean, inverse)
    for c in range(3):
        normalized = (x[:, c] - mean[c]) * inverse[c]
        assert dscale[c] == pytest.approx(np.vdot(dy[:, c], normalized), rel=1e-12)
        assert dbias[c] == pytest.approx(dy[:, c].sum(), rel=1e-12)
        inner = 20 * dy[:, c] - dbias[c] - normalized * dscale[c]
        np.testing.assert_allclose(dx[:, c], scale[c] * inverse[c] / 20 * inner, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("mode", ["spatial", "per_activation"])
def test_nan_spreads_as_far_as_its_mean(mode: str) -> None:
    op = BatchNormalization(mode)
    x, dy = normal(0, (4, 3, 5)), normal(1, (4, 3, 5))
    shape = (3,) if mode == "spatial" else (3, 5)
    scale, bias, running_mean, running_variance = (np.ones(shape) for _ in range(4))
    touched = (slice(None), 1) if mode == "spatial" else (slice(None), 1, 2)
    x[2, 1, 2] = NAN
    y, mean, inverse = op.forward_training(x, scale, bias, running_mean, running_variance)
    only(y, touched)
    for statistic in (mean, inverse, running_mean, running_variance):
        only(statistic, touched[1:])
    only(op.forward_training(x, scale, bias, activation="relu")[0], touched)
    only(op.forward_inference(x, scale, bias, bias, scale), (2, 1, 2))
    dx, dscale, dbias = op.backward(dy, x, scale)
    only(dx, touched)
    only(dscale, touched[1:])
    assert not np.isnan(dbias).any()
    dy[2, 1, 2], x[2, 1, 2] = NAN, 0
    for gradient, at in zip(op.backward(dy, x, scale), (touched, touched[1:], touched[1:]), strict=True):
        only(gradient, at)


def only(array: np.ndarray, at: Any) -> None:
    """Check that NaN is there, and nowhere else."""
    expected = np.zeros(array.shape, bool)
    expected[at] = True
    np.testing.assert_array_equal(np.isnan(array), expected)


def test_a_mean_far_above_the_deviation() -> None:
    """The mean of the squares less the square of the mean would lose all of it."""
    x = (1e8 + np.arange(8.0)).reshape(8, 1)
    y, mean, inverse = BatchNormalization(epsilon=0).forward_training(x, np.ones(1), np.zeros(1))
    assert mean == 1e8 + 3.5
    assert inverse == pytest.approx(5.25**-0.5, rel=1e-14)
    np.testing.assert_allclose(y[:, 0], (np.arange(8) - 3.5) / 5.25**0.5, rtol=1e-13)


def test_one_value_for_each_mean() -> None:
    """Its variance is 0, so y is the bias; and the running variance takes the 0 as it is."""
    x = normal(0, (1, 3))
    running = [np.ones(3), np.ones(3)]
    y, mean, inverse = BatchNormalization(epsilon=0.25).forward_training(x, np.ones(3), np.arange(3.0), *running)
    np.testing.assert_array_equal(y, [[0, 1, 2]])
    np.testing.assert_array_equal(mean, x[0])
    np.testing.assert_array_equal(inverse, [2, 2, 2])
    close(running[0], 0.9 + 0.1 * x[0])
    close(running[1], np.full(3, 0.9))


# What is refused


X, ONES = np.ones((2, 3, 4, 5), np.float32), np.ones(3, np.float32)
OP = BatchNormalization()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mode": "spatial_persistent"}, ValueError, "mode='spatial_persistent': expected one of spatial, per_activ"),
        ({"mode": None}, TypeError, "mode=None: expected a str"),
        ({"epsilon": -1e-5}, ValueError, "epsilon=-1e-05: expected 0 or more"),
        ({"epsilon": NAN}, ValueError, "epsilon=nan: expected 0 or more"),
        ({"epsilon": float("inf")}, ValueError, "epsilon=inf: expected 0 or more, and finite"),
        ({"epsilon": "0"}, TypeError, "epsilon='0': expected a real number"),
        ({"epsilon": True}, TypeError, "epsilon=True: expected a real number"),
        ({"layout": "CHWN"}, ValueError, "layout='CHWN': expected one of"),
        ({"layout": 4}, TypeError, "layout=4: expected a str"),
    ],
)
def test_bad_option(options: dict[str, Any], error: type[Exception], message: str) -> None:
    refuses(lambda: BatchNormalization(**options), error, message)


def bad_parameters(shape: tuple[int, ...] = (3,)) -> list[tuple[object, type[Exception], str]]:
    """What is refused of a parameter beside float32 x."""
    return [
        ([1.0] * 3, TypeError, " is a builtins.list: expected a numpy.ndarray"),
        (np.ones(shape), TypeError, " has dtype float64: expected float32"),
        (np.ones(shape, np.float16), TypeError, " has dtype float16: expected float32"),
        (np.ones((4,), np.float32), ValueError, f" has shape (4,): expected {shape}, "),
        (np.ones((1, 3, 1, 1), np.float32), ValueError, f" has shape (1, 3, 1, 1): expected {shape}, "),
    ]


CALLS: dict[str, tuple[Any, dict[str, Any]]] = {
    "training": (OP.forward_training, {"x": X, "scale": ONES, "bias": ONES}),
    "inference": (
        OP.forward_inference,
        {"x": X, "scale": ONES, "bias": ONES, "mean": ONES, "variance": ONES},
    ),
    "backward": (OP.backward, {"dy": X, "x": X, "scale": ONES}),
}


@pytest.mark.parametrize("name", CALLS)
def test_bad_array(name: str) -> None:
    call, given = CALLS[name]
    for argument in given:
        if argument == "x":
            for _, array, error, message in BAD_ARRAYS:
                refuses(lambda array=array: call(**given | {"x": array}), error, "x" + message)
        elif argument != "dy":
            for array, error, message in [
                *bad_parameters(),
                (None, TypeError, " is a builtins.NoneType: expected a numpy.ndarray"),
            ]:
                refuses(
                    lambda array=array, argument=argument: call(**given | {argument: array}), error, argument + message
                )
    for _, out, error, message in bad_outs(X.shape):
        refuses(lambda out=out: call(**given, out=out), error, message)
    for argument in ("alpha", "beta"):
        refuses(
            lambda argument=argument: call(**given, **{argument: "1"}), TypeError, f"{argument}='1': expected a real"
        )
    one = np.ones((3,), np.float32)
    shared = np.ones((2, 3), np.float32)
    small = given | {key: shared for key in ("x", "dy") if key in given}
    refuses(lambda: call(**small, out=shared), ValueError, "out overlaps ")
    refuses(lambda: call(**given | {"x": X[0, 0, 0]}), ValueError, "x has 1 axes: expected 2 to 5")
    refuses(
        lambda: call(**small | {"scale": one[None]}), ValueError, "scale has shape (1, 3): expected (3,), one for each"
    )


def test_bad_rank() -> None:
    for layout, rank, expected in (("NCW", 4, "3"), ("NDHWC", 3, "5"), ("NWC", 2, "3")):
        op = BatchNormalization(layout=layout)
        x = np.ones((3,) * rank, np.float32)
        message = f"x has {rank} axes: layout={layout!r} expects {expected}"
        refuses(lambda op=op, x=x: op.forward_training(x, ONES, ONES), ValueError, message)
        refuses(lambda op=op, x=x: op.forward_inference(x, ONES, ONES, ONES, ONES), ValueError, message)
        refuses(lambda op=op, x=x: op.backward(x, x, ONES), ValueError, message)


def test_parameters_of_the_other_mode() -> None:
    refuses(
        lambda: BatchNormalization("per_activation").forward_training(X, ONES, ONES),
        ValueError,
        "scale has shape (3,): expected (3, 4, 5), the shape of x without its first axis (per_activation)",
    )
    refuses(
        lambda: BatchNormalization(layout="NHWC").forward_training(X, ONES, ONES),
        ValueError,
        "scale has shape (3,): expected (5,), one for each channel of x (spatial)",
    )
    refuses(
        lambda: OP.forward_training(X.astype(np.float64), ONES, ONES),
        TypeError,
        "scale has dtype float32: expected float64",
    )


def test_bad_dy() -> None:
    for dy, error, message in (
        (X[..., :4], ValueError, "dy has shape (2, 3, 4, 4): expected (2, 3, 4, 5), the shape of x"),
        (X.astype(np.float16), TypeError, "dy has dtype float16: expected float32, the dtype of x"),
        (None, TypeError, "dy is a builtins.NoneType"),
    ):
        refuses(lambda dy=dy: OP.backward(dy, X, ONES), error, message)


def frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def test_nothing_is_written_when_training_is_refused() -> None:
    shared = np.full(4, 7, np.float32)
    for changes, error, message in [
        ({"running_variance": None}, ValueError, "running_mean is given without running_variance: expected both"),
        ({"running_mean": None}, ValueError, "running_variance is given without running_mean: expected both"),
        *[({"running_mean": array}, error, "running_mean" + message) for array, error, message in bad_parameters()],
        *[({"running_variance": array}, error, "running_variance" + message)
          for array, error, message in bad_parameters()],
        ({"running_mean": frozen(np.ones(3, np.float32))}, ValueError, "running_mean is read-only"),
        ({"running_variance": frozen(np.ones(3, np.float32))}, ValueError, "running_variance is read-only"),
        ({"running_mean": np.broadcast_to(np.float32(1), (3,))}, ValueError, "running_mean is read-only"),
        ({"running_mean": shared[:3], "running_variance": shared[1:]}, ValueError,
         "running_variance overlaps running_mean in memory"),
        ({"running_mean": shared[:3], "scale": shared[1:]}, ValueError, "running_mean overlaps scale in memory"),
        ({"running_variance": shared[:3], "bias": shared[:3]}, ValueError, "running_variance overlaps bias"),
        ({"average_factor": 1.5}, ValueError, "average_factor=1.5: expected 0 to 1"),
        ({"average_factor": -0.1}, ValueError, "average_factor=-0.1: expected 0 to 1"),
        ({"average_factor": NAN}, ValueError, "average_factor=nan: expected 0 to 1"),
        ({"average_factor": None}, TypeError, "average_factor=None: expected a real number"),
        ({"activation": "tanh"}, ValueError, "activation='tanh': expected one of relu"),
        ({"activation": 1}, TypeError, "activation=1: expected a str"),
        ({"activation": "relu", "alpha": 2.0}, ValueError, "alpha=2.0 and beta=0.0 with activation='relu': expected 1"),
        ({"activation": "relu", "beta": 1.0}, ValueError, "alpha=1.0 and beta=1.0 with activation='relu': expected 1"),
        ({"alpha": None}, TypeError, "alpha=None"),
        ({"bias": np.ones(4, np.float32)}, ValueError, "bias has shape (4,)"),
    ]:  # fmt: skip
        given = {
            "running_mean": np.full(3, 7, np.float32),
            "running_variance": np.full(3, 7, np.float32),
            "scale": ONES,
            "bias": ONES,
            "out": np.full(X.shape, 7, np.float32),
        }
        kept = {name: array.copy() for name, array in given.items()}
        refuses(lambda given=given | changes: OP.forward_training(X, **given), error, message)
        for name, array in given.items():
            same(array, kept[name])
    assert (shared == 7).all()


def test_nothing_is_written_when_backward_is_refused() -> None:
    shared = np.full(4, 7, np.float32)
    for changes, error, message in [
        ({"saved_mean": ONES}, ValueError, "saved_mean is given without saved_inverse_variance: expected both"),
        ({"saved_inverse_variance": ONES}, ValueError, "saved_inverse_variance is given without saved_mean"),
        *[({"saved_mean": array, "saved_inverse_variance": ONES}, error, "saved_mean" + message)
          for array, error, message in bad_parameters()],
        *[({"out_scale": array}, error, "out_scale" + message.split(", ")[0])
          for array, error, message in bad_parameters()],
        *[({"out_bias": array}, error, "out_bias" + message.split(", ")[0])
          for array, error, message in bad_parameters()],
        ({"out_bias": frozen(np.ones(3, np.float32))}, ValueError, "out_bias is read-only"),
        ({"out_scale": shared[:3], "out_bias": shared[1:]}, ValueError, "out_bias overlaps out_scale in memory"),
        ({"out_scale": shared[:3], "scale": shared[1:]}, ValueError, "out_scale overlaps scale in memory"),
        ({"out_bias": shared[:3], "saved_mean": shared[:3], "saved_inverse_variance": ONES}, ValueError,
         "out_bias overlaps saved_mean in memory"),
        ({"parameter_alpha": "1"}, TypeError, "parameter_alpha='1': expected a real number"),
        ({"parameter_beta": None}, TypeError, "parameter_beta=None: expected a real number"),
    ]:  # fmt: skip
        given = {
            "scale": ONES,
            "out": np.full(X.shape, 7, np.float32),
            "out_scale": np.full(3, 7, np.float32),
            "out_bias": np.full(3, 7, np.float32),
        }
        kept = {name: array.copy() for name, array in given.items()}
        refuses(lambda given=given | changes: OP.backward(X, X, **given), error, message)
        for name, array in given.items():
            same(array, kept[name])
    assert (shared == 7).all()


def test_options_are_the_object() -> None:
    assert BatchNormalization() == BatchNormalization("spatial", 1e-5, "NCHW")
    assert hash(BatchNormalization(epsilon=1)) == hash(BatchNormalization(epsilon=1.0))
    assert BatchNormalization(epsilon=1e-3) != BatchNormalization()
    with pytest.raises(AttributeError):
        BatchNormalization().epsilon = 1
