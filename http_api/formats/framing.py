"""Records one by one in an answer that has no end yet: lines of JSON (NDJSON), or server-sent events. Pure.

A line or an event holds one record. Between records, while there are none, an empty line or a comment keeps proxies
from taking the connection for dead. What ends a stream early is its last line ``{"error_code", "message"}``, or an
event of the type ``error``. Source: the HTML standard, section 9.2 (server-sent events).
"""

from collections.abc import Iterable, Mapping, Sequence

import orjson

from http_api.protocol.media import StreamFraming

RECONNECT_MS = 1000
"""How long browsers wait before they come back to go on: an election takes about as long."""

_LINE_ENDS = bytes.maketrans(b"\r\n", b"  ")


def opening(framing: StreamFraming) -> bytes:
    """Bytes before the first record, so that the client knows at once that it is connected."""
    return b"retry: %d\n\n" % RECONNECT_MS if framing is StreamFraming.EVENTS else b""


def keep_alive(framing: StreamFraming) -> bytes:
    """Means nothing."""
    return b":\n\n" if framing is StreamFraming.EVENTS else b"\n"


def frame(framing: StreamFraming, rows: Sequence[bytes], ids: Iterable[bytes]) -> bytes:
    """The records, each a JSON text; ``ids``: of the events, in the same order."""
    if framing is StreamFraming.EVENTS:
        pairs = zip(ids, _one_line_each(rows), strict=True)
        return b"".join(map(b"id: %b\ndata: %b\n\n".__mod__, pairs))
    return b"".join(map(b"%b\n".__mod__, _one_line_each(rows)))


def failure(framing: StreamFraming, envelope: Mapping[str, object]) -> bytes:
    """Why the stream ends before its time."""
    line = orjson.dumps(envelope)
    if framing is StreamFraming.EVENTS:
        return b"event: error\ndata: %b\n\n" % line
    return line + b"\n"


def _one_line_each(rows: Sequence[bytes]) -> Sequence[bytes]:
    """JSON that was stored with line ends between its tokens, without them: within a string there can be none."""
    together = b"".join(rows)
    if b"\n" in together or b"\r" in together:
        return [row.translate(_LINE_ENDS) for row in rows]
    return rows
