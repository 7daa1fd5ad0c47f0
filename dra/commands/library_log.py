"""What libraries log, and warn of, goes where our own log goes, in its form: gRPC tells there of errors in answering
calls, the Kubernetes client's libraries of servers whose certificate is not looked at."""

from __future__ import annotations

import logging

from loguru import logger


class LibraryLog(logging.Handler):
    """Passes warnings and errors of Python's own logging on."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        level = "ERROR" if record.levelno >= logging.ERROR else "WARNING"
        logger.opt(exception=record.exc_info).log(level, "{}: {}", record.name, " ".join(record.getMessage().split()))


def follow_libraries() -> None:
    """From now on, when our own log is set up."""
    root = logging.getLogger()
    if not any(isinstance(handler, LibraryLog) for handler in root.handlers):
        root.addHandler(LibraryLog())
    logging.captureWarnings(True)
