"""Count and log unexpected errors, after which the node continues.

Each entry point of a node catches every error that a request causes, responds with a typed error, and reports the
error here. `docs/architecture.md` lists the errors that may end a node, under "What ends a node".
"""

import logging
from enum import StrEnum, unique

from milena.model.errors import InternalError

_log = logging.getLogger("milena.contained")

KINDS_MAX = 256
"""Limit of the kinds of errors that are remembered. Errors of further kinds are logged without a traceback."""


@unique
class EntryPoint(StrEnum):
    """The place where an unexpected error was caught."""

    API = "api"
    """A request on the API port."""
    PEER = "peer"
    """A request of another node on the peer port."""
    KAFKA = "kafka"
    """A request on the Kafka port."""
    REPLICATION = "replication"
    """A leader's response to this node's fetch."""
    CALLBACK = "callback"
    """A callback of the event loop or of a ``Pending``."""
    TASK = "task"
    """A background task; it is started again after a pause."""


class ContainedErrors:
    """The unexpected errors of one node. Used only on the event loop that serves the node's data."""

    def __init__(self) -> None:
        self.counts: dict[EntryPoint, int] = dict.fromkeys(EntryPoint, 0)
        self._kinds: set[tuple[EntryPoint, type[BaseException], str]] = set()

    @property
    def total(self) -> int:
        """Errors of all entry points."""
        return sum(self.counts.values())

    def report(
        self, entry: EntryPoint, error: BaseException, field: str, value: str
    ) -> InternalError:
        """Count an error and log it; return an ``InternalError`` for the caller that does not show the details.

        The first error of a kind is logged with its traceback, later ones in one line.

        Errors are of one kind if they have the same type, come from the same line, and were caught at the same entry
        point. ``field=value`` in the log names the work in progress, for example ``request_id=…``.
        """
        self.counts[entry] += 1
        place = _place(error)
        kind = (entry, type(error), place)
        is_new = kind not in self._kinds and len(self._kinds) < KINDS_MAX
        if is_new:
            self._kinds.add(kind)
            _log.error(f"unexpected error {field}=%s entry=%s", value, entry, exc_info=error)
        else:
            _log.warning(
                f"unexpected error again {field}=%s entry=%s type=%s place=%s",
                value,
                entry,
                type(error).__name__,
                place,
            )
        return InternalError(f"Internal Server Error; the log has it under {field}={value}")


def _place(error: BaseException) -> str:
    """Return the file and line that raised the error."""
    traceback = error.__traceback__
    if traceback is None:
        return "unknown"
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"
