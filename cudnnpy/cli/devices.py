"""The GPUs of this machine, which commands name by ordinal."""

from __future__ import annotations

from cudnnpy.availability import UnavailableError, visible_gpus, why_unavailable


def check_ordinal(device: int, advice: str = "") -> None:
    """Raise UnavailableError unless cuDNN can be used and there is a GPU of this ordinal. `advice` ends the message."""
    if why := why_unavailable():
        raise UnavailableError(why + advice)
    count = len(visible_gpus())
    if not 0 <= device < count:
        there = "0, the only GPU here" if count == 1 else f"an ordinal from 0 to {count - 1}"
        raise UnavailableError(f"--device must be {there}; got {device}{advice}")
