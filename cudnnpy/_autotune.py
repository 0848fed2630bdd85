"""The measurer of prefer="autotune". It is imported when it is first needed: a copy of the package may lack it."""

from __future__ import annotations

from cudnnpy._planning.candidate_filter import Measurer
from cudnnpy._planning.options import PlanningOptions


def measurer_for(options: PlanningOptions, device: int, stream: int = 0) -> Measurer | None:
    """Return the measurer for calls on a device and a stream; None for the preferences that measure nothing.

    Raises ImportError in a copy of the package without measuring.
    """
    if options.prefer != "autotune":
        return None
    try:
        from cudnnpy._measuring.tuner import Tuner
    except ModuleNotFoundError as error:
        if error.name not in ("cudnnpy._measuring", "cudnnpy._store"):
            raise
        raise ImportError(
            f"prefer='autotune' needs the package {error.name}, which this copy lacks. Install the whole package, or use "
            "prefer='fastest', 'limited_workspace' or 'no_workspace', which measure nothing"
        ) from None
    return Tuner(device, stream)
