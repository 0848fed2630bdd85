"""The network of a ranking model in PyTorch: its training, and the arrays of the model's file (cudnnpy/tuning/ranking).

Two losses are added. The first is the expected loss of a choice that is drawn by the predictions: the softmax of the candidates
of a problem that planning ranks. The second is the weighted square of the error of each logarithm, in which slow candidates
count less.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cudnnpy.tuning.ranking.model import FORMAT, LAYERS, MAX_DEVIATIONS, NUMBERS, WEIGHT_BITS
from tools.ranking.dataset import Arrays, Vocabulary

_VECTOR, _WIDTH = 32, 192  # the lengths of tokens' vectors and of hidden layers
_BATCH, _RATE, _DECAY = 64, 2e-3, 1e-2
_SHARPNESS = 8.0  # of the softmax
_FAR = 1.5  # larger logarithms are reduced to this one


class Network(nn.Module):  # type: ignore[misc]  # PyTorch is not in the environment of the checks
    """The layers of ranking.Model."""

    def __init__(self, problem: int, tokens: int) -> None:
        super().__init__()
        self.vectors = nn.EmbeddingBag(1 + tokens, _VECTOR, mode="sum", padding_idx=0)
        nn.init.normal_(self.vectors.weight, std=0.3)
        self.problem = nn.Linear(problem, _WIDTH)
        self.candidate = nn.Linear(_VECTOR + NUMBERS, _WIDTH, bias=False)
        self.second, self.third = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH // 2)
        self.last = nn.Linear(_WIDTH // 2, 1)

    def forward(self, problems: Tensor, tokens: Tensor, numbers: Tensor, problem_of: Tensor) -> Tensor:
        """Return the prediction for each candidate."""
        candidate = self.candidate(torch.cat([self.vectors(tokens), numbers], 1))
        found = torch.relu(candidate + self.problem(problems)[problem_of])
        found = found + torch.relu(self.second(found))
        found = torch.relu(self.third(found))
        return self.last(found)[:, 0]


def train(given: Arrays, known: Vocabulary, epochs: int) -> dict[str, np.ndarray]:
    """Return the arrays of a model that is trained on candidates."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mean, scale = given.problems.mean(0), given.problems.std(0) + 1e-3
    inputs = torch.tensor(((given.problems - mean) / scale).clip(-MAX_DEVIATIONS, MAX_DEVIATIONS), device=device)
    tokens = torch.tensor(given.tokens.astype(np.int64), device=device)
    numbers, starts = torch.tensor(given.numbers, device=device), torch.tensor(given.starts, device=device)
    targets = torch.tensor(given.logarithms.astype(np.float32), device=device).clamp(max=_FAR)
    is_ranked = torch.tensor(given.is_ranked, device=device)
    counts = starts[1:] - starts[:-1]
    network = Network(inputs.shape[1], len(known.tokens)).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=_RATE, weight_decay=_DECAY)
    batches = len(inputs) // _BATCH
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=epochs * batches + 1)
    for _ in range(epochs):
        order = torch.randperm(len(inputs), device=device)
        for problems in order[: batches * _BATCH].view(batches, _BATCH):
            count = counts[problems]
            rows, problem_of = _rows(starts[problems], count)
            found = network(inputs[problems], tokens[rows], numbers[rows], problem_of)
            loss = _loss(found, targets[rows], is_ranked[rows], problem_of)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            rate.step()
    return _arrays_of(network, mean, scale, known)


def _rows(starts: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the candidates of a batch of problems, and the number of each one's problem in the batch."""
    problem_of = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    first = torch.cumsum(counts, 0) - counts
    return torch.arange(len(problem_of), device=counts.device) + (starts - first)[problem_of], problem_of


def _loss(found: Tensor, targets: Tensor, is_ranked: Tensor, problem_of: Tensor) -> Tensor:
    zeros = torch.zeros(_BATCH, device=found.device)
    scores = torch.where(is_ranked, -_SHARPNESS * found, -1e4)
    largest = torch.full_like(zeros, -1e9).scatter_reduce(0, problem_of, scores.detach(), "amax")
    exponentials = torch.exp(scores - largest[problem_of])
    shares = exponentials / zeros.index_add(0, problem_of, exponentials)[problem_of]
    of_choice = (shares * targets).sum() / _BATCH
    return of_choice + (torch.exp(-targets) * (found - targets) ** 2).mean()


def _arrays_of(network: Network, mean: np.ndarray, scale: np.ndarray, known: Vocabulary) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {
        "format": np.array(FORMAT),
        "tokens": np.array(list(known.tokens), np.int32),
        "engines": np.array(list(known.engines), np.int32),
        "others": np.array(known.others, np.int32).reshape(-1, 2),
        "mean": mean.astype(np.float32),
        "scale": scale.astype(np.float32),
        "vectors": _fixed(network.vectors.weight[1:]),
    }
    for name in LAYERS:
        layer: Any = getattr(network, name)
        found[name] = _fixed(layer.weight.T)
        if layer.bias is not None:
            found[f"{name} bias"] = _fixed(layer.bias)
    return found


def _fixed(weights: Tensor) -> np.ndarray:
    """Return weights as whole numbers of 2^-WEIGHT_BITS."""
    scaled = (weights.detach().cpu().numpy() * 2.0**WEIGHT_BITS).round()
    fixed: np.ndarray = scaled.clip(-(2**15), 2**15 - 1).astype(np.int16)
    return fixed
