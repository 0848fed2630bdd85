"""The ranking model: predict the times of a problem's candidates, learned from measurements on one kind of GPU.

A model is a file of arrays in the folder `models`, for one architecture of GPUs and one release of cuDNN (major and minor),
since engines and their speed differ between them. tools/ranking makes it. It is a neural network of four layers:

    candidate's input   the sum of its tokens' vectors (its engine, each knob of it, its lowering), and numbers about its
                        position among the heuristics' proposals
    problem's input     the features of the problem, and the position of the first proposal of each engine
    output              the logarithm of the candidate's time over the fastest one's

Weights and intermediate results are rounded to binary fractions, so that every sum is exact in float64, whatever its order: a
model ranks alike on every machine.
"""

from __future__ import annotations

import math
import os
import stat
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import accumulate, chain
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np

from cudnnpy import raw
from cudnnpy._planning import known_issues
from cudnnpy._planning.candidates import (
    Candidate,
    Lowering,
    candidate_for_engine,
    from_configuration,
    rejected_graph,
    uses_tf32,
)
from cudnnpy._planning.choice import Engine
from cudnnpy._planning.engines import Target, gpu_kind, heuristics
from cudnnpy.errors import StatusError
from cudnnpy.typing import ConvolutionOperation

FORMAT = 3
SOURCE = "ranking"  #: the source of candidates with a predicted time
VARIABLE = "CUDNNPY_MODELS"
WEIGHT_BITS, VALUE_BITS = 10, 8  # of the fractions of weights, and of intermediate results
_MAX_PRODUCTS = 1 << 18  # of a matrix product; OpenBLAS computes larger ones with several threads
MAX_DEVIATIONS = 4.0  # features are clipped to this many standard deviations
LOWERINGS = ("blocks", "copies", "channels last", "epilogue", "forward")
NUMBERS = 14  #: the length of a candidate's numbers
OPERATIONS: tuple[str, ...] = get_args(ConvolutionOperation)
ENGINES = 1000  # more than a kind of graph has
LAYERS = ("problem", "candidate", "second", "third", "last")
FEATURES = 94  #: of a convolution (convolution_features.py)
# The shapes of the arrays of a model. Sizes of one name are equal.
_SHAPES: dict[str, tuple[str | int, ...]] = {
    "tokens": ("tokens", 4),
    "engines": ("engines",),
    "others": ("others", 2),
    "mean": ("inputs",),
    "scale": ("inputs",),
    "vectors": ("tokens", "vector"),
    "problem": ("inputs", "width"),
    "problem bias": ("width",),
    "candidate": ("candidate", "width"),
    "second": ("width", "width"),
    "second bias": ("width",),
    "third": ("width", "half"),
    "third bias": ("half",),
    "last": ("half", 1),
    "last bias": (1,),
}

# The measured release, and the first and last ones whose engines for GPUs of compute capability 9.0 are mostly the same
# (docs/dev/ranking.md). With others the heuristics' order stands, since an engine's number may mean another engine there.
MEASURED, _FIRST, _LAST = 91900, 91200, 92800
_FOLDER = str(Path(__file__).with_name("models"))
_SPLITS = tuple(
    int(raw.cudnnBackendKnobType_t[f"CUDNN_KNOB_TYPE_{name}"]) for name in ("SPLIT_K", "SPLIT_K_BUF", "SPLIT_K_SLC")
)

Token = tuple[int, int, int, int]  # a kind of token, and up to three numbers


class Configuration(NamedTuple):
    """An engine (engine_number) with its knobs (None: its defaults), the suffix of its lowering, and its position.

    The position is the number among the proposals of cuDNN's heuristics for the lowering; -1 for others.
    """

    engine: int
    knobs: tuple[tuple[int, int], ...] | None
    lowering: str
    position: int = -1

    def tokens(self) -> Iterator[Token]:
        """Yield the tokens that describe it."""
        yield 0, self.engine, 0, 0
        if not self.knobs:
            yield 1, self.engine, 0, 0
        for kind, value in self.knobs or ():
            yield (2, self.engine, kind, value > 0) if kind in _SPLITS else (3, self.engine, kind, value)
        for name in lowering_names(self.lowering):
            yield 4, LOWERINGS.index(name), 0, 0
            yield 5, LOWERINGS.index(name), self.engine, 0


