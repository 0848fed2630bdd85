"""The options of the operations other than convolutions."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, get_args

from cudnnpy._options.checks import (
    check_flag,
    check_integer,
    check_layout,
    check_number,
    check_option,
    check_per_axis,
    for_each_axis,
)
from cudnnpy._options.options_base import ImmutableOptions
from cudnnpy.typing import (
    ActivationMode,
    CudnnPoolingMode,
    NormalizationMode,
    PoolingMode,
    SoftmaxAlgorithm,
    SoftmaxMode,
)

if TYPE_CHECKING:
    from cudnnpy.typing import Layout, PerAxis

Each = tuple[int, ...]

ACTIVATION_MODES: tuple[ActivationMode, ...] = get_args(ActivationMode)
NORMALIZATION_MODES: tuple[NormalizationMode, ...] = get_args(NormalizationMode)
POOLING_MODES: tuple[PoolingMode, ...] = get_args(PoolingMode)
SOFTMAX_ALGORITHMS: tuple[SoftmaxAlgorithm, ...] = get_args(SoftmaxAlgorithm)
SOFTMAX_MODES: tuple[SoftmaxMode, ...] = get_args(SoftmaxMode)

THEANO_POOLING: dict[str, CudnnPoolingMode] = {
    "average_inc_pad": "average_include_padding",
    "average_exc_pad": "average_exclude_padding",
}
# The limits of cudnnSetLRNDescriptor.
LRN_SIZES = 1, 16
LRN_SMALLEST_BETA, LRN_SMALLEST_K = 0.01, 1e-5


def _epsilon(value: Any) -> float:
    return check_number("epsilon", value, 0.0, finite=True)


@dataclass(frozen=True)
class ActivationOptions(ImmutableOptions):
    """The options of Activation."""

    mode: ActivationMode = "relu"
    coefficient: float = 1.0

    def _canonical(self) -> dict[str, Any]:
        check_option("mode", self.mode, ACTIVATION_MODES)
        return {"coefficient": check_number("coefficient", self.coefficient)}


@dataclass(frozen=True)
class BatchNormalizationOptions(ImmutableOptions):
    """The options of BatchNormalization."""

    mode: NormalizationMode = "spatial"
    epsilon: float = 1e-5
    _: KW_ONLY
    layout: Layout = "NCHW"

    def _canonical(self) -> dict[str, Any]:
        check_option("mode", self.mode, NORMALIZATION_MODES)
        check_layout(self.layout)
        return {"epsilon": _epsilon(self.epsilon)}


@dataclass(frozen=True)
class InstanceNormalizationOptions(ImmutableOptions):
    """The options of InstanceNormalization."""

    epsilon: float = 1e-5
    _: KW_ONLY
    layout: Layout = "NCHW"

    def _canonical(self) -> dict[str, Any]:
        check_layout(self.layout)
        return {"epsilon": _epsilon(self.epsilon)}


@dataclass(frozen=True)
class RowNormalizationOptions(ImmutableOptions):
    """The options of LayerNormalization and RMSNormalization."""

    epsilon: float = 1e-5

    def _canonical(self) -> dict[str, Any]:
        return {"epsilon": _epsilon(self.epsilon)}


@dataclass(frozen=True)
class LocalResponseOptions(ImmutableOptions):
    """The options of LocalResponseNormalization."""

    size: int = 5
    _: KW_ONLY
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 2.0
    layout: Layout = "NCHW"

    def _canonical(self) -> dict[str, Any]:
        check_layout(self.layout)
        return {
            "size": check_integer("size", self.size, *LRN_SIZES),
            "alpha": check_number("alpha", self.alpha, finite=True),
            "beta": check_number("beta", self.beta, LRN_SMALLEST_BETA, finite=True),
            "k": check_number("k", self.k, LRN_SMALLEST_K, finite=True),
        }


@dataclass(frozen=True)
class DropoutOptions(ImmutableOptions):
    """The options of Dropout."""

    probability: float = 0.5
    seed: int = 0

    def _canonical(self) -> dict[str, Any]:
        return {
            "probability": check_number("probability", self.probability, 0.0, below=1.0),
            "seed": check_integer("seed", self.seed, 0, 2**64 - 1),
        }


@dataclass(frozen=True)
class SoftmaxOptions(ImmutableOptions):
    """The options of Softmax."""

    algorithm: SoftmaxAlgorithm = "accurate"
    mode: SoftmaxMode = "channel"
    _: KW_ONLY
    layout: Layout = "NCHW"

    def _canonical(self) -> dict[str, Any]:
        check_option("algorithm", self.algorithm, SOFTMAX_ALGORITHMS)
        check_option("mode", self.mode, SOFTMAX_MODES)
        check_layout(self.layout)
        return {}


@dataclass(frozen=True)
class PoolingOptions(ImmutableOptions):
    """The options of Pooling."""

    mode: PoolingMode = "max"
    window: PerAxis = 2
    _: KW_ONLY
    padding: PerAxis = 0
    stride: PerAxis | None = None
    layout: Layout = "NCHW"
    ceil_mode: bool = False

    def _canonical(self) -> dict[str, Any]:
        mode = check_option("mode", self.mode, POOLING_MODES)
        check_layout(self.layout)
        check_flag("ceil_mode", self.ceil_mode)
        window, padding = check_per_axis("window", self.window, 1), check_per_axis("padding", self.padding, 0)
        stride = None if self.stride is None else check_per_axis("stride", self.stride, 1)
        ranks = {len(value) for value in (window, padding, stride) if isinstance(value, tuple)}
        _each(window, padding, stride, next(iter(ranks), 1))
        return {"mode": THEANO_POOLING.get(mode, mode), "window": window, "padding": padding, "stride": stride}

    def _each(self, rank: int) -> tuple[Each, Each, Each]:
        """Window, padding and stride of every spatial axis."""
        return _each(self.window, self.padding, self.stride, rank)


def _each(window: Any, padding: Any, stride: Any, rank: int) -> tuple[Each, Each, Each]:
    """Window, padding and stride of every spatial axis. Raises ValueError for padding of the window's size or more."""
    window, padding = for_each_axis("window", window, rank), for_each_axis("padding", padding, rank)
    for pad, size in zip(padding, window, strict=True):
        if pad >= size:
            raise ValueError(f"padding must be less than the window, {window}; got {padding}")
    return window, padding, window if stride is None else for_each_axis("stride", stride, rank)
