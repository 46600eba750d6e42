"""Encode fetched records as the body of a response, in the requested format. Pure, so any thread may call it."""

from dataclasses import dataclass

from http_api.formats import arrow, binary_v2, json_v2, text_v2
from http_api.formats.rows import RowWriter, Showing, json_list, text_json
from http_api.formats.selection import Selection, select
from http_api.protocol.errors import UnreadableRecordError
from http_api.protocol.media import (
    ARROW_TYPE,
    BATCH_TYPE,
    BINARY_V2_TYPE,
    JSON_V2_TYPE,
    RecordFormat,
    RecordsType,
)
from milena.model.batch.decode import (
    check_batch,
    decode_columns,
    iterate_batches,
    iterate_headers,
)
from milena.model.batch.encode import column_batch
from milena.model.batch.header import BatchHeader
from milena.model.errors import CorruptBatchError
from milena.model.requests import FetchResult

_JSON = Showing("JSON", json_v2.shown, json_v2.shown_item)
_TEXT = Showing("text in UTF-8", text_v2.shown, text_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsBody:
    """The body of a response with records.

    Attributes:
        body: the bytes.
        next_offset: the offset from which the client should read next.
        damaged_at: the offset of the first damaged record, before which the body ends; None: no record is damaged.
        is_barren: the body has no records.
    """

    body: bytes
    content_type: str
    next_offset: int
    damaged_at: int | None = None
    is_barren: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The options of a request for records.

    ``count`` is the most records; None: no limit. ``is_verified``: check the checksums of batches that are sent as
    stored. ``has_faults``: replace a record that the format cannot represent with an error, as in streams.
    """

    topic: str
    partition: int
    type: RecordsType
    count: int | None
    bytes_max: int
    is_verified: bool = False
    has_faults: bool = False


def encode_records(result: FetchResult, wanted: Wanted) -> RecordsBody:
    """Return the body of a response to a fetch.

    The format depends only on the request. If the request names no format, the body is JSON, and a record that is not
    JSON is replaced by an error, as in streams.

    Raises:
        UnreadableRecordError: JSON or text was requested, and the first record is not of this format. If a later record
            is not, the response ends before it. The client then gets the error for a request at that record's offset.
    """
    if wanted.type.format is RecordFormat.BATCH:
        return _batches(result, wanted)
    selection = select(result, count=wanted.count, bytes_max=wanted.bytes_max)
    if wanted.type.format is RecordFormat.ARROW:
        return RecordsBody(
            body=arrow.encode(selection, topic=wanted.topic, partition=wanted.partition),
            content_type=ARROW_TYPE,
            next_offset=selection.next_offset,
            damaged_at=selection.damaged_at,
            is_barren=not selection.slices,
        )
    writer = RowWriter(wanted.topic, wanted.partition)
    next_offset = selection.next_offset
    if wanted.has_faults or wanted.type.format is RecordFormat.BINARY:
        rows = rows_of(writer, selection, wanted.type.format or RecordFormat.JSON)
    else:
        form = _TEXT if wanted.type.format is RecordFormat.TEXT else _JSON
        rows, bad_offset = writer.up_to_fault(selection, form)
        if bad_offset is not None and wanted.type.format is None:
            rows = writer.each(selection, form)
        elif bad_offset is not None and rows:
            next_offset = bad_offset
        elif bad_offset is not None:
            raise UnreadableRecordError(
                f"the record at offset {bad_offset} of {wanted.topic}-{wanted.partition} is not {form.name}; "
                f"ask for {BINARY_V2_TYPE}, or go on at offset {bad_offset + 1}"
            )
    return RecordsBody(
        body=json_list(rows),
        content_type=wanted.type.content_type or JSON_V2_TYPE,
        next_offset=next_offset,
        damaged_at=selection.damaged_at,
        is_barren=not rows,
    )


def _batches(result: FetchResult, wanted: Wanted) -> RecordsBody:
    """Return whole stored batches; the client checks and decodes them.

    Batches after the first ``count`` records are left out. Behind damaged bytes, the start of the next batch is
    unknown, so the body ends before these bytes. Batches of Kafka clients become columns, which every client knows.
    """
    iterate = iterate_batches if wanted.is_verified else iterate_headers
    count = wanted.count
    next_offset = result.start_offset
    damaged_at = None
    end = 0
    kafka = _KafkaBatches(result.batches, wanted.bytes_max)
    try:
        for position, header in iterate(result.batches):
            if count is not None and count <= 0:
                break
            if header.is_v2 and not kafka.convert(header, position):
                break
            if count is not None and not header.is_control:
                # Compaction may have removed records, and the batch may begin before the offset.
                offsets = header.next_offset - max(header.base_offset, result.start_offset)
                count -= min(header.record_count, offsets)
            next_offset = max(next_offset, min(header.next_offset, result.readable_end))
            end = position + header.batch_bytes
    except CorruptBatchError:
        damaged_at = next_offset
    return RecordsBody(
        body=kafka.body(end),
        content_type=BATCH_TYPE,
        next_offset=next_offset,
        damaged_at=damaged_at,
        is_barren=end == 0,
    )


class _KafkaBatches:
    """The batches of a response, in which those of Kafka clients are replaced by columns.

    Together they unpack to at most ``bytes_max``, besides the first. Small batches may hold very many zeros.
    """

    def __init__(self, batches: bytes, bytes_max: int) -> None:
        self._batches = batches
        self._budget = bytes_max
        self._pieces: list[bytes] = []
        self._begin = 0

    def convert(self, header: BatchHeader, position: int) -> bool:
        """Replace the batch; return False if the response must end before it.

        Raises:
            CorruptBatchError: the batch is damaged, or the payload is no records.
        """
        # The result has a new checksum, so the client cannot find out that the stored records are damaged.
        check_batch(self._batches, position)
        self._budget -= header.uncompressed_bytes
        if self._budget < 0 and self._pieces:
            return False
        columns = decode_columns(self._batches, header, position)
        self._pieces += (self._batches[self._begin : position], column_batch(header, columns))
        self._begin = position + header.batch_bytes
        return True

    def body(self, end: int) -> bytes:
        """Return all batches that end at or before ``end``."""
        if not self._pieces:
            return self._batches[:end]
        return b"".join((*self._pieces, self._batches[self._begin : end]))


def rows_of(writer: RowWriter, selection: Selection, format_: RecordFormat) -> list[bytes]:
    """Return one JSON row for each record; a record that the format cannot represent becomes an error row."""
    if format_ is RecordFormat.BINARY:
        return binary_v2.encode(writer, selection)
    return writer.each(selection, _TEXT if format_ is RecordFormat.TEXT else _JSON)
