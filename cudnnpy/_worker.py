"""The program of the child processes that measure and plan: a request is a line of JSON on standard input.

Answers, and what comes before them, are lines of JSON on standard output (_measuring/service.py).
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import cudnnpy.convolution.plans  # noqa: F401 - the kinds of problems register what reads them
from cudnnpy._measuring import parent_process
from cudnnpy._measuring.service import Service


def main() -> None:
    """Answer requests until standard input ends."""
    parent_process.end_with(0)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries may print

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    service = Service(say)
    for line in sys.stdin:
        say(service.answer(json.loads(line)))


if __name__ == "__main__":
    main()