def engine_number(index: int, operation: str, is_fused: bool) -> int:
    """Return the number of an engine among all kinds of graphs, since each kind counts its engines by itself.

    The kinds are the operations, each by itself and fused with a bias or an activation.
    """
    return index + ENGINES * (OPERATIONS.index(operation) + len(OPERATIONS) * is_fused)


def lowering_names(suffix: str) -> list[str]:
    """Return the names in the suffix of a lowering."""
    return [name for name in suffix.split(" + ")[1:] if name in LOWERINGS]


class Positions:
    """The positions of a problem's candidates among the heuristics' proposals, and the numbers that describe them."""

    def __init__(self, configurations: Sequence[Configuration]) -> None:
        # the first position of each engine in its lowering, and the number of engines with an earlier one
        self._first: dict[tuple[str, int], tuple[int, int]] = {}
        self._top: dict[str, Configuration] = {}
        engines = Counter[str]()
        proposals = sorted((one for one in configurations if one.position >= 0), key=lambda one: one.position)
        for one in proposals:
            key = one.lowering, one.engine
            if key not in self._first:
                self._first[key] = one.position, engines[one.lowering]
                engines[one.lowering] += 1
            if one.position == 0:
                self._top.setdefault(one.lowering, one)
        self._count = 1 + max((one.position for one in proposals), default=0)
        self._lowerings = {name for one in configurations for name in lowering_names(one.lowering)}

    def of_problem(self, engines: Mapping[int, int]) -> list[float]:
        """Return numbers about the problem. `engines` has an index for each engine that has a number of its own."""
        found = [0.0] * len(engines)
        for (lowering, engine), (position, _) in self._first.items():
            if not lowering and engine in engines:
                found[engines[engine]] = 1 / (1 + position)
        return [math.log2(self._count), *found, *(float(name in self._lowerings) for name in LOWERINGS)]

    def of(self, one: Configuration) -> list[float]:
        """Return the numbers of a candidate."""
        top, (first, earlier) = self._top.get(one.lowering), self._first.get((one.lowering, one.engine), (None, 0))
        is_proposed, knobs, equal = one.position >= 0, dict(one.knobs or ()), 0
        if top is not None and top.engine == one.engine:
            equal = len(knobs.items() & dict(top.knobs or ()).items())
        position = one.position if is_proposed else 0
        return [
            not is_proposed,
            math.log2(1 + position),
            1 / (1 + position) if is_proposed else 0.0,
            one.position == 0,
            first is None,
            math.log2(1 + (first or 0)),
            first == 0,
            earlier / 4,
            top is None,
            equal / 4,
            not knobs,
            *(math.log2(max(knobs.get(kind, 0), 1)) for kind in _SPLITS),
        ]


