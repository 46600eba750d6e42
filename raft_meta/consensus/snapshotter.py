"""Keeps the log short: writes a snapshot in the background, then drops the entries that the snapshot contains.

The size of the log in bytes decides when. The number of entries does not: otherwise many small commands would cause
a rewrite of a large state every few seconds. If an attempt fails on a full disk, it changes nothing and is repeated
later.
"""

import logging
from collections.abc import Callable
from typing import Final, Protocol

from milena.model.errors import DiskFullError
from raft_meta.consensus.parts import CoreParts
from raft_meta.consensus.snapshot import SnapshotMeta, write_snapshot

_log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 10.0
_PATIENCE: Final = 4
"""If the log is more than this many times its limit, a snapshot is written even during a transfer to a follower."""


class Background(Protocol):
    """A function that runs ``job`` elsewhere, then ``done`` on the core's thread with the job's exception, or None."""

    def __call__(
        self, job: Callable[[], None], done: Callable[[BaseException | None], None]
    ) -> None:
        """Start the job."""


class Snapshotter:
    """Decides when to compact, and does it. Owned by the core."""

    def __init__(self, parts: CoreParts, background: Background) -> None:
        self._library = parts.library
        self._wal = parts.wal
        self._snapshots = parts.snapshots
        self._machine = parts.machine
        self._background = background
        self._clock = parts.clock
        self._log_bytes_max = parts.config.log_bytes_max
        self._is_running = False
        self._not_before = 0.0
        self._is_forced = False

    def force(self) -> None:
        """Compact at the next tick, however short the log is."""
        self._is_forced = True

    def maybe_compact(self, *, is_sending_snapshot: bool) -> None:
        """Start a snapshot if the log is long enough."""
        if self._is_running or not self._is_due(is_sending_snapshot):
            return
        self._is_forced = False
        meta = self._meta()
        if meta is None:
            return
        pack = self._machine.snapshot()
        store = self._snapshots

        def job() -> None:
            write_snapshot(store.files, store.local_path, meta, pack())

        self._is_running = True
        self._background(job, lambda error: self._on_done(meta, error))

    def _is_due(self, is_sending_snapshot: bool) -> bool:
        bound = max(self._log_bytes_max, self._snapshots.size_bytes)
        size = self._wal.size_bytes
        if not self._is_forced and (size <= bound or self._clock() < self._not_before):
            return False
        return not is_sending_snapshot or size > _PATIENCE * bound

    def _meta(self) -> SnapshotMeta | None:
        log = self._wal.entries
        position = self._library.applied_index - log[0][1]
        if position < 1 or position >= len(log):
            return None
        meta = SnapshotMeta(last=log[position], previous=log[position - 1])
        current = self._snapshots.meta
        return None if current is not None and current.index >= meta.index else meta

    def _on_done(self, meta: SnapshotMeta, error: BaseException | None) -> None:
        self._is_running = False
        if isinstance(error, DiskFullError):
            self._not_before = self._clock() + _RETRY_SECONDS
            _log.warning("snapshot refused by a full disk index=%d", meta.index)
            return
        if error is not None:
            raise error
        current = self._snapshots.meta
        if current is not None and current.index >= meta.index:
            self._snapshots.files.remove(self._snapshots.local_path)
            return
        self._snapshots.adopt(self._snapshots.local_path)
        self._wal.drop_before(meta.previous[1])
        if self._wal.size_bytes > self._log_bytes_max:
            self._not_before = self._clock() + _RETRY_SECONDS
        _log.info(
            "snapshot written index=%d bytes=%d log_bytes=%d",
            meta.index,
            self._snapshots.size_bytes,
            self._wal.size_bytes,
        )
