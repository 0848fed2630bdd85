"""The errors for names and keywords of cudnn-frontend's pygraph and tensors that Graph and Node lack: what to type instead."""

from __future__ import annotations

from cudnnpy._checks.other_names import advice
from cudnnpy._checks.public_dir import no_attribute
from cudnnpy._checks.suggestions import near, our_option


def suggest_keyword(_graph: object, unknown: str, known: tuple[str, ...]) -> str:
    """Return the end of the error for an unknown keyword, such as cudnn-frontend's."""
    arguments = advice("graph arguments").get(unknown, "").split()
    ours = [name for name in (*arguments, our_option(unknown)) if name in known]
    if not ours and unknown in advice("graph keywords"):
        return f". {advice('graph keywords')[unknown]}"
    return "".join(f". Did you mean {name}=?" for name in (ours or near(unknown, known))[:1])


def missing(owner: object, name: str) -> str:
    """Return the message for an attribute that an object lacks, with what to type in place of cudnn-frontend's."""
    known = advice("graph").get(name)
    return f"{type(owner).__name__!r} object has no attribute {name!r}: {known}" if known else no_attribute(owner, name)
