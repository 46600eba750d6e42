"""Changes of the cluster as JSON lines: in a separate file, or among the node's log lines.

Every node writes the same lines as it applies the commands; ``index`` distinguishes them. A node that starts applies
its latest commands again, so the log has those lines twice; a file continues after its last line. A node writes no
lines for changes that it received in a snapshot; the audit topic has them.
"""

import logging
import os
from pathlib import Path

import orjson

from milena.model.errors import StartupError
from node.metadata.audit_records import as_json
from raft_meta.machine.image import AuditEntry

_log = logging.getLogger("milena.audit")

_TAIL_BYTES = 1 << 20
"""Bytes read to find the last line; no line is longer."""


class AuditLines:
    """The writer of one file, or of the log. Called on the quorum's thread, in the order of the commands."""

    def __init__(self, path: Path | None) -> None:
        """Open the file.

        Raises:
            StartupError: the file cannot be written.
        """
        self._descriptor = -1
        self._index = 0
        if path is not None:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            try:
                self._descriptor = os.open(path, flags, 0o600)
                self._index = self._last_index()
            except OSError as error:
                raise StartupError(f"audit_file {path}: {error.strerror}") from error

    def write(self, entry: AuditEntry) -> None:
        """Write an applied change. A file that cannot be written is logged; it does not stop the node."""
        if self._descriptor < 0:
            _log.info(
                "changed number=%d index=%d principal=%s node_id=%d action=%s change=%s",
                entry.number,
                entry.index,
                entry.principal,
                entry.node_id,
                entry.action,
                entry.change,
            )
        elif entry.index > self._index:
            try:
                os.write(self._descriptor, as_json(entry) + b"\n")
            except OSError as error:
                _log.error("cannot write audit_file index=%d: %s", entry.index, error)
            else:
                self._index = entry.index

    def _last_index(self) -> int:
        """Return the index of the last whole line. A line that a crash has torn is ended and left in the file."""
        size = os.fstat(self._descriptor).st_size
        tail = os.pread(self._descriptor, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        *lines, torn = tail.split(b"\n")
        if torn:
            os.write(self._descriptor, b"\n")
        for line in reversed(lines):
            try:
                index = orjson.loads(line)["index"]
            except (orjson.JSONDecodeError, TypeError, KeyError):
                continue
            if isinstance(index, int):
                return index
        return 0
