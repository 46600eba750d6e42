"""The plan of one append: which batches go into which segment.

An append is all or nothing. All bytes, including those for new segments, are written before the log's state changes in
memory. If the disk is full, the bytes that were written are cut off again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from milena.disk.files import Buffer
from milena.model.batch.header import BatchHeader
from milena.model.errors import DiskFullError
from storage.segments.log_config import LogConfig
from storage.segments.segment import Segment


@dataclass(slots=True)
class AppendRun:
    """Batches that go into one segment in one write.

    Attributes:
        segment: the segment.
        is_new: whether the segment must be created first.
        total_bytes: length of all chunks together.
        chunks: the bytes to write; several chunks may form one batch.
        headers: one per batch, with the leader's stamp (offset, leader epoch, append time).
    """

    segment: Segment
    is_new: bool = False
    total_bytes: int = 0
    chunks: list[Buffer] = field(default_factory=list)
    headers: list[BatchHeader] = field(default_factory=list)


class AppendPlan:
    """The runs of one append, first into the active segment, then into new ones."""

    __slots__ = ("_active", "_config", "_runs")

    def __init__(self, active: Segment, config: LogConfig) -> None:
        self._active = active
        self._config = config
        self._runs = [AppendRun(active)]

    @property
    def runs(self) -> Sequence[AppendRun]:
        """All runs, in order."""
        return self._runs

    def add(self, header: BatchHeader, *chunks: Buffer) -> None:
        """Add the next batch; start a new segment if the last one has no room for it."""
        run = self._runs[-1]
        size = run.segment.size_bytes + run.total_bytes
        if size and size + header.batch_bytes > self._config.segment_bytes:
            segment = self._active.successor(
                header.base_offset, index_interval_bytes=self._config.index_interval_bytes
            )
            run = AppendRun(segment, is_new=True)
            self._runs.append(run)
        run.chunks += chunks
        run.total_bytes += header.batch_bytes
        run.headers.append(header)

    def write(self) -> None:
        """Write all runs.

        Raises:
            DiskFullError: nothing was appended; what was written is cut off durably.
            DiskFailedError: stop the process.
        """
        for number, run in enumerate(self._runs):
            try:
                self._write_run(run)
            except DiskFullError:
                self._take_back(self._runs[: number + 1])
                raise

    def _write_run(self, run: AppendRun) -> None:
        if run.is_new:
            run.segment.create_file()
        if run.total_bytes:
            step_end = run.segment.size_bytes + self._config.preallocate_bytes
            run.segment.write(
                run.chunks,
                run.total_bytes,
                allocation_end=min(step_end, self._config.segment_bytes),
            )

    def _take_back(self, written: Sequence[AppendRun]) -> None:
        for run in reversed(written):
            if run.is_new:
                run.segment.remove()
            else:
                run.segment.cut_leftovers()
