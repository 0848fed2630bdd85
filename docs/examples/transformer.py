"""A small transformer that trains with cudnnpy.Attention, and then decodes with its keys in pages.

    python docs/examples/transformer.py [--device auto|cpu|cuda] [--steps N] [--tokens N]

It learns to continue arithmetic progressions. Each step of training is computed twice, with cudnnpy's attention and with
PyTorch's, and the losses and gradients are compared; so is each token that is decoded. On the CPU cudnnpy.reference takes the
place of cudnnpy. On a GPU the times of both are printed, in CUDA graphs.
"""

import argparse
import functools
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
    """Causal attention with its gradients, by cudnnpy, of q, k and v in one tensor (batch, sequence, 3, heads, head size)."""

    @staticmethod
    def forward(ctx, qkv):
        out, sums = attend("forward", True, *qkv.unbind(2), statistics=True)
        ctx.save_for_backward(qkv, out, sums)
        return out

    @staticmethod
    def backward(ctx, dout):
        qkv, out, sums = ctx.saved_tensors
        gradients = torch.empty_like(qkv)
        dq, dk, dv = gradients.unbind(2)  # the results are written where PyTorch would copy them to
        attend("backward", True, dout, *qkv.unbind(2), out, sums, dq=dq, dk=dk, dv=dv)
        return gradients


def by_torch(qkv):
    """Causal attention by PyTorch."""
    q, k, v = (one.transpose(1, 2) for one in qkv.unbind(2))
    return scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


