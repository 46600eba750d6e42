"""Frames of records in a response without an end: lines of JSON (NDJSON), or server-sent events. Pure.

A line or an event has one record. While there are no records, an empty line or a comment is sent now and then, so that
proxies do not close the connection. If an error ends a stream, its last line is ``{"error_code", "message"}``, or its
last event has the type ``error``. Source: the HTML standard, section 9.2 (server-sent events).
"""

from collections.abc import Iterable, Mapping, Sequence

import orjson

from http_api.protocol.media import StreamFraming

RECONNECT_MS = 1000
"""The time after which browsers reconnect, in ms: about the duration of an election."""

_LINE_ENDS = bytes.maketrans(b"\r\n", b"  ")


def opening(framing: StreamFraming) -> bytes:
    """Return the bytes before the first record. For events, they tell the client how soon to reconnect."""
    return b"retry: %d\n\n" % RECONNECT_MS if framing is StreamFraming.EVENTS else b""


def keep_alive(framing: StreamFraming) -> bytes:
    """Return an empty line or a comment, which clients ignore."""
    return b":\n\n" if framing is StreamFraming.EVENTS else b"\n"


def frame(framing: StreamFraming, rows: Sequence[bytes], ids: Iterable[bytes]) -> bytes:
    """Return records, which are JSON texts, as lines or events. ``ids`` are the ids of the events, in order."""
    if framing is StreamFraming.EVENTS:
        pairs = zip(ids, _one_line_each(rows), strict=True)
        return b"".join(map(b"id: %b\ndata: %b\n\n".__mod__, pairs))
    return b"".join(map(b"%b\n".__mod__, _one_line_each(rows)))


def failure(framing: StreamFraming, envelope: Mapping[str, object]) -> bytes:
    """Return the last line or event: the error that ends the stream."""
    line = orjson.dumps(envelope)
    if framing is StreamFraming.EVENTS:
        return b"event: error\ndata: %b\n\n" % line
    return line + b"\n"


def _one_line_each(rows: Sequence[bytes]) -> Sequence[bytes]:
    """Remove line ends from JSON texts. They can only be between tokens: strings in JSON have none."""
    together = b"".join(rows)
    if b"\n" in together or b"\r" in together:
        return [row.translate(_LINE_ENDS) for row in rows]
    return rows
