"""Writes audited changes as JSON lines: to a separate file, or to the node's log.

Every node writes the same lines when it applies the commands; ``index`` identifies a line. A node that starts applies
its latest commands again. So a file only gets lines after its last one. The log cannot be read back. Therefore, a mark
in the data directory holds the index of the last line that the log got.

A node writes no lines for changes that it received in a snapshot. The audit topic has these.
"""

import contextlib
import logging
import os
from pathlib import Path

import orjson

from milena.model.errors import StartupError
from node.metadata.audit_records import as_json
from raft_meta.machine.image import AuditEntry

_log = logging.getLogger("milena.audit")

_TAIL_BYTES = 1 << 20
"""Number of bytes that are read to find the last line. No line is longer."""

_MARK_BYTES = 21
"""Size of the mark: a decimal number that can hold 64 bits, and a newline. Each write replaces all of it."""


class AuditLines:
    """Writes to one file, or to the log. Called on the quorum's thread, in the order of the commands."""

    def __init__(self, path: Path | None, *, mark: Path | None = None) -> None:
        """Open the files.

        Args:
            path: the file that gets the lines; None: the node's log.
            mark: remembers the last line of the log across starts; None: a later start repeats lines. It is not used
                with ``path``.

        Raises:
            StartupError: a file cannot be written.
        """
        self._descriptor = -1
        self._mark = -1
        self._index = 0
        if path is not None:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            try:
                self._descriptor = os.open(path, flags, 0o600)
                self._index = self._last_index()
            except OSError as error:
                raise StartupError(f"audit_file {path}: {error.strerror}") from error
        elif mark is not None:
            try:
                self._mark = os.open(mark, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                self._index = _index_in(os.pread(self._mark, _MARK_BYTES, 0))
            except OSError as error:
                raise StartupError(f"{mark}: {error.strerror}") from error

    def write(self, entry: AuditEntry) -> None:
        """Write an applied change. If the file cannot be written, log this; the node goes on."""
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
            self._set_mark(entry.index)
        else:
            try:
                os.write(self._descriptor, as_json(entry) + b"\n")
            except OSError as error:
                _log.error("cannot write audit_file index=%d: %s", entry.index, error)
            else:
                self._index = entry.index

    def _set_mark(self, index: int) -> None:
        if self._mark < 0:
            return
        self._index = index
        # No sync: the page cache survives the process, and after a power cut a repeated line does no harm. For the same
        # reason, a full disk is no reason to stop.
        with contextlib.suppress(OSError):
            os.pwrite(self._mark, b"%0*d\n" % (_MARK_BYTES - 1, index), 0)

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


def _index_in(mark: bytes) -> int:
    """Return the index that a mark holds; 0 if it holds none."""
    return int(mark) if mark.strip().isdigit() else 0