class PagedCache:
    """The keys and values of all layers in pages, whose order is arbitrary.

    The table, the lengths and the row of the next token serve all layers. What differs from token to token is in device memory,
    so that one CUDA graph serves all tokens.
    """

    def __init__(self, batch, longest, device):
        pages = -(-longest // MULTIPLE) * MULTIPLE // PAGE
        table = torch.randperm(batch * pages, device=device).view(batch, pages)
        self.rows = (table[..., None] * PAGE + torch.arange(PAGE, device=device)).flatten(1)  # of keys in the memory
        # the length of each sequence with the next token, and the place of the token: all grow by 1
        self.counts = torch.zeros(batch + 1, dtype=torch.int32, device=device)
        self.lengths, self.place = self.counts[:batch], self.counts[batch:]
        self.named = {"lengths_kv": self.lengths, "page_table": table.int().view(batch, 1, pages, 1)}
        shape = (LAYERS, batch * pages * PAGE, 2, HEADS, WIDTH // HEADS)
        memory = torch.zeros(shape, dtype=torch.float16, device=device)
        in_pages = memory.unflatten(1, (-1, PAGE)).unbind(3)
        self.layers = [functools.partial(self.attend, *one) for one in zip(memory, *in_pages, strict=True)]

    def restart(self):
        """Forget all tokens."""
        self.lengths.fill_(1)
        self.place.zero_()

    def grow(self):
        """Make room for the next token."""
        self.row = self.rows.index_select(1, self.place).flatten()

    def attend(self, memory, k, v, qkv):
        """Add the keys and values of the token to a layer's; return its attention to all of them."""
        memory.index_copy_(0, self.row, qkv[:, 0, 1:])
        return attend("forward", False, qkv[:, :, 0], k, v, **self.named)


class DenseCache:
    """The keys and values of all layers, for PyTorch, which masks those of tokens to come."""

    def __init__(self, batch, longest, device):
        self.counts = self.place = torch.zeros(1, dtype=torch.int64, device=device)
        self.places = torch.arange(longest, device=device)
        shape = (LAYERS, 2, batch, HEADS, longest, WIDTH // HEADS)
        memory = torch.zeros(shape, dtype=torch.float16, device=device)
        self.layers = [functools.partial(self.attend, keys) for keys in memory]

    def restart(self):
        """Forget all tokens."""
        self.place.zero_()

    def grow(self):
        """Make room for the next token."""
        self.mask = (self.places <= self.place).view(1, 1, 1, -1)

    def attend(self, memory, qkv):
        """Add the keys and values of the token to a layer's; return its attention to all of them."""
        memory.index_copy_(3, self.place, qkv[:, 0, 1:].transpose(0, 1).unsqueeze(3))
        k, v = memory.unbind()
        return scaled_dot_product_attention(qkv[:, :, 0].transpose(1, 2), k, v, attn_mask=self.mask).transpose(1, 2)


class Block(nn.Module):
    """Attention and a network of two layers, each added to its input."""

    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        hidden = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        self.network = nn.Sequential(nn.LayerNorm(WIDTH), *hidden)

    def forward(self, x, attention):
        qkv = self.qkv(self.norm(x)).half().unflatten(2, (3, HEADS, -1))
        x = x + self.out(attention(qkv).flatten(2).to(x.dtype))
        return x + self.network(x)


class Transformer(nn.Module):
    """Embeddings, blocks, and scores of the next token."""

    def __init__(self):
        super().__init__()
        self.embedding, self.position = nn.Embedding(NUMBERS, WIDTH), nn.Parameter(0.02 * torch.randn(LONGEST, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.scores = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, NUMBERS))

    def forward(self, tokens, attentions, place=None):
        position = self.position[: tokens.shape[1]] if place is None else self.position.index_select(0, place)
        x = self.embedding(tokens) + position
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


def captured(function):
    """Return the launch of a CUDA graph of what a function does on a GPU."""
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # plans are made before the capture
        for _ in range(3):
            function()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=side):
        function()
    return graph.replay


class Decoder:
    """Scores of one token after the other, on a GPU by a CUDA graph that is captured once."""

    @torch.no_grad()
    def __init__(self, network, batch, longest, device, cache):
        self.network, self.past = network, cache(batch, longest, device)
        self.token = torch.zeros(batch, 1, dtype=torch.int64, device=device)
        self.replay = captured(self.step) if device == "cuda" else self.step

    def step(self):
        """Compute the scores after the token."""
        self.past.grow()
        self.scores = self.network(self.token, self.past.layers, self.past.place)
        self.past.counts += 1

    @torch.no_grad()
    def decode(self, tokens, count, is_checked=False):
        """Return tokens with `count` more, each from the ones before; compare the scores with PyTorch's if wanted."""
        self.past.restart()
        for place in range(tokens.shape[1] + count - 1):
            self.token.copy_(tokens[:, place : place + 1])
            self.replay()
            if is_checked:
                whole = self.network(tokens[:, : place + 1], [by_torch] * LAYERS)
                check(f"token {place}", self.scores[:, 0], whole[:, -1])
            if place == tokens.shape[1] - 1:
                tokens = torch.cat([tokens, self.scores[:, 0].argmax(1, keepdim=True)], 1)
        return tokens


def milliseconds(*functions, repetitions=10):
    """Return the median time of each function on a GPU. They take turns, since other programs may slow one of them down."""
    times = [[] for _ in functions]
    for _ in range(repetitions + 2):
        for function, found in zip(functions, times, strict=True):
            torch.cuda.synchronize()
            start = time.perf_counter()
            function()
            torch.cuda.synchronize()
            found.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(found[2:]) for found in times]


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
    decoder = Decoder(network, BATCH, 4 + options.tokens, device, PagedCache)
    found = decoder.decode(sequences[:, :4], options.tokens, is_checked=True)
    right = float((found == sequences)[:, 4:].float().mean())
    print(
        f"{options.tokens} tokens decoded from pages of {PAGE} keys as by PyTorch; {right:.0%} continue the progression"
    )
    if device == "cuda":
        tokens = progressions(LONGEST, device)
        ways = CausalAttention.apply, by_torch
        steps = milliseconds(*(captured(functools.partial(step, network, tokens, attention)) for attention in ways))
        decoders = [Decoder(network, BATCH, LONGEST, device, cache) for cache in (PagedCache, DenseCache)]
        decodes = milliseconds(*(functools.partial(one.decode, tokens[:, :4], 60) for one in decoders))
        for name, of_step, of_tokens in zip(("cudnnpy", "PyTorch"), steps, decodes, strict=True):
            print(f"{name}: {of_step:.2f} ms for a step of training, {of_tokens / 63:.3f} ms for a token")
    return losses, right


if __name__ == "__main__":
    main()
