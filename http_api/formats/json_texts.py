"""Split a stream of JSON values, one after the other, while its bytes arrive. Pure.

Between two values there may be white space. An object or a string ends with its last sign; a number, ``true``,
``false`` or ``null`` ends before the next byte that cannot be part of it. A list is refused at once: if a client sends
all its records as one list, they must not be kept until it ends.
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
_SPACES = re.compile(rb"[ \t\r\n]*+")
_WORD = re.compile(rb"[-+.0-9A-Za-z]*+")
"""A number or a name, or as much of it as has arrived."""


class JsonTexts:
    """A splitter of one stream. ``bytes_max`` limits each value.

    Invariant: the kept bytes start with a value that has not ended. The bytes before ``_seen`` were scanned. They
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
        """The number of kept bytes: the start of a value whose end has not arrived."""
        return len(self._kept)

    def feed(self, data: bytes) -> tuple[list[object], MilenaError | None]:
        """Take bytes; return the values that are complete now, and the error behind them, or None.

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
        """Note that no more bytes arrive. Feed a line feed before, which ends a number or a name.

        Raises:
            MalformedRequestError: the last value has no end.
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
        """Take one value from each line. Most clients send lines, which need no search for brackets.

        No bytes are kept when this is called, so ``data`` starts at the start of a value. Return the bytes from the
        first line on that is not one value, or that has no end yet.
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
                value = []
            if type(value) is not list and len(line) <= self._bytes_max:
                found.append(value)
            elif line.strip(_SPACE):
                return b"\n".join([*lines[place:], rest])
        return rest

    def _take_apart(self, found: list[object]) -> None:
        kept, start = self._kept, 0
        try:
            while True:
                if self._seen == start:
                    start = self._seen = _end(_SPACES, kept, start)
                end = self._end_of_value(start)
                if end is None:
                    return
                self._check_size(end - start)
                found.append(exact_json.loads(bytes(kept[start:end])))
                start = end
        finally:
            del kept[:start]
            self._seen -= start

    def _end_of_value(self, start: int) -> int | None:
        """Scan the value that begins at ``start``; return where it ends, or None if its end has not arrived.

        Raises:
            MalformedRequestError: no record may begin with this byte.
        """
        kept = self._kept
        if start == len(kept):
            return None
        if kept[start] not in b'{"':
            self._seen = _end(_WORD, kept, self._seen)
            if self._seen == start:
                raise MalformedRequestError(
                    "a record must be a JSON object; send one after the other, without a list or commas"
                )
            return self._seen if self._seen < len(kept) else None
        while self._is_past_string():
            if self._depth == 0 and self._seen > start:
                return self._seen
            sign = _SIGN.search(kept, self._seen)
            if sign is None:
                self._seen = len(kept)
                return None
            self._seen = sign.end()
            if sign[0] == b'"':
                self._is_in_string = True
            else:
                self._depth += 1 if sign[0] in _OPENING else -1
        return None

    def _is_past_string(self) -> bool:
        """Move ``_seen`` behind the open string, if there is one; return False if the string has not ended yet."""
        if not self._is_in_string:
            return True
        end = _end(_WITHIN, self._kept, self._seen)
        self._is_in_string = self._kept[end : end + 1] != b'"'
        self._seen = end if self._is_in_string else end + 1
        return not self._is_in_string


def _end(pattern: "re.Pattern[bytes]", data: bytearray, start: int) -> int:
    found = pattern.match(data, start)
    assert found is not None, "it matches nothing at all, too"
    return found.end()
