"""Encode records as JSON objects: ``topic, key, value, partition, offset``, and timestamp and headers if there are any.

Keys and values are passed as JSON text and are written unchanged. A loop in C formats the records.
"""

from binascii import b2a_base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import orjson

from http_api.formats.selection import Selection, Slice
from milena.model.columns import Headers

Column = Sequence[bytes | None]

Shown = tuple[Column | None, Column, set[int]]
"""Keys and values of a slice as JSON texts, and the positions of records that the format cannot represent."""

FAULT_CODE = 42203
"""The error code for a record that the format cannot represent: Confluent's for "JSON conversion failed"."""


class Showing(NamedTuple):
    """A format that cannot represent every record."""

    name: str
    slice: Callable[[Slice], Shown]
    item: Callable[[bytes], bytes | None]
    """Return a key or value as JSON text; None if it is not of this format."""


class RowWriter:
    """Writes the records of one partition."""

    def __init__(self, topic: str, partition: int) -> None:
        self._topic = orjson.dumps(topic)
        self._partition = partition
        self._head = b'{"topic":%b,"key":%%b,"value":%%b,"partition":%d,"offset":%%d' % (
            self._topic.replace(b"%", b"%%"),
            partition,
        )
        self._plain = self._head + b',"timestamp":%d}'

    def rows(self, piece: Slice, keys: Column | None, values: Column) -> Iterable[bytes]:
        """Return one JSON object for each record. ``keys`` and ``values`` are its keys and values as JSON text."""
        columns = zip(
            _or_null(keys, len(values)),
            _or_null(values, len(values)),
            piece.offsets,
            piece.timestamps,
            strict=True,
        )
        if piece.headers is None and min(piece.timestamps, default=0) >= 0:
            return map(self._plain.__mod__, columns)
        return self._decorated(columns, piece.headers or [None] * len(values))

    def up_to_fault(self, selection: Selection, form: Showing) -> tuple[list[bytes], int | None]:
        """Return the rows up to the first record that the format cannot represent, and its offset."""
        rows: list[bytes] = []
        for piece in selection.slices:
            keys, values, faults = form.slice(piece)
            if faults:
                good = min(faults)
                keys = None if keys is None else keys[:good]
                rows += self.rows(piece.between(0, good), keys, values[:good])
                return rows, piece.offsets[good]
            rows += self.rows(piece, keys, values)
        return rows, None

    def each(self, selection: Selection, form: Showing) -> list[bytes]:
        """Return a row for each record; an error row for one that the format cannot represent."""
        rows: list[bytes] = []
        for piece in selection.slices:
            keys, values, faults = form.slice(piece)
            whole = list(self.rows(piece, keys, values))
            for index in faults:
                whole[index] = self._fault_row(piece, index, form)
            rows += whole
        return rows

    def _fault_row(self, piece: Slice, index: int, form: Showing) -> bytes:
        """Return an error row for a record that the format cannot represent.

        A key or value that is not of the format is in a field ``key_text`` or ``value_text`` if the bytes are UTF-8,
        and otherwise in ``key_base64`` or ``value_base64``.
        """
        parts: list[bytes] = []
        wrong: list[str] = []
        for name, column in (("key", piece.keys), ("value", piece.values)):
            item = None if column is None else column[index]
            shown = b"null" if item is None else form.item(item)
            if shown is not None:
                parts.append(b'"%b":%b' % (name.encode(), shown))
            else:
                assert item is not None, "it is shown as null"
                if (string := text_json(item)) is not None:
                    parts.append(b'"%b_text":%b' % (name.encode(), string))
                else:
                    parts.append(
                        b'"%b_base64":"%b"' % (name.encode(), b2a_base64(item, newline=False))
                    )
                wrong.append(name)
        fault = f"{' and '.join(wrong)} {'is' if len(wrong) == 1 else 'are'} not {form.name}"
        row = b'{"topic":%b,%b,"partition":%d,"offset":%d' % (
            self._topic,
            b",".join(parts),
            self._partition,
            piece.offsets[index],
        )
        timestamp = piece.timestamps[index]
        if timestamp >= 0:
            row += b',"timestamp":%d' % timestamp
        headers = None if piece.headers is None else piece.headers[index]
        if headers:
            row += b',"headers":' + _encode_headers(headers)
        return row + b',"error_code":%d,"error":%b}' % (FAULT_CODE, orjson.dumps(fault))

    def _decorated(
        self, columns: Iterable[tuple[bytes, bytes, int, int]], headers: Sequence[Headers | None]
    ) -> Iterator[bytes]:
        for (key, value, offset, timestamp), pairs in zip(columns, headers, strict=True):
            row = self._head % (key, value, offset)
            if timestamp >= 0:
                row += b',"timestamp":%d' % timestamp
            if pairs:
                row += b',"headers":' + _encode_headers(pairs)
            yield row + b"}"


def _or_null(column: Column | None, count: int) -> Sequence[bytes]:
    if column is None:
        return [b"null"] * count
    return [b"null" if item is None else item for item in column]


def _encode_headers(pairs: Headers) -> bytes:
    return orjson.dumps(
        [
            {"key": name, "value": None if value is None else base64_text(value)}
            for name, value in pairs
        ]
    )


def text_json(item: bytes) -> bytes | None:
    """Return the JSON string with this text; None if the bytes are not UTF-8."""
    try:
        return orjson.dumps(item.decode())
    except UnicodeDecodeError:
        return None


def base64_text(value: bytes) -> str:
    """Return base64 without line breaks."""
    return b2a_base64(value, newline=False).decode("ascii")


def json_list(rows: Sequence[bytes]) -> bytes:
    """Return a JSON list of JSON texts."""
    return b"[%b]" % b",".join(rows)
