"""Tune one problem, as a worker of `cudnnpy tune` does: the choice goes into the store of the process."""

from __future__ import annotations

import json
from typing import Any

from cudnnpy import store
from cudnnpy._cuda_python import cuda_python
from cudnnpy._measuring.local_measurer import LocalMeasurer
from cudnnpy._memory import workspace
from cudnnpy._planning.engines import Target
from cudnnpy._planning.notation import parse
from cudnnpy._planning.options import PlanningOptions, with_limit
from cudnnpy._planning.problem import Problem
from cudnnpy._planning.remembered import key_of
from cudnnpy._planning.selection import limit_of, plan_for
from cudnnpy._store import layers
from cudnnpy._store.entry import Entry, Key
from cudnnpy.availability import visible_gpus
from cudnnpy.convolution import plans
from cudnnpy.handle import Handle, on_device

KINDS = plans.ConvolutionProblem, plans.GraphProblem  # imported, so that texts of both kinds can be read


def tune_one(text: str, device: int, tune_seconds: float) -> Entry:
    """Tune a problem on random inputs and return the entry that stands in the store.

    A choice that is in the store already is not measured again.

    Parameters
    ----------
    text : str
        The problem and its options in the notation. Of its `prefer` the limit of the workspace is used that it means; its
        `tune_seconds` are not used.
    device : int
        The ordinal of the device.
    tune_seconds : float
        The most seconds that tuning takes.

    Returns
    -------
    Entry
        The choice, and all candidates that were considered.

    Raises
    ------
    ValueError
        The text is not a problem.
    NoAlgorithmError
        No candidate can be used.
    RuntimeError
        The choice could not be kept.
    """
    problem, options = parse(text, device)
    options = options_to_tune(options, tune_seconds)
    with on_device(device):
        target = Target(Handle.default(device))
        key, kept = key_of(problem, options, target), layers.current()
        tuner = LocalMeasurer(Handle.default(device))
        before = kept.get(key)
        if before is not None and before.entry.milliseconds is None:  # planned without a GPU: not measured by itself
            measurement = tuner.measure(problem, options, limit_of(options, workspace.free_bytes(device)), {})
            if measurement.entry is not None and not measurement.lacked_memory:
                kept.put(measurement.entry)
        else:
            plan_for(problem, options, tuner)
        found = kept.get(key)
    if found is None:
        raise RuntimeError(
            f"the choice for {text} was not kept: the store cannot be written, or there was no memory to measure in"
        )
    return found.entry


def options_to_tune(options: PlanningOptions, tune_seconds: float) -> PlanningOptions:
    """Return the options that a problem is tuned with."""
    return with_limit(options)._replace(prefer="autotune", tune_seconds=tune_seconds)


def make_ready(path: str, device: int) -> None:
    """Prepare a process to tune problems on a device, for the store at a path. Raises if the device cannot be used."""
    store.use(path)
    with on_device(device):
        Handle.default(device)


# What a process knows of GPUs that it does not use


def kinds_of_gpus() -> list[str]:
    """Return the kind of each visible GPU, by ordinal: a text, equal for GPUs of which one's choices serve the other.

    No CUDA context is made. Raises UnavailableError if there is no GPU.
    """
    return [_kind(number) for number in range(len(visible_gpus()))]


def _kind(device: int) -> str:
    found: Any = cuda_python("core").Device(device)
    major, minor = found.compute_capability
    properties = {
        "deviceName": str(found.name),
        "deviceVer": 100 * major + 10 * minor,
        "multiProcessorCount": int(found.properties.multiprocessor_count),
    }
    return json.dumps(properties)


def key_for(problem: Problem, options: PlanningOptions, kind: str) -> Key:
    """Return the key of a problem on a kind of GPU."""
    return key_of(problem, options, Target(None, kind))
