"""A small transformer that trains with cudnnpy.Attention, and then decodes with its keys in pages.

    python docs/examples/transformer.py [--device auto|cpu|cuda] [--steps N] [--tokens N]

It learns to continue arithmetic progressions. Each step of training is computed twice, with cudnnpy's attention and with
PyTorch's, and the losses and gradients are compared; so is each token that is decoded. On the CPU cudnnpy.reference takes the
place of cudnnpy. On a GPU the times of both are printed.
"""

import argparse
import statistics
import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import cudnnpy

WIDTH, HEADS, LAYERS, NUMBERS = 128, 4, 2, 16  # tokens are numbers modulo 16
PAGE = 16  # the keys of a page
MULTIPLE = 128  # of the keys that a table names for a sequence
BATCH, LONGEST = 16, 256
ALLOWED = 0.03  # of the largest value: attention is in float16


ON_GPU, ON_HOST = (
    [library.Attention(layout="BSHD", causal=causal) for causal in (False, True)]
    for library in (cudnnpy, cudnnpy.reference)
)


def attend(method, causal, *tensors, **named):
    """Call a method of Attention on tensors (batch, sequence, heads, head size); return its results as tensors."""
    function = getattr((ON_GPU if tensors[0].is_cuda else ON_HOST)[causal], method)
    if tensors[0].is_cuda:
        return function(*tensors, **named)
    host = {name: one.numpy() if isinstance(one, torch.Tensor) else one for name, one in named.items()}
    made = function(*(one.numpy() for one in tensors), **host)
    return tuple(map(torch.from_numpy, made)) if isinstance(made, tuple) else torch.from_numpy(made)


class CausalAttention(torch.autograd.Function):
    """Causal attention with its gradients, by cudnnpy."""

    @staticmethod
    def forward(ctx, q, k, v):
        out, sums = attend("forward", True, q, k, v, statistics=True)
        ctx.save_for_backward(q, k, v, out, sums)
        return out

    @staticmethod
    def backward(ctx, dout):
        return attend("backward", True, dout, *ctx.saved_tensors)


def by_torch(q, k, v, is_causal=True):
    """Attention by PyTorch."""
    q, k, v = (one.transpose(1, 2) for one in (q, k, v))
    return scaled_dot_product_attention(q, k, v, is_causal=is_causal).transpose(1, 2)


