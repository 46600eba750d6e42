"""Writes audited changes as JSON lines: to a separate file, or to the node's log.

Every node writes the same lines as it applies the commands; ``index`` distinguishes them. A node that starts applies
its latest commands again. A file continues after its last line. For the log, the node keeps the index of the last line
in a small file, which is not synced: only a power cut can make the log have lines twice. A node writes no lines for
changes that it received in a snapshot; the audit topic has them.
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
_POSITION_DIGITS = 20
"""The length of the file with the position: the index of the last logged change, with leading zeros."""


class AuditLines:
    """Writes to one file, or to the log. Called on the quorum's thread, in the order of the commands."""

    def __init__(self, path: Path | None, position: Path | None = None) -> None:
        """Open the file. Without one, ``position`` is the file that remembers the last line of the log.

        Raises:
            StartupError: the file cannot be written.
        """
        self._descriptor = -1
        self._position = -1
        self._index = 0
        if path is None and position is not None:
            try:
                position.parent.mkdir(exist_ok=True)
                self._position = os.open(position, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                self._index = _index_of(os.pread(self._position, _POSITION_DIGITS + 1, 0))
                if self._index == 0:
                    os.ftruncate(self._position, 0)
            except OSError as error:
                raise StartupError(f"{position}: {error.strerror}") from error
        if path is not None:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            try:
                self._descriptor = os.open(path, flags, 0o600)
                self._index = self._last_index()
            except OSError as error:
                raise StartupError(f"audit_file {path}: {error.strerror}") from error

    def write(self, entry: AuditEntry) -> None:
        """Write an applied change. A file that cannot be written is logged; it does not stop the node."""
        if entry.index <= self._index:
            return
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
            self._remember(entry.index)
        else:
            try:
                os.write(self._descriptor, as_json(entry) + b"\n")
            except OSError as error:
                _log.error("cannot write audit_file index=%d: %s", entry.index, error)
            else:
                self._index = entry.index

    def _remember(self, index: int) -> None:
        if self._position < 0:
            return
        self._index = index
        try:
            os.pwrite(self._position, b"%0*d" % (_POSITION_DIGITS, index), 0)
        except OSError as error:
            # The line is in the log. It is there twice after the next start.
            _log.error("cannot remember the last audited change index=%d: %s", index, error)

    def _last_index(self) -> int:
        """Return the index of the last whole line. If a crash has left a part of a line, end it with a newline."""
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


def _index_of(content: bytes) -> int:
    """Return the remembered index; 0 for a new file, and for one that a crash has spoilt."""
    return int(content) if len(content) == _POSITION_DIGITS and content.isdigit() else 0
