"""Train a network data-parallel on the GPUs of a machine, its convolutions by cudnnpy; all ranks choose the same plans.

    python docs/examples/data_parallel.py --gpus 2 --network resnet50 --batch 128 --precision bf16
    torchrun --nproc-per-node 2 docs/examples/data_parallel.py --network digits

The digits are scikit-learn's (pip install scikit-learn), 1,797 pictures of 8x8 pixels; ResNet-50 gets random pictures. Each
rank has a GPU, a copy of the network and its own pictures; torch's DistributedDataParallel averages the gradients by NCCL.

Rank 0 runs a step by itself first, in which prefer="autotune" measures, and keeps its choices in the store (CUDNNPY_STORE, or
--store). The other ranks wait, and find them there: they measure nothing, which cudnnpy.freeze makes sure of. With
--together all ranks measure at the same time; the first to finish a problem decides, and the others take its choice.

Reported are the pictures per second, the scaling (the rate of all GPUs over that of as many times the first one alone), the
seconds of the first step of each rank, and whether the kernels that the ranks run are the same, as torch's profiler saw them.
"""

import argparse
import hashlib
import inspect
import os
import signal
import sys
import tempfile
import time
from contextlib import nullcontext
from datetime import timedelta
from multiprocessing.connection import wait
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import cudnnpy
import cudnnpy.torch

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32, "fp32": torch.float32}
STEPS = {"digits": 400, "resnet50": 50}
# Batch normalizations of each rank keep their own statistics. Newer releases of torch have another name for that.
_names = inspect.signature(DistributedDataParallel).parameters
OWN_STATISTICS = {"forward_sync_buffers" if "forward_sync_buffers" in _names else "broadcast_buffers": False}
WARM_UP = 15  # steps before those that are timed: launches are settled after a dozen
WANTED_ACCURACY = 0.97
PROBLEMS = 200  # more than a network here has: rank 0 measures each of them while the others wait


# Networks and their pictures


