"""Drawn problems of attention, their tensors, and their results in float64."""

from __future__ import annotations

import math
import random
import zlib
from functools import lru_cache
from typing import Any, NamedTuple

from cudnnpy import TensorSpec

SEED = 1
COUNT = 60
KINDS = {"plain": 25, "causal": 35, "bias": 15, "window": 15, "lengths": 10}  # with their shares in percent
LONGEST = 1 << 14
MOST_FLOP = 1e12  # of the two products of forward: some milliseconds
MOST_ELEMENTS = 1 << 27  # of a tensor; a bias has up to LONGEST * LONGEST
CHUNK = 1 << 26  # scores that the reference has in memory at once
NO_KEYS = -1e30  # the statistics of a query without keys


class Cell(NamedTuple):
    """A problem. `is_bshd`: the sequence is the second axis in memory, as projections make it; `bias` is its shape."""

    kind: str
    dtype: str
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_size: int
    is_bshd: bool
    causal: bool | str = False
    window: tuple[int | None, int | None] | None = None
    bias: tuple[int, ...] | None = None

    @property
    def text(self) -> str:
        """The problem in one line."""
        masks = {"causal": self.causal, "window": self.window, "bias": self.bias, "lengths": self.kind == "lengths"}
        words = [name if mask is True else f"{name}={mask}".replace(" ", "") for name, mask in masks.items() if mask]
        return (
            f"{self.dtype} b{self.batch} h{self.heads}/{self.kv_heads} q{self.queries} k{self.keys} d{self.head_size} "
            f"{' '.join(['BSHD' if self.is_bshd else 'BHSD', *words])}"
        )

    @property
    def flop(self) -> int:
        """The operations of the two products of forward, without regard to masks."""
        return 4 * self.batch * self.heads * self.queries * self.keys * self.head_size

    @property
    def options(self) -> dict[str, Any]:
        """The options of cudnnpy.Attention."""
        return {"causal": self.causal, "window": self.window}

    @property
    def has_torch(self) -> bool:
        """Whether torch's scaled_dot_product_attention computes this."""
        return self.kind in ("plain", "causal", "bias")

    def specs(self) -> dict[str, TensorSpec]:
        """Return the arguments of cudnnpy.Attention.plan."""
        return {
            **{name: TensorSpec(*self._of_sequence(name)) for name in "qkv"},
            **({"bias": self._bias()} if self.bias else {}),
            **{name: TensorSpec((self.batch,), "int32") for name in self._lengths()},
        }

    def _bias(self) -> TensorSpec:
        """Return the bias, whose rows start at multiples of 16 bytes."""
        assert self.bias is not None
        _, h, queries, keys = self.bias
        row = -(-keys // 8) * 8
        return TensorSpec(self.bias, self.dtype, (h * queries * row, queries * row, row, 1))  # type: ignore[arg-type]

    def _of_sequence(self, name: str) -> Any:
        heads, length = (self.heads, self.queries) if name == "q" else (self.kv_heads, self.keys)
        b, d = self.batch, self.head_size
        strides = (length * heads * d, d, heads * d, 1) if self.is_bshd else (heads * length * d, length * d, d, 1)
        return (b, heads, length, d), self.dtype, strides

    def _lengths(self) -> tuple[str, ...]:
        return ("lengths_q", "lengths_kv") if self.kind == "lengths" else ()


def drawn(seed: int = SEED, count: int = COUNT) -> list[Cell]:
    """Return the problems of a seed, all different. A smaller count is the beginning of the same list."""
    draw, found = random.Random(seed), dict[Cell, None]()
    while len(found) < count:
        found[_drawn(draw)] = None
    return list(found)


def _drawn(draw: random.Random) -> Cell:
    (kind,) = draw.choices(list(KINDS), list(KINDS.values()))
    batch, kv_heads, shared = (
        draw.choice((1, 1, 2, 3, 4, 8, 16)),
        draw.choice((1, 2, 4, 8, 16)),
        draw.choice((1, 1, 1, 2, 4, 8)),
    )
    queries = _length(draw)
    keys = queries if draw.random() < (0.8 if kind == "causal" else 0.5) else _length(draw)
    head_size = draw.choice((64, 128)) if draw.random() < 0.3 else 8 * draw.randint(5, 32)

    def size() -> int:
        return batch * kv_heads * shared * max(queries, keys) * head_size

    while size() * 4 * min(queries, keys) > MOST_FLOP or size() > MOST_ELEMENTS:
        if batch > 1 and draw.random() < 0.5:
            batch //= 2
        elif kv_heads > 1 and draw.random() < 0.5:
            kv_heads //= 2
        else:
            queries, keys = max(queries // 2, 1), max(keys // 2, 1)
    cell = Cell(
        kind,
        draw.choice(("float16", "bfloat16")),
        batch,
        kv_heads * shared,
        kv_heads,
        queries,
        keys,
        head_size,
        draw.random() < 0.5,
        kind == "causal",
    )
    if kind == "window":
        if draw.random() < 0.3:
            return cell._replace(causal="bottom_right")
        return cell._replace(window=(draw.choice((16, 128, 1000)), draw.choice((0, 0, 128, None))))
    if kind == "bias":
        shape = [n if draw.random() < 0.5 else 1 for n in (batch, cell.heads)] + [queries, keys]
        return cell._replace(bias=tuple(shape) if math.prod(shape) <= MOST_ELEMENTS else (1, 1, queries, keys))
    return cell


def _length(draw: random.Random) -> int:
    """Return a length of 1 to LONGEST, more often a long one, and more often a multiple of 64."""
    length = int(LONGEST ** (draw.random() ** 0.5))
    return -(-length // 64) * 64 if draw.random() < 0.6 else length


def empty(torch: Any, spec: TensorSpec, device: str = "cuda") -> Any:
    """Return a tensor as a spec has it."""
    return torch.empty_strided(spec.shape, spec.strides, dtype=getattr(torch, spec.dtype), device=device)


@lru_cache(maxsize=1)  # forward and backward of a problem follow one another
def operands(torch: Any, cell: Cell, device: str = "cuda") -> tuple[dict[str, Any], dict[str, tuple[Any, Any]]]:
    """Return random inputs by name, with dout, out and statistics, and the exact results.

    A result is float64, and has the norm by which its error is divided.
    """
    generator = torch.Generator(device).manual_seed(zlib.crc32(cell.text.encode()))
    specs = cell.specs()
    given = {name: empty(torch, spec, device) for name, spec in specs.items() if not name.startswith("lengths")}
    given["dout"] = empty(torch, specs["q"], device)
    for tensor in given.values():
        tensor.normal_(generator=generator)
    for name, most in (("lengths_q", cell.queries), ("lengths_kv", cell.keys)):
        if name in specs:
            lengths = torch.randint(most // 2, most + 1, (cell.batch,), generator=generator, device=device)
            given[name] = lengths.to(torch.int32)
    with torch.no_grad():
        right = exact(torch, cell, given)
    given["out"] = torch.empty_like(given["q"]).copy_(right["out"][0])
    given["statistics"] = right["statistics"][0].float()
    return given, right


def exact(torch: Any, cell: Cell, given: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Compute the results of forward and backward in float64, so many heads and queries at a time as CHUNK allows.

    dq and dk are differences: their errors are divided by the norm of their first term if that is larger.
    """
    b, h, kv, sq, sk, d = cell.batch, cell.heads, cell.kv_heads, cell.queries, cell.keys, cell.head_size
    q, dout = (given[name].reshape(b * h, sq, d) for name in ("q", "dout"))
    k, v = (given[name].repeat_interleave(h // kv, 1).reshape(b * h, sk, d) for name in "kv")
    of_queries, of_keys = ("out", "dq", "dq_term"), ("dk", "dv", "dk_term")
    made = {name: q.new_zeros(q.shape, dtype=torch.float64) for name in of_queries}
    made |= {name: k.new_zeros(k.shape, dtype=torch.float64) for name in of_keys}
    made["statistics"] = q.new_zeros((b * h, sq, 1), dtype=torch.float64)
    heads, rows = max(CHUNK // (sq * sk), 1), max(CHUNK // sk, 1)
    for first in range(0, b * h, heads):
        at = slice(first, first + heads)
        of_head = torch.arange(b * h, device=q.device)[at]
        keys, values = k[at].double(), v[at].double()
        for start in range(0, sq, rows):
            here = at, slice(start, start + rows)
            queries, gradient = q[here].double(), dout[here].double()
            scores = queries @ keys.mT / math.sqrt(d)
            if "bias" in given:
                scores += given["bias"].expand(b, h, sq, sk)[of_head // h, of_head % h, here[1]]
            scores.masked_fill_(~_allowed(torch, cell, given, of_head // h, here[1]), -math.inf)
            statistics = scores.logsumexp(-1, keepdim=True)
            has_keys = statistics > -math.inf
            weights = (scores - statistics.where(has_keys, 0)).exp_()
            out = made["out"][here] = weights @ values
            made["statistics"][here] = statistics.where(has_keys, NO_KEYS)
            made["dv"][at] += weights.mT @ gradient
            term = weights * (gradient @ values.mT) / math.sqrt(d)
            of_scores = term - weights * (gradient * out).sum(-1, keepdim=True) / math.sqrt(d)
            for name, factor in (("", of_scores), ("_term", term)):
                made["dq" + name][here] = factor @ keys
                made["dk" + name][at] += factor.mT @ queries
    for name in of_keys:
        made[name] = made[name].view(b, kv, h // kv, sk, d).sum(2)
    for name in (*of_queries, "statistics"):
        made[name] = made[name].view(b, h, sq, -1)
    norms = {name: tensor.norm() for name, tensor in made.items()}
    norms |= {name: torch.maximum(norms[name], norms[f"{name}_term"]) for name in ("dq", "dk")}
    norms["statistics"] = made["statistics"].where(made["statistics"] > NO_KEYS, 0).norm()
    return {name: (tensor, norms[name]) for name, tensor in made.items() if not name.endswith("_term")}


def _allowed(torch: Any, cell: Cell, given: dict[str, Any], batch: Any, rows: slice) -> Any:
    """Return the flags of the keys that queries may use, by head, query and key."""
    i = torch.arange(cell.queries, device=batch.device)[rows, None]
    j = torch.arange(cell.keys, device=batch.device)[None]
    left, right = cell.window or (None, None)
    if cell.causal:
        right = 0
    diagonal = i + (cell.keys - cell.queries if cell.causal == "bottom_right" else 0)
    allowed = torch.ones_like(i + j, dtype=torch.bool)[None]
    if right is not None:
        allowed = allowed & (j <= diagonal + right)
    if left is not None:
        allowed = allowed & (j >= diagonal - left)
    for name, index in (("lengths_q", i), ("lengths_kv", j)):
        if name in given:
            allowed = allowed & (index < given[name][batch, None, None])
    return allowed


def errors(results: dict[str, Any], right: dict[str, tuple[Any, Any]]) -> dict[str, float]:
    """Return the norm of each result's error over the norm that the exact result has."""
    found = {}
    for name, result in results.items():
        expected, norm = right[name]
        off = result.detach().double() - expected
        if name == "statistics":
            off = off.where((result > NO_KEYS / 10) | (expected > NO_KEYS), 0)
        found[name] = float(off.norm() / norm.clamp(min=1e-30))
    return found
