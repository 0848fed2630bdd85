"""Forbid measuring: prefer="autotune" takes stored choices, and the default choice of a problem without one."""

from __future__ import annotations

from cudnnpy._launch.plan_cache import clear_cache
from cudnnpy._process.module_state import declare
from cudnnpy.tuning.recording import ProblemLog, lock

# Whether the plan cache has default choices from a freeze that ended while others are open.
_has_default_choices = False

declare(__name__, "_has_default_choices")


class Freeze(ProblemLog):
    """A period in which nothing is measured, from `cudnnpy.freeze`. It ends with its ``with`` block, or by `end`."""

    @property
    def unknown(self) -> tuple[str, ...]:
        """The problems that were not in the store, each once, as texts in the order of their first calls."""
        return tuple(self._texts)

    def end(self) -> None:
        """Allow measuring again, unless another freeze is open. Further calls do nothing.

        If a problem was not in the store, the plan cache is cleared (`cudnnpy.clear_cache`) when the last freeze ends: the
        problem is measured at its next call.
        """
        global _has_default_choices
        with lock:
            if self not in self._open:
                return
            self._open.remove(self)
            _has_default_choices |= bool(self._texts)
            must_clear = _has_default_choices and not self._open
            if must_clear:
                _has_default_choices = False
        if must_clear:
            clear_cache()


def freeze() -> Freeze:
    """Forbid measuring in the whole process, so that all processes with one store choose alike.

    A problem with a stored choice gets its plan from the store. For any other, ``prefer="autotune"`` chooses as
    ``prefer="fastest"`` does within the same limits, and the problem is listed in `unknown` of the result.

    Returns
    -------
    Freeze
        A context manager, whose block ends the freeze. Without a ``with`` statement it lasts until its method `end` is called.

    Notes
    -----
    The freeze applies to all threads. Freezes may overlap: measuring is allowed again when all of them have ended, and each
    lists the problems that were unknown while it was open. Plans that were measured before stay in use. A stored choice that
    has not been confirmed on this machine is still run once and checked.

    Examples
    --------
    >>> import cudnnpy
    >>> with cudnnpy.freeze() as frozen:
    ...     pass  # a training step, which measures nothing
    >>> frozen.unknown
    ()
    """
    return Freeze()