class Block(nn.Module):
    """A bottleneck of ResNet-50, with the stride in its 3x3 convolution."""

    def __init__(self, inside, width, stride):
        super().__init__()
        outside = 4 * width
        self.body = nn.Sequential(
            *layer(inside, width, 1),
            nn.ReLU(inplace=True),
            *layer(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *layer(width, outside, 1),
        )
        is_plain = stride == 1 and inside == outside
        self.shortcut = nn.Identity() if is_plain else nn.Sequential(*layer(inside, outside, 1, stride))

    def forward(self, x):
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


def layer(inside, outside, size, stride=1):
    """A convolution that keeps the size at stride 1, and its batch normalization."""
    return nn.Conv2d(inside, outside, size, stride, size // 2, bias=False), nn.BatchNorm2d(outside)


def resnet50():
    """He et al., 2015: from (N, 3, 224, 224) to (N, 1000)."""
    parts = [*layer(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inside = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(blocks):
            parts.append(Block(inside, width, stride if number == 0 else 1))
            inside = 4 * width
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000))


def digits_network():
    """From (N, 1, 8, 8) to (N, 10); the last convolution is as large as what is left of the picture."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 10, 4),
        nn.Flatten(),
    )


class Digits:
    """Batches of this rank, drawn from the pictures that are its share, and the pictures that nobody is trained on."""

    def __init__(self, rank, ranks, device):
        from sklearn.datasets import load_digits

        bunch = load_digits()
        images = torch.tensor(bunch.images[:, None] / 16, dtype=torch.float32, device=device)
        labels = torch.tensor(bunch.target, device=device)
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).to(device)
        self.test = images[order[:360]], labels[order[:360]]
        share = order[360:][rank::ranks]
        self.images, self.labels = images[share], labels[share]
        self.draw = torch.Generator().manual_seed(rank)

    def batch(self, size):
        chosen = torch.randint(len(self.images), (size,), generator=self.draw).to(self.images.device)
        return self.images[chosen], self.labels[chosen]


class Noise:
    """The same random pictures for every step."""

    test = None

    def __init__(self, rank, ranks, device):
        self.draw, self.device, self.kept = torch.Generator(device=device).manual_seed(rank), device, None

    def batch(self, size):
        if self.kept is None:
            images = torch.randn(size, 3, 224, 224, device=self.device, generator=self.draw)
            labels = torch.randint(1000, (size,), device=self.device, generator=self.draw)
            self.kept = images.contiguous(memory_format=torch.channels_last), labels
        return self.kept


NETWORKS = {"digits": (digits_network, Digits), "resnet50": (resnet50, Noise)}


# Training


class Report(NamedTuple):
    """What a rank tells: the seconds of its first step, what freeze found unknown, its rates, its kernels' digest."""

    first_step: float
    unknown: tuple[str, ...]
    alone: float  # pictures per second of this rank while the others wait; 0 where it was not measured
    rate: float  # pictures per second of this rank, beside the others
    loss: float
    kernels: str


class Trainer:
    """A network with its optimizer. `module` is the network, or what wraps it."""

    def __init__(self, module, data, options, device):
        self.module, self.data, self.options, self.device = module, data, options, device
        self.optimizer = torch.optim.SGD(module.parameters(), lr=options.rate, momentum=0.9)
        fp16 = options.precision == "fp16"
        self.scaler = torch.amp.GradScaler(device.type, enabled=fp16)
        self.loss = torch.zeros(())

    def step(self):
        images, labels = self.data.batch(self.options.batch)
        dtype = PRECISIONS[self.options.precision]
        with torch.autocast(self.device.type, dtype, enabled=dtype != torch.float32):
            self.loss = F.cross_entropy(self.module(images), labels)
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(self.loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def run(self, steps):
        """Pictures per second of so many steps; the learning rate falls to 0."""
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, steps)
        synchronize(self.device)
        begin = time.perf_counter()
        for _ in range(steps):
            self.step()
            falling.step()
        synchronize(self.device)
        return steps * self.options.batch / (time.perf_counter() - begin)


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def fresh(options, rank, ranks, device):
    """The network with the same first weights in every rank and at every call, and the pictures of this rank."""
    torch.manual_seed(1)
    network, data = NETWORKS[options.network]
    return network().to(device, memory_format=torch.channels_last), data(rank, ranks, device)


def first_step(options, rank, ranks, device):
    """The seconds of a step in this rank alone, in which its convolutions are planned, and measured if that is allowed."""
    module, data = fresh(options, rank, ranks, device)
    trainer = Trainer(module, data, options, device)
    begin = time.perf_counter()
    trainer.step()
    synchronize(device)
    return time.perf_counter() - begin


def set_up(options, rank, ranks, device):
    """Plans for everything that the network computes: the seconds of the first step."""
    if options.together:
        return first_step(options, rank, ranks, device), ()
    seconds, unknown = 0.0, ()
    if rank == 0:
        seconds = first_step(options, rank, ranks, device)
    dist.barrier()
    if rank != 0:
        with cudnnpy.freeze() as frozen:
            seconds, unknown = first_step(options, rank, ranks, device), frozen.unknown
    return seconds, unknown


def warmed_up(options, rank, ranks, device):
    """A trainer of all ranks after a few steps, and its network."""
    module, data = fresh(options, rank, ranks, device)
    devices = [device.index] if device.type == "cuda" else None
    wrapped = DistributedDataParallel(module, device_ids=devices, gradient_as_bucket_view=True, **OWN_STATISTICS)
    trainer = Trainer(wrapped, data, options, device)
    for _ in range(WARM_UP):
        trainer.step()
    return trainer, module


def train(options, rank, ranks, device):
    """Train, and return the Report of this rank and the network."""
    seconds, unknown = set_up(options, rank, ranks, device)
    alone = 0.0
    if ranks > 1:
        trainer, _ = warmed_up(options, rank, ranks, device)
        if rank == 0:
            with trainer.module.no_sync():  # the gradients stay in this rank
                alone = trainer.run(options.steps)
        dist.barrier()
    trainer, module = warmed_up(options, rank, ranks, device)
    dist.barrier()
    rate = trainer.run(options.steps)
    loss = float(trainer.loss.detach())
    return Report(seconds, unknown, alone, rate, loss, kernels_of(trainer, device)), module


def kernels_of(trainer, device):
    """A digest of the kernels that a step runs on the GPU: their names and how often each is run."""
    if device.type != "cuda":
        return ""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        trainer.step()
        synchronize(device)
    counts = sorted((one.key, one.count) for one in profiled.key_averages() if "nccl" not in one.key.lower())
    kernels = [one for one in counts if not one[0].startswith(("cuda", "cu", "Mem", "Activity Buffer"))]
    return f"{len(kernels)} kernels {hashlib.sha256(repr(kernels).encode()).hexdigest()[:16]}"


def accuracy(module, data, options, device):
    """The part of the pictures that nobody was trained on whose digit is found."""
    images, labels = data.test
    dtype = PRECISIONS[options.precision]
    with torch.no_grad(), torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        return float((module(images).argmax(1) == labels).float().mean())


# The ranks


def run(rank, local_rank, ranks, options):
    """One rank, whose process group exists; rank 0 prints. Returns the exit status."""
    device = torch.device("cpu" if options.device == "cpu" else f"cuda:{local_rank}")
    allow = options.precision != "fp32"
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = allow
    enabled = nullcontext()
    if device.type == "cuda":
        enabled = cudnnpy.torch.enable(prefer="autotune", tune_seconds=options.tune_seconds)
    with enabled:
        report, module = train(options, rank, ranks, device)
        data = NETWORKS[options.network][1](rank, ranks, device) if options.network == "digits" else None
        reached = None if data is None else accuracy(module, data, options, device)
    reports = [None] * ranks
    dist.all_gather_object(reports, report)
    reports = [Report(*one) for one in reports]
    alike = len({one.kernels for one in reports}) == 1
    if rank == 0:
        tell(options, reports, alike, reached, device)
        sys.stdout.flush()  # whatever happens to this process from now on
    known = not any(one.unknown for one in reports)
    return 0 if alike and known and (reached is None or reached >= WANTED_ACCURACY) else 1


def tell(options, reports, alike, reached, device):
    ranks, total = len(reports), sum(one.rate for one in reports)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU, by torch itself"
    print(
        f"{options.network}, {options.precision}, batch {options.batch} a rank, {options.steps} steps, {ranks} x {name}"
    )
    print(f"pictures per second: {total:.0f}; of each rank: {', '.join(f'{one.rate:.0f}' for one in reports)}")
    if reports[0].alone:
        scaling = total / (ranks * reports[0].alone)
        print(f"rank 0 alone: {reports[0].alone:.0f} pictures per second; scaling {scaling:.3f}")
    how = "all ranks at once" if options.together else "rank 0 measures, the others measure nothing"
    print(f"seconds of the first step ({how}): {', '.join(f'{one.first_step:.2f}' for one in reports)}")
    for one in reports:
        for text in one.unknown:
            print(f"not in the store: {text}")
    if device.type == "cuda":
        print(
            f"the ranks run the same kernels: {'yes' if alike else 'NO'} ({', '.join(one.kernels for one in reports)})"
        )
        counted = cudnnpy.torch.stats()
        print(f"convolutions of rank 0 on cudnnpy: {counted.handled}; left to torch: {counted.fallbacks}")
    print(f"loss of rank 0: {reports[0].loss:.4f}")
    if reached is not None:
        print(f"accuracy on 360 pictures not trained on: {reached:.2%}")


def spawned(rank, ranks, options, file):
    """A process that this program starts for a rank."""
    join(rank, rank, ranks, options, f"file://{file}")
    leave(run(rank, rank, ranks, options))


def join(rank, local_rank, ranks, options, method):
    """Become a rank of the process group."""
    if options.store is not None:
        cudnnpy.store.use(options.store)
    given = {"init_method": method, "rank": rank, "world_size": ranks}
    given["timeout"] = timedelta(seconds=min(600 + PROBLEMS * options.tune_seconds, 86_400))
    if options.device == "cpu":
        torch.set_num_threads(1)
        dist.init_process_group("gloo", **given)
    else:
        torch.cuda.set_device(local_rank)
        dist.init_process_group("nccl", device_id=torch.device("cuda", local_rank), **given)


def leave(status):
    """Leave the process group with the other ranks, and end the process.

    The interpreter is not torn down: threads of PyTorch may still need it, and would abort the process.
    """
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


# The command


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more; got {value}")
    return value


def arguments(given=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=tuple(NETWORKS), default="digits")
    parser.add_argument("--gpus", type=positive, help="ranks to start; not under torchrun (default: all GPUs)")
    parser.add_argument("--batch", type=positive, default=128, help="pictures of each rank in a step (128)")
    parser.add_argument("--steps", type=positive, help=f"that are timed (default: {STEPS})")
    parser.add_argument("--precision", choices=tuple(PRECISIONS), default="bf16")
    parser.add_argument("--rate", type=float, default=0.1, help="the learning rate at the beginning (0.1)")
    parser.add_argument("--tune-seconds", type=float, default=2.0, help="the most that a problem is measured for (2)")
    parser.add_argument("--together", action="store_true", help="all ranks measure at the same time")
    parser.add_argument("--store", help="the file of the choices (default: the user's store)")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: by torch itself, to try the program"
    )
    options = parser.parse_args(given)
    options.steps = options.steps or STEPS[options.network]
    try:
        cudnnpy.Convolution(prefer="autotune", tune_seconds=options.tune_seconds)
        cudnnpy.store.open(options.store)
    except (TypeError, ValueError, OSError) as error:
        parser.error(str(error))
    if options.device == "cuda" and (why := cudnnpy.why_unavailable()):
        parser.exit(2, f"{parser.prog}: a GPU is needed: {' '.join(why.split())}; --device cpu tries the program\n")
    there = torch.cuda.device_count() if options.device == "cuda" else options.gpus or 1
    if "RANK" in os.environ and options.gpus is not None:
        parser.error(f"--gpus must be left to torchrun; got {options.gpus}")
    if options.gpus is not None and options.gpus > there:
        parser.error(f"--gpus must be {there} or less here; got {options.gpus}")
    options.gpus = options.gpus or there
    return options


def main(given=None):
    options = arguments(given)
    if "RANK" in os.environ:  # torchrun
        rank, local_rank, ranks = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
        join(rank, local_rank, ranks, options, "env://")
        leave(run(rank, local_rank, ranks, options))
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "ranks")
        context = torch.multiprocessing.get_context("spawn")
        processes = [
            context.Process(target=spawned, args=(rank, options.gpus, options, file)) for rank in range(options.gpus)
        ]
        return supervised(processes)


def supervised(processes):
    """Run processes to their end, which is that of all if one fails. Returns the exit status."""
    for process in processes:
        process.start()
    try:
        # A process may end at any moment, and wait() of an empty list never returns: so there is one list.
        while alive := [process for process in processes if process.is_alive()]:
            wait([process.sentinel for process in alive])
            if any(process.exitcode for process in processes):
                time.sleep(5)  # for the others to end with their own errors, or results
                break
        for rank, process in enumerate(processes):
            if (number := -(process.exitcode or 0)) > 0:
                print(f"rank {rank} was ended by signal {number}: {signal.strsignal(number)}", file=sys.stderr)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()
    return int(any(process.exitcode for process in processes))


if __name__ == "__main__":
    sys.exit(main())
