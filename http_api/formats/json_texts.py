"""JSON texts one after the other, split while they arrive. Pure.

Between two of them there may be white space, or nothing. Only objects have an end of their own. Anything else is
refused at once, because the bytes behind it could not be split either.
"""

import re
from contextlib import suppress

from http_api.formats import exact_json
from milena.model.errors import MalformedRequestError, MilenaError, RequestTooLargeError

_SPACE = b" \t\r\n"
_SIGN = re.compile(rb'["{}\[\]]')
"""A bracket, or the quote that starts a string."""
_WITHIN = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
"""A string up to its closing quote, or as far as it has arrived; the search visits each byte once."""
_OPENING = b"{["


class JsonTexts:
    """The objects of a stream. ``bytes_max`` bounds each.

    Invariant: the kept bytes start with an object that has not ended. Everything before ``_seen`` was scanned: it has
    ``_depth`` open brackets, and perhaps an open string. So the cost of a large object depends on its size alone, not
    on the number of pieces.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept = bytearray()
        self._seen = 0
        self._depth = 0
        self._is_in_string = False

    @property
    def kept_bytes(self) -> int:
        """The number of bytes that wait for the end of their text."""
        return len(self._kept)

    def feed(self, data: bytes) -> tuple[list[object], MilenaError | None]:
        """Return the objects that are complete now, and an error behind them, after which the rest is unreadable."""
        found: list[object] = []
        try:
            if self._kept:
                data = self._finish_line(data, found)
            if not self._kept:
                data = self._take_lines(data, found)
            self._kept += data
            self._take_apart(found)
            self._check_size(len(self._kept))
        except (MalformedRequestError, RequestTooLargeError) as error:
            return found, error
        return found, None

    def close(self) -> None:
        """Note that no more bytes arrive.

        Raises:
            MalformedRequestError: the last object has no end.
        """
        if self._kept:
            raise MalformedRequestError("the body ends within a record")

    def _check_size(self, size: int) -> None:
        if size > self._bytes_max:
            raise RequestTooLargeError(f"a record has more than {self._bytes_max} bytes")

    def _finish_line(self, data: bytes, found: list[object]) -> bytes:
        """Take the rest of the line that is kept; return the bytes behind it."""
        end = data.find(b"\n") + 1 or len(data)
        self._kept += data[:end]
        self._take_apart(found)
        return data[end:]

    def _take_lines(self, data: bytes, found: list[object]) -> bytes:
        """Take one object from each line: most clients send lines, and these need no search for brackets.

        Nothing is kept before ``data``, so a line that is an object by itself is a record. Return the bytes from the
        first line that is not an object, or has no end yet.
        """
        lines = data.split(b"\n")
        rest = lines.pop()
        if len(data) <= self._bytes_max:
            # All at once, if no line is unusual.
            with suppress(MalformedRequestError):
                values = exact_json.loads_each(lines, data)
                if {dict}.issuperset(map(type, values)):
                    found += values
                    return rest
        for place, line in enumerate(lines):
            try:
                value = exact_json.loads(line)
            except MalformedRequestError:
                value = None
            if type(value) is dict and len(line) <= self._bytes_max:
                found.append(value)
            elif line.strip(_SPACE):
                return b"\n".join([*lines[place:], rest])
        return rest

    def _take_apart(self, found: list[object]) -> None:
        kept = self._kept
        start = 0
        try:
            while self._is_past_string() and (sign := _SIGN.search(kept, self._seen)) is not None:
                if self._depth == 0 and (
                    sign[0] != b"{" or kept[start : sign.start()].strip(_SPACE)
                ):
                    raise MalformedRequestError("a record must be a JSON object")
                self._seen = sign.end()
                if sign[0] == b'"':
                    self._is_in_string = True
                    continue
                self._depth += 1 if sign[0] in _OPENING else -1
                if self._depth == 0:
                    self._check_size(sign.end() - start)
                    found.append(exact_json.loads(bytes(kept[start : sign.end()])))
                    start = sign.end()
            if self._is_in_string:
                return
            if self._depth == 0:
                if kept[start:].strip(_SPACE):
                    raise MalformedRequestError("a record must be a JSON object")
                start = len(kept)
            self._seen = len(kept)
        finally:
            del kept[:start]
            self._seen -= start

    def _is_past_string(self) -> bool:
        """Return whether the string that had started, if any, has ended."""
        if not self._is_in_string:
            return True
        within = _WITHIN.match(self._kept, self._seen)
        assert within is not None, "it matches nothing at all too"
        end = within.end()
        self._is_in_string = self._kept[end : end + 1] != b'"'
        self._seen = end if self._is_in_string else end + 1
        return not self._is_in_string
