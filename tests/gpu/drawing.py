"""How many problems the GPU's property tests draw, from which seed, and how their failures are collected.

CUDNNPY_PROPERTY_EXAMPLES is how many are drawn (300 by default; a release is tested with 2,000 or more), and
CUDNNPY_PROPERTY_SEED repeats a run. Both are printed when drawing starts, so that a run that is stopped can be repeated too.
Failures are collected, so that one run tells them all, the smallest problem first.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, given, seed, settings

EXAMPLES = int(os.environ.get("CUDNNPY_PROPERTY_EXAMPLES", "300"))
SEED = int(os.environ.get("CUDNNPY_PROPERTY_SEED") or random.SystemRandom().randrange(2**32))
ENOUGH = 10  # failures after which a run stops


def print_outcomes(request: pytest.FixtureRequest, outcomes: Any) -> Any:
    """Has pytest print a module's outcomes (its pytest_terminal_summary) at the end, and the seed now; the outcomes."""
    plugins = request.config.pluginmanager
    plugins.register(outcomes)
    reporter, capture = plugins.get_plugin("terminalreporter"), plugins.get_plugin("capturemanager")
    with capture.global_and_fixture_disabled():
        reporter.ensure_newline()
        reporter.write_line(f"{request.node.name}: CUDNNPY_PROPERTY_SEED={SEED} CUDNNPY_PROPERTY_EXAMPLES={EXAMPLES}")
    return outcomes


def check_each(examples: int, drawn: Any, check: Callable[[Any], None], size: Callable[[Any], int]) -> None:
    """Runs a check on drawn problems; AssertionError with every failure, the smallest problem's first."""
    failures: list[tuple[int, str]] = []
    seen: set[str] = set()

    @seed(SEED)
    @settings(
        max_examples=examples,
        database=None,
        phases=[Phase.generate],
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(drawn)
    def each(problem: Any) -> None:
        if len(failures) >= ENOUGH:
            return
        assume(str(problem) not in seen)  # other choices can mean the same problem
        seen.add(str(problem))
        try:
            check(problem)
        except Exception as error:
            text = str(error).split("\nassert ")[0]  # without what pytest adds
            failures.append((size(problem), f"{problem}\n    {type(error).__name__}: {text}"))
            if "CUDA error" in str(error) or "illegal" in str(error):  # nothing works in this process from here on
                raise AssertionError(failures[-1][1]) from error

    each()
    if failures:
        texts = [text for _, text in sorted(failures)]
        raise AssertionError(f"{len(texts)} problems failed:\n" + "\n".join(texts))
