"""Error messages for names that cuDNN's headers do not have, with the replacement of a removed name or a similar name."""

from __future__ import annotations

import re
from difflib import get_close_matches

from cudnnpy._checks.other_names import advice
from cudnnpy.raw import _api

# Macros of C programs, without underscores.
_MACROS = ["checkcudnn", "cudnncall", "cudnncheck", "cudnnsafecall", "cudnncheckerror"]
_LONGER_OR_SHORTER = 4  # names that differ more in length are not compared, which would take 50 ms


def missing(name: str) -> str:
    """Return the message for a name that does not exist: the replacement of a removed name, or a similar name."""
    removed = advice("raw")
    if name in removed:
        return f"cuDNN 9 has no {name}: {removed[name]}"
    text = f"cuDNN {_api.HEADER_VERSION} has no {name!r}"
    if name.startswith(("cuda", "CUDA")):
        return f"{text}. It is a name of CUDA: type from cuda.bindings import runtime, and runtime.{name}"
    if name.lower().replace("_", "") in _MACROS:
        return f"{text}. The macro that checks a status is raw.check: type raw.check(raw.cudnnXxx(...))"
    meant = None if name.startswith("_") else _nearest(name)
    if meant is None:
        return text if name.startswith("_") else f"{text}. docs/coverage.md and dir(cudnnpy.raw) list its names"
    return f"{text}. Did you mean {meant!r}?" + (f" ({missing(meant)})" if meant in removed else "")


def _nearest(name: str) -> str | None:
    known = {*(n for n in vars(_api) if n.lower().startswith("cudnn")), *_api.FUNCTIONS, *advice("raw")}
    by_letters = {_letters(known_name): known_name for known_name in known}
    exact = by_letters.get(_letters(name)) or by_letters.get(_letters(re.sub(r"_v\d+$", "", name)))  # also of a version
    similar = sorted(n for n in known if abs(len(n) - len(name)) <= _LONGER_OR_SHORTER)
    return exact or next(iter(get_close_matches(name, similar, 1, 0.8)), None)


def _letters(name: str) -> str:
    """Return a name without case, underscores and prefix, which cupy.cuda.cudnn, for instance, leaves out."""
    return name.lower().replace("_", "").removeprefix("cudnn")
