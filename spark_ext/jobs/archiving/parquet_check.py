"""Read the offsets and the checksum of a Parquet file of the archive, through ``milena.disk.files``.

The archive does not rely on what Spark says it wrote. The offsets are read from the file itself, before the file enters
the manifest and at ``--verify``. Only the columns that identify records are decoded, one row group at a time.
"""

import io
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from crc32c import crc32c

from milena.disk.files import File
from spark_ext.jobs.running.errors import DamagedArchiveError

CHUNK_BYTES = 4 << 20
COLUMNS = frozenset({"key", "value", "topic", "partition", "offset", "timestamp", "timestampType"})
"""The columns that each file must have; ``headers`` is there too, unless the source was read without them."""


def checksum(file: File) -> int:
    """Return the CRC-32C of the whole file."""
    value = 0
    for position in range(0, file.size(), CHUNK_BYTES):
        value = crc32c(file.pread(CHUNK_BYTES, position), value)
    return int(value)


def offset_runs(file: File, *, topic: str, partition: int) -> tuple[tuple[int, int], ...]:
    """Return the file's offsets as runs [start, end), ascending.

    Raises:
        DamagedArchiveError: the file is not Parquet, lacks a column, has offsets that do not ascend, or has
            records of another partition.
    """
    runs: list[tuple[int, int]] = []
    try:
        with pq.ParquetFile(io.BufferedReader(_Reader(file))) as parquet:
            missing = COLUMNS - set(parquet.schema_arrow.names)
            if missing:
                raise DamagedArchiveError(f"{file.path} has no column {', '.join(sorted(missing))}")
            for group in range(parquet.num_row_groups):
                columns = parquet.read_row_group(group, columns=["topic", "partition", "offset"])
                _require_all(file, columns, "topic", topic)
                _require_all(file, columns, "partition", partition)
                for run in _runs(columns.column("offset")):
                    _append(file, runs, run)
    except (pa.ArrowException, OSError) as error:
        raise DamagedArchiveError(f"{file.path} is not readable as Parquet: {error}") from error
    return tuple(runs)


def _require_all(file: File, columns: pa.Table, name: str, wanted: str | int) -> None:
    column = columns.column(name)
    if column.null_count or not pc.all(pc.equal(column, wanted)).as_py():
        raise DamagedArchiveError(f"{file.path} has records of another {name} than {wanted}")


def _runs(offsets: pa.ChunkedArray) -> Iterator[tuple[int, int]]:
    """Yield runs of consecutive offsets. A step back also starts a run, which ``_append`` refuses."""
    values = offsets.combine_chunks()
    if not len(values):
        return
    steps = pc.subtract(values.slice(1), values.slice(0, len(values) - 1))
    breaks = [int(i) + 1 for i in pc.indices_nonzero(pc.not_equal(steps, 1)).to_pylist()]
    for first, after in zip([0, *breaks], [*breaks, len(values)], strict=True):
        yield values[first].as_py(), values[after - 1].as_py() + 1


def _append(file: File, runs: list[tuple[int, int]], run: tuple[int, int]) -> None:
    if runs and run[0] < runs[-1][1]:
        raise DamagedArchiveError(f"{file.path}: offset {run[0]} comes after {runs[-1][1] - 1}")
    if runs and run[0] == runs[-1][1]:
        run = (runs.pop()[0], run[1])
    runs.append(run)


class _Reader(io.RawIOBase):
    """Adapts a ``milena.disk.files.File`` to the interface that Arrow reads from. Closing it leaves the file open."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview[int]") -> int:  # type: ignore[override]  # typeshed: any writable buffer
        content = self._file.pread(len(buffer), self._position)
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size()}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position
