"""Run functions side by side in threads that Ctrl-C ends, and raise the first error of any of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable


def run_side_by_side(functions: Iterable[Callable[[], object]]) -> None:
    """Run each function in a daemon thread, and wait for all. The first error of a thread is raised at the end."""
    errors = list[BaseException]()

    def run(function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(function,), daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