class PagedCache:
    """The keys and values of one layer in pages, whose order is arbitrary; a sequence takes a page where it needs one."""

    def __init__(self, batch, longest, device):
        pages = -(-longest // MULTIPLE) * MULTIPLE // PAGE
        shape = (batch * pages, PAGE, HEADS, WIDTH // HEADS)
        self.k, self.v = torch.zeros(2, *shape, dtype=torch.float16, device=device)
        self.table = torch.randperm(batch * pages, device=device).to(torch.int32).view(batch, 1, pages, 1)
        self.lengths = torch.zeros(batch, dtype=torch.int32, device=device)
        self.ones = torch.ones_like(self.lengths)  # one query of each sequence; without it a memset would write it
        self.length = 0

    def __call__(self, q, k, v):
        page = self.table[:, 0, self.length // PAGE, 0].long()
        self.k[page, self.length % PAGE], self.v[page, self.length % PAGE] = k[:, 0], v[:, 0]
        self.length += 1
        self.lengths.fill_(self.length)
        lengths = {"lengths_q": self.ones, "lengths_kv": self.lengths}
        return attend("forward", False, q, self.k, self.v, **lengths, page_table=self.table)


class DenseCache:
    """The keys and values of one layer, for PyTorch."""

    def __init__(self, batch, longest, device):
        shape = (batch, longest, HEADS, WIDTH // HEADS)
        self.k, self.v = torch.zeros(2, *shape, dtype=torch.float16, device=device)
        self.length = 0

    def __call__(self, q, k, v):
        self.k[:, self.length], self.v[:, self.length] = k[:, 0], v[:, 0]
        self.length += 1
        return by_torch(q, self.k[:, : self.length], self.v[:, : self.length], is_causal=False)


class Block(nn.Module):
    """Attention and a network of two layers, each added to its input."""

    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        hidden = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        self.network = nn.Sequential(nn.LayerNorm(WIDTH), *hidden)

    def forward(self, x, attention):
        q, k, v = self.qkv(self.norm(x)).half().unflatten(2, (3, HEADS, -1)).unbind(2)
        x = x + self.out(attention(q, k, v).flatten(2).to(x.dtype))
        return x + self.network(x)


class Transformer(nn.Module):
    """Embeddings, blocks, and scores of the next token."""

    def __init__(self):
        super().__init__()
        self.embedding, self.position = nn.Embedding(NUMBERS, WIDTH), nn.Parameter(0.02 * torch.randn(LONGEST, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.scores = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, NUMBERS))

    def forward(self, tokens, attentions, start=0):
        x = self.embedding(tokens) + self.position[start : start + tokens.shape[1]]
        for block, attention in zip(self.blocks, attentions, strict=True):
            x = block(x, attention)
        return self.scores(x)


def progressions(length, device):
    """Return a batch of sequences of numbers that grow by an equal step of 1 to 3, modulo NUMBERS."""
    start, step = torch.randint(NUMBERS, (BATCH, 1)), torch.randint(1, 4, (BATCH, 1))
    return ((start + step * torch.arange(length)) % NUMBERS).to(device)


def step(network, tokens, attention):
    """Compute the gradients of the parameters; return the loss."""
    network.zero_grad(set_to_none=True)
    found = network(tokens[:, :-1], [attention] * LAYERS)
    loss = cross_entropy(found.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    return loss.detach()


def check(name, found, expected):
    """Raise AssertionError unless two tensors are equal but for rounding."""
    difference = (found - expected).abs().max() / expected.abs().max().clamp(min=1e-3)
    if not difference <= ALLOWED:  # also where it is NaN
        raise AssertionError(f"{name} must be PyTorch's within {ALLOWED}; got a difference of {difference:.3g}")


def train(network, steps, length, device):
    """Train on cudnnpy's gradients, each compared with PyTorch's; return the losses."""
    optimizer, losses = torch.optim.Adam(network.parameters(), lr=3e-3), []
    for number in range(steps):
        tokens = progressions(length, device)
        expected = step(network, tokens, by_torch)
        gradients = [parameter.grad.clone() for parameter in network.parameters()]
        losses.append(step(network, tokens, CausalAttention.apply))
        check(f"the loss of step {number}", losses[-1], expected)
        ours = torch.cat([parameter.grad.flatten() for parameter in network.parameters()])
        check(f"the gradient of step {number}", ours, torch.cat([one.flatten() for one in gradients]))
        optimizer.step()
    return [float(loss) for loss in losses]


@torch.no_grad()
def decode(network, tokens, count, cache, is_checked=False):
    """Return tokens with `count` more, each from the keys of the ones before; compare the scores with PyTorch's if wanted."""
    caches = [cache(len(tokens), tokens.shape[1] + count, tokens.device) for _ in range(LAYERS)]
    for place in range(tokens.shape[1] + count - 1):
        scores = network(tokens[:, place : place + 1], caches, start=place)
        if is_checked:
            whole = network(tokens[:, : place + 1], [by_torch] * LAYERS)
            check(f"token {place}", scores[:, 0], whole[:, -1])
        if place == tokens.shape[1] - 1:
            tokens = torch.cat([tokens, scores[:, 0].argmax(1, keepdim=True)], 1)
    return tokens


def milliseconds(function, repetitions=10):
    """Return the median time of a function on a GPU."""
    times = []
    for _ in range(repetitions + 2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        function()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[2:])


def main(arguments=None):
    parser = argparse.ArgumentParser(description="A transformer on cudnnpy.Attention, checked against PyTorch.")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--steps", type=int, default=40, help="steps of training")
    parser.add_argument("--tokens", type=int, default=28, help="tokens to decode")
    options = parser.parse_args(arguments)
    device = options.device if options.device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    network = Transformer().to(device)
    losses = train(network, options.steps, 24, device)
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} in {options.steps} steps, gradients as PyTorch's")
    sequences = progressions(4 + options.tokens, device)
    found = decode(network, sequences[:, :4], options.tokens, PagedCache, is_checked=True)
    right = float((found == sequences)[:, 4:].float().mean())
    print(
        f"{options.tokens} tokens decoded from pages of {PAGE} keys as by PyTorch; {right:.0%} continue the progression"
    )
    if device == "cuda":
        tokens = progressions(LONGEST, device)
        ways = [("cudnnpy", CausalAttention.apply, PagedCache), ("PyTorch", by_torch, DenseCache)]
        for name, attention, cache in ways:
            of_step = milliseconds(lambda attention=attention: step(network, tokens, attention))
            of_token = milliseconds(lambda cache=cache: decode(network, tokens[:, :4], 60, cache)) / 63
            print(f"{name}: {of_step:.2f} ms for a step of training, {of_token:.3f} ms for a token")
    return losses, right


if __name__ == "__main__":
    main()
