"""The program of the child process that measures and plans (cudnnpy.tuning.measuring.child_process).

A request is a line of JSON on standard input, and its answer a line on standard output, after lines that report on its way.
"""

from __future__ import annotations

import json
import os
import select
import sys
import warnings
from typing import Any

from cudnnpy.tuning.measuring.end_with_parent import end_with_parent
from cudnnpy.tuning.measuring.service import Service
from cudnnpy.tuning.measuring.watch import ContextLost

_IDLE_SECONDS = 60.0  # until a process without a request ends, and gives the memory of its CUDA context back


def main() -> None:
    """Answer the requests on standard input until it ends, or until none has come for a while."""
    end_with_parent(0)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # cuDNN may print

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    warnings.simplefilter("always")  # the caller's filters decide
    warnings.simplefilter("ignore", ResourceWarning)  # of files that an error leaves open
    warnings.showwarning = lambda message, *_where, **_how: say({"warning": str(message)})
    service, requests = Service(say), os.fdopen(0, "rb")
    while select.select([requests], [], [], _IDLE_SECONDS)[0] and (line := requests.readline()):
        try:
            say(service.answer(json.loads(line)))
        except ContextLost as error:
            print(error, file=sys.stderr, flush=True)
            os._exit(1)  # what Python or CUDA does at exit may hang now
    os._exit(0)


if __name__ == "__main__":
    main()
