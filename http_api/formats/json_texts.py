"""Split a stream of JSON objects, one after the other, while its bytes arrive. Pure.

Between two objects there may be white space, or nothing. The end of an object is its closing bracket. Values other than
objects are refused at once, because the start of the next value would be unknown.
"""

import re
from contextlib import suppress

from http_api.formats import exact_json
from milena.model.errors import MalformedRequestError, MilenaError, RequestTooLargeError

_SPACE = b" \t\r\n"
_SIGN = re.compile(rb'["{}\[\]]')
"""A bracket, or the quote that starts a string."""
_WITHIN = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
"""The rest of a string before its closing quote, or as far as it has arrived. The match visits each byte once."""
_OPENING = b"{["


class JsonTexts:
    """A splitter of one stream. ``bytes_max`` limits each object.

    Invariant: the kept bytes start with an object that has not ended. The bytes before ``_seen`` were scanned. They
    have ``_depth`` open brackets, and perhaps an open string (``_is_in_string``). They are not scanned again when more
    bytes arrive, so the cost of an object does not depend on the number of pieces.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept = bytearray()
        self._seen = 0
        self._depth = 0
        self._is_in_string = False

    @property
    def kept_bytes(self) -> int:
        """The number of kept bytes: the start of an object whose end has not arrived."""
        return len(self._kept)

    def feed(self, data: bytes) -> tuple[list[object], MilenaError | None]:
        """Take bytes; return the objects that are complete now, and the error behind them, or None.

        After an error, the rest of the stream cannot be read.
        """
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
        """Add the rest of a line to the kept bytes, and split these; return the bytes behind the line."""
        end = data.find(b"\n") + 1 or len(data)
        self._kept += data[:end]
        self._take_apart(found)
        return data[end:]

    def _take_lines(self, data: bytes, found: list[object]) -> bytes:
        """Take one object from each line. Most clients send lines, which need no search for brackets.

        No bytes are kept when this is called, so ``data`` starts at the start of an object. Return the bytes from the
        first line on that is not one object, or that has no end yet.
        """
        lines = data.split(b"\n")
        rest = lines.pop()
        if len(data) <= self._bytes_max:
            # Parse all lines in one call. If one of them is not an object, the loop below finds it.
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
        """Move ``_seen`` behind the open string, if there is one; return False if the string has not ended yet."""
        if not self._is_in_string:
            return True
        within = _WITHIN.match(self._kept, self._seen)
        assert within is not None, "it matches nothing at all too"
        end = within.end()
        self._is_in_string = self._kept[end : end + 1] != b'"'
        self._seen = end if self._is_in_string else end + 1
        return not self._is_in_string
