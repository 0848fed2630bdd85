"""A logging handler that collects its records."""

from __future__ import annotations

import logging


class LogRecords(logging.Handler):
    """A handler with the records that it was passed."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