class Model:
    """The model of a file for `key`, a compute capability and a release. Raises ValueError or KeyError if it is not one."""

    def __init__(self, arrays: Mapping[str, np.ndarray], key: tuple[str, str]) -> None:
        found = int(arrays["format"]), *map(str, arrays["key"])
        if found != (FORMAT, *key):
            raise ValueError(f"it must be of format, GPU and cuDNN {(FORMAT, *key)}; got {found}")
        given = _checked(arrays)
        self._tokens: dict[Token, int] = {token: n for n, token in enumerate(map(tuple, given["tokens"].tolist()))}
        self._engines = {engine: n for n, engine in enumerate(given["engines"].tolist())}
        self._others = [tuple(row) for row in given["others"].tolist()]
        self._mean, self._scale = (given[name].astype(np.float64) for name in ("mean", "scale"))
        vectors = given["vectors"]
        self._vectors = np.vstack([vectors, np.zeros_like(vectors[:1])]) * 2.0**-WEIGHT_BITS
        # in C order: the file has some in Fortran order, with which products of few rows take four times as long
        self._weights = {name: np.ascontiguousarray(given[name]) * 2.0**-WEIGHT_BITS for name in LAYERS}
        self._biases = {name: given[f"{name} bias"] * 2.0**-WEIGHT_BITS for name in LAYERS if name != "candidate"}

    def others(self, kind: int) -> list[int]:
        """Return the numbers of engines that can be the fastest with default knobs, although the heuristics omit them."""
        return [engine for number, engine in self._others if number == kind]

    def knows(self, one: Configuration) -> bool:
        """Return whether the model was trained on the engine of a configuration."""
        return next(one.tokens()) in self._tokens

    def logarithms(self, features: Sequence[float], configurations: Sequence[Configuration]) -> list[float]:
        """Return the predicted logarithm of each candidate's time over the fastest one's. NaN is impossible."""
        positions = Positions(configurations)
        given = np.array([*features, *positions.of_problem(self._engines)])
        given = _rounded(np.clip((given - self._mean) / self._scale, -MAX_DEVIATIONS, MAX_DEVIATIONS))
        absent = len(self._vectors) - 1  # the last vector, which is zero
        tokens = [[absent, *(self._tokens.get(token, absent) for token in one.tokens())] for one in configurations]
        starts = list(accumulate(map(len, tokens), initial=0))[:-1]
        vectors = np.add.reduceat(self._vectors[list(chain.from_iterable(tokens))], starts)
        candidates = np.hstack([vectors, [positions.of(one) for one in configurations]])
        weights, biases = self._weights, self._biases
        common = given @ weights["problem"] + biases["problem"]
        values = _rounded(np.maximum(_product(_rounded(candidates), weights["candidate"]) + common, 0))
        values = values + _rounded(np.maximum(_product(values, weights["second"]) + biases["second"], 0))
        values = _rounded(np.maximum(_product(values, weights["third"]) + biases["third"], 0))
        found = values @ weights["last"] + biases["last"]
        return [float(value) for value in found[:, 0]]


