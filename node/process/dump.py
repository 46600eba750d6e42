"""``milena dump``: shows the content of a segment's file or of a replica's folder, as it is on a node's disk.

The command opens files only for reading, takes no lock and needs no node. It may read the folder of a running node, a
copy, or what is left of a broken disk. If a segment is being written, it shows the bytes that are there at that moment.
"""

import base64
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import repeat
from typing import Self

import click
import orjson

from milena.model.batch.decode import check_batch, decode_columns, offsets_of, timestamps_of
from milena.model.batch.header import BatchHeader, Marker, decode_header
from milena.model.columns import Headers
from milena.model.errors import CorruptBatchError
from milena.model.types import NO_PRODUCER
from storage.segments.segment import LOG_SUFFIX, parse_offset_name

EXIT_DAMAGED = 1
_HEAD_BYTES = 64 << 10
"""Number of bytes that are read to get a header with its extensions."""
_ZEROS_BYTES = 1 << 20


class SegmentBytes:
    """A segment's file that is opened only for reading. A context manager."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed by __exit__
        self.size = os.fstat(self._file.fileno()).st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, position: int, length: int) -> bytes:
        """Read ``length`` bytes at a position; fewer at the end of the file."""
        return os.pread(self._file.fileno(), length, position)

    def is_zero_from(self, position: int) -> bool:
        """Return whether only zeros follow: preallocated space that was never written."""
        while position < self.size:
            if self.read(position, _ZEROS_BYTES).strip(b"\0"):
                return False
            position += _ZEROS_BYTES
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatch:
    """A batch with a valid header. If the rest is damaged or missing, ``data`` is None and ``damage`` says why."""

    position: int
    header: BatchHeader
    data: bytes | None
    damage: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEnd:
    """The position at which ``walk`` ended. ``damage`` is empty if only zeros, or nothing, follow."""

    position: int
    unread_bytes: int
    damage: str = ""


def walk(segment: SegmentBytes) -> Iterator[StoredBatch | SegmentEnd]:
    """Yield every batch up to the first invalid header; then yield the end."""
    position = 0
    while position < segment.size:
        head = segment.read(position, _HEAD_BYTES)
        try:
            header = decode_header(head)
        except CorruptBatchError as error:
            is_end = segment.is_zero_from(position)
            damage = "" if is_end else error.message
            unread = segment.size - position
            yield SegmentEnd(position=position, unread_bytes=unread, damage=damage)
            return
        whole = head[: header.batch_bytes]
        if len(whole) < header.batch_bytes:
            whole = segment.read(position, header.batch_bytes)
        try:
            check_batch(whole)
            yield StoredBatch(position=position, header=header, data=whole)
        except CorruptBatchError as error:
            yield StoredBatch(position=position, header=header, data=None, damage=error.message)
        position += header.batch_bytes
    yield SegmentEnd(position=segment.size, unread_bytes=0)


@click.command(epilog="It reads and never writes or locks; a node may run on the folder meanwhile.")
@click.argument("path", type=click.Path(exists=True))
@click.option("--offset", type=click.IntRange(min=0), default=0, metavar="N",
              help="Start with the batch that holds this offset.")  # fmt: skip
@click.option("--batches", "batches_max", type=click.IntRange(min=1), metavar="N",
              help="Stop after N batches.")  # fmt: skip
@click.option("--records", "is_showing_records", is_flag=True,
              help="Show the records of each batch, one per line, as JSON.")  # fmt: skip
@click.option("--json", "is_json", is_flag=True, help="Print one batch per line, as JSON.")
def dump(
    path: str, offset: int, batches_max: int | None, is_showing_records: bool, is_json: bool
) -> None:
    """Show the batches in PATH, a segment's file (*.log) or the folder of a replica, as they are on the disk.

    Each batch is checked: its header, its checksum, and whether its offsets follow the previous ones. The exit code is
    1 if a check fails.
    """
    try:
        report = DumpReport(
            offset=offset,
            batches_left=batches_max,
            is_showing_records=is_showing_records,
            is_json=is_json,
        )
        paths = segments_in(path)
        for number, name in enumerate(paths):
            with SegmentBytes(name) as segment:
                report.show(segment, is_last=number == len(paths) - 1)
            if report.batches_left == 0:
                break
    except BrokenPipeError:
        # The reader has closed the pipe, as "| head" does.
        return
    except OSError as error:
        raise click.ClickException(f"cannot read {path}: {error}") from error
    if report.is_damaged:
        raise click.exceptions.Exit(EXIT_DAMAGED)


def segments_in(path: str) -> Sequence[str]:
    """Return the file itself, or the segments of a folder in order of their offsets.

    Raises:
        click.ClickException: the folder has no segments.
    """
    if not os.path.isdir(path):
        return [path]
    names = sorted(
        name for name in os.listdir(path) if parse_offset_name(name, LOG_SUFFIX) is not None
    )
    if not names:
        raise click.ClickException(
            f"no segments (*{LOG_SUFFIX}) in {path}; replicas are in DATA_DIR/topics/TOPIC_ID/PARTITION"
        )
    return [os.path.join(path, name) for name in names]


class DumpReport:
    """Writes the output. ``is_damaged``: whether any check has failed."""

    def __init__(
        self, *, offset: int, batches_left: int | None, is_showing_records: bool, is_json: bool
    ) -> None:
        self.batches_left = batches_left
        self.is_damaged = False
        self._offset = offset
        self._is_showing_records = is_showing_records
        self._is_json = is_json
        self._next_offset: int | None = None

    def show(self, segment: SegmentBytes, *, is_last: bool) -> None:
        """Show one segment."""
        self._say(f"segment {segment.path}: {segment.size} bytes")
        named = parse_offset_name(os.path.basename(segment.path), LOG_SUFFIX)
        if self._next_offset is None:
            self._next_offset = named
        elif named != self._next_offset:
            self._fault(f"begins at offset {named}, and {self._next_offset} was to come")
            self._next_offset = named
        for found in walk(segment):
            match found:
                case StoredBatch():
                    self._show_batch(found)
                    if self.batches_left == 0:
                        return
                case SegmentEnd():
                    self._show_end(found, is_last=is_last)

    def _show_batch(self, batch: StoredBatch) -> None:
        header = batch.header
        faults = [batch.damage] if batch.damage else []
        if self._next_offset is not None and header.base_offset != self._next_offset:
            faults.append(f"offset {self._next_offset} was to come")
        self._next_offset = header.next_offset
        self.is_damaged = self.is_damaged or bool(faults)
        if header.last_offset < self._offset:
            return
        if self.batches_left is not None:
            self.batches_left -= 1
        row = _row(batch, faults)
        click.echo(orjson.dumps(row) if self._is_json else _line(batch, faults))
        if self._is_showing_records and batch.data is not None and not header.is_control:
            self._show_records(batch, batch.data)

    def _show_records(self, batch: StoredBatch, data: bytes) -> None:
        header = batch.header
        try:
            columns = decode_columns(data, header)
        except CorruptBatchError as error:
            self._fault(error.message)
            return
        rows = zip(
            offsets_of(header, columns),
            timestamps_of(header, columns),
            columns.keys or repeat(None),
            columns.values,
            columns.headers or repeat(None),
            strict=False,
        )
        for offset, timestamp_ms, key, value, headers in rows:
            click.echo(_record_line(offset, timestamp_ms, key, value, headers))

    def _show_end(self, end: SegmentEnd, *, is_last: bool) -> None:
        if end.damage:
            told = f"no batch at byte {end.position}: {end.damage}; {end.unread_bytes} bytes not understood"
            if is_last:
                told += "; a log may end so after a crash or while it is written, and is cut there at its next start"
            self._fault(told)
        elif end.unread_bytes:
            self._say(f"end at byte {end.position}, then {end.unread_bytes} zeros")
        else:
            self._say(f"end at byte {end.position}")

    def _fault(self, told: str) -> None:
        self.is_damaged = True
        click.echo(f"damaged: {told}", err=True)

    def _say(self, told: str) -> None:
        if not self._is_json:
            click.echo(told)


def _record_line(
    offset: int,
    timestamp_ms: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers | None,
) -> bytes:
    """Return a record in the form of ``milena consume --format json``. Bytes that are not UTF-8 become base64."""
    fields: dict[str, object] = {
        "offset": offset,
        "timestamp": timestamp_ms,
        **_text_field("key", key),
        **_text_field("value", value),
    }
    if headers:
        fields["headers"] = [
            {"key": name, **_text_field("value", content)} for name, content in headers
        ]
    return orjson.dumps(fields)


def _text_field(name: str, data: bytes | None) -> dict[str, object]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name: base64.b64encode(data).decode(), f"{name}_encoding": "base64"}


def _row(batch: StoredBatch, faults: Sequence[str]) -> dict[str, object]:
    header = batch.header
    return {
        "position": batch.position,
        "batch_bytes": header.batch_bytes,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "record_count": header.record_count,
        "leader_epoch": header.leader_epoch,
        "append_time_ms": header.append_time_ms,
        "format": "kafka" if header.is_v2 else "columns",
        "codec": header.codec.name.lower(),
        "uncompressed_bytes": header.uncompressed_bytes,
        "max_timestamp_ms": header.max_timestamp_ms,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "crc": f"{header.crc:08x}",
        "is_control": header.is_control,
        "is_transactional": header.is_transactional,
        "marker": None if header.marker is None else _marker(header.marker),
        "has_idempotency_key": bool(header.request_keys),
        "delete_horizon_ms": header.delete_horizon_ms,
        "faults": list(faults),
    }


def _marker(marker: Marker) -> str:
    if marker.is_commit:
        return f"committed {marker.first_offset}-{marker.end_offset - 1}"
    return f"aborted from {marker.first_offset}"


def _line(batch: StoredBatch, faults: Sequence[str]) -> str:
    header = batch.header
    offsets = f"{header.base_offset}-{header.last_offset}"
    parts = [
        f"byte {batch.position}: offsets {offsets}",
        f"{header.record_count} records",
        f"{header.batch_bytes} bytes",
        f"kafka, {header.codec.name.lower()}" if header.is_v2 else header.codec.name.lower(),
        f"leader epoch {header.leader_epoch}",
        f"appended {_time(header.append_time_ms)}",
    ]
    if header.producer_id != NO_PRODUCER:
        producer = f"producer {header.producer_id} epoch {header.producer_epoch}"
        if header.base_sequence >= 0:
            producer += f" sequences {header.base_sequence}-{header.last_sequence}"
        parts.append(producer)
    if header.marker is not None:
        parts.append(f"transaction {_marker(header.marker)}")
    parts += [
        word
        for word, is_there in (
            ("transaction", header.is_transactional and header.marker is None),
            ("idempotency key", bool(header.request_keys)),
            ("control", header.is_control),
            ("filler", header.is_filler),
        )
        if is_there
    ]
    crc = f"crc {header.crc:08x}"
    parts.append(f"{crc} ok" if not faults else f"{crc}, DAMAGED: {'; '.join(faults)}")
    return ", ".join(parts)


def _time(wall_ms: int) -> str:
    try:
        return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{wall_ms} ms"