def _checked(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays of a model. Raises ValueError for other shapes and types, and for numbers that are not finite."""
    found = {name: arrays[name] for name in _SHAPES}
    sizes: dict[str | int, int] = {1: 1, 2: 2, 4: 4}
    for name, dimensions in _SHAPES.items():
        array, kind = found[name], "f" if name in ("mean", "scale") else "i"
        expected = tuple(map(sizes.setdefault, dimensions, array.shape))
        if array.shape != expected or len(expected) != len(dimensions) or array.dtype.kind != kind:
            raise ValueError(
                f"{name!r} must be of kind {kind!r} and shape {dimensions}; got {array.dtype} {array.shape}"
            )
    inputs, candidate = FEATURES + 1 + len({*found["engines"].tolist()}) + len(LOWERINGS), sizes["vector"] + NUMBERS
    if (sizes["inputs"], sizes["candidate"]) != (inputs, candidate):
        raise ValueError(f"its layers must have {inputs} and {candidate} inputs; got {sizes}")
    if not (np.isfinite([found["mean"], found["scale"]]).all() and (found["scale"] > 0).all()):
        raise ValueError("its means and scales must be finite, and scales above 0; got others")
    return found


def _product(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return a matrix product that OpenBLAS computes without threads, which wait for each other on a busy machine."""
    step = max(1, _MAX_PRODUCTS // weights.size)
    return np.concatenate([values[start : start + step] @ weights for start in range(0, len(values), step)])


def _rounded(values: np.ndarray) -> np.ndarray:
    rounded: np.ndarray = np.rint(values * 2.0**VALUE_BITS) * 2.0**-VALUE_BITS
    return rounded


def ranked(
    model: Model, features: Sequence[float], kind: int, lowerings: Sequence[Lowering], target: Target, strict: bool
) -> Iterator[Candidate]:
    """Yield the proposals of the heuristics for each lowering, and other engines, by their predicted times.

    `strict`: float32 is multiplied as float32, not as tf32. Engines that the model does not know and rejected candidates come
    last, in the heuristics' order. A candidate is made when its turn comes, since a plan needs only the first ones.
    """
    usable: dict[Configuration, Callable[[], Candidate]] = {}
    unknown: list[Callable[[], Candidate]] = []
    rejected: list[Callable[[], Candidate]] = []
    for lowering in lowerings:
        traits, suffix = lowering.traits, lowering.suffix
        try:
            proposals = list(heuristics(lowering.build_graph(target), target))
        except StatusError as error:
            rejected.append(partial(rejected_graph, lowering, error.with_traceback(None)))
            continue
        graph = engine_number(0, traits.operation, bool(traits.fused))
        rejection_of = cache(partial(known_issues.rejection_by_issues, traits))
        for position, proposal in enumerate(proposals):
            found = Configuration(graph + proposal.engine, proposal.knobs or None, suffix, position)
            make = partial(from_configuration, lowering, target, "heuristics", proposal)
            if (strict and uses_tf32(proposal.notes)) or rejection_of(proposal.engine, proposal.notes):
                rejected.append(make)
            elif model.knows(found):
                usable[found] = make
            else:
                unknown.append(make)
        if suffix:
            continue
        proposed = {found.engine for found in usable if not (found.knobs or found.lowering)}
        for number in model.others(kind):
            if 0 <= number - graph < ENGINES and number not in proposed:
                make = partial(candidate_for_engine, lowering, target, Engine(number - graph))
                usable[Configuration(number, None, suffix)] = make
    configurations = list(usable)
    logarithms = model.logarithms(features, configurations) if usable else []
    for logarithm, number in sorted(zip(logarithms, range(len(usable)), strict=True)):
        found = configurations[number]
        one = usable[found]()
        if found.position >= 0 or _may_be_used(one, strict):
            one.source, one.expected = SOURCE, max(1.0, math.exp(logarithm))
            yield one
    for make_other in (*unknown, *rejected):
        yield make_other()


def _may_be_used(one: Candidate, strict: bool) -> bool:
    """Return whether an engine may be used that the heuristics do not propose."""
    if one.rejection_reason or one.lowering is None or one.engine is None or (strict and one.uses_tf32):
        return False  # it is among all engines (Problem.engines)
    must_be_proposed = known_issues.requires_heuristics_proposal(one.lowering.traits, one.engine.index, one.notes)
    return not (one.compiled_at_run_time or must_be_proposed)


def model_for(target: Target) -> Model | None:
    """Return the model for the GPU of a target and the loaded cuDNN; None if there is none."""
    folder = os.environ.get(VARIABLE, _FOLDER)
    return _read(folder, gpu_kind(target).capability, model_release()) if folder else None


def model_release() -> str:
    """Return the release of cuDNN whose models serve the loaded one: "9.19"."""
    return _text(MEASURED if _FIRST <= raw.version() < _LAST + 100 else raw.version())


def _text(release: int) -> str:
    """Return the major and minor number of a release."""
    return raw.version_text(release).rpartition(".")[0]


def source_text(source: str) -> str:
    """Return the source of a candidate, with a note if the ranking was not measured with the loaded release."""
    loaded, served = _text(raw.version()), model_release()
    if source == SOURCE and served != loaded:
        return f"ranking of {served}"
    if source == "heuristics" and raw.version() >= _LAST + 100:
        return f"heuristics (the ranking was not measured for {loaded})"
    return source


def release_note() -> str:
    """Return, as a sentence, that the ranking was not measured with the loaded release; "" if it was."""
    loaded, served = _text(raw.version()), model_release()
    if served != loaded:
        return f"the ranking of engines was measured with cuDNN {served}, and orders the engines of {loaded}, too"
    if loaded != _text(MEASURED):
        return f"the ranking of engines was not measured for cuDNN {loaded}: the order of cuDNN's heuristics stands"
    return ""


def file_name(capability: str, release: str) -> str:
    """Return the name of the file of a model."""
    return f"sm-{capability}-cudnn-{release}.npz"


@cache
def _read(folder: str, capability: str, release: str) -> Model | None:
    """Return a model of a folder; None if there is none, or, with a warning, if it cannot be read."""
    file = Path(folder, file_name(capability, release))
    try:
        if not stat.S_ISREG(file.stat().st_mode):  # opening a pipe would wait for its writer
            raise ValueError("it must be a regular file; got another kind")
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            return Model(arrays, (capability, release))
    except FileNotFoundError:
        return None
    except Exception as error:  # NumPy and zipfile raise many kinds for a damaged file
        warnings.warn(f"{file} is not used to choose engines: {type(error).__name__}: {error}"[:400], stacklevel=2)
        return None
