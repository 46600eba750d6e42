"""JSON texts one after the other, taken apart while they come. Pure.

Between two of them there may be white space, or nothing. Only objects are told apart by their own end; anything else is
refused at the spot, since what follows could not be read either.
"""

import re
from contextlib import suppress

from http_api.formats import exact_json
from milena.model.errors import MalformedRequestError, MilenaError, RequestTooLargeError

_SPACE = b" \t\r\n"
_SIGN = re.compile(rb'["{}\[\]]')
"""A bracket, or the quote that begins a string."""
_WITHIN = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
"""A string up to its closing quote, or as far as it is there; nothing of it is looked at twice."""
_OPENING = b"{["


class JsonTexts:
    """The objects of a stream. ``bytes_max`` bounds each.

    Invariant: what is kept begins with an object that has not ended, of which everything before ``_seen`` is known:
    it has ``_depth`` open brackets, and perhaps an open string. So what a large object costs grows with its size alone,
    in however many pieces it comes.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept = bytearray()
        self._seen = 0
        self._depth = 0
        self._is_in_string = False

    @property
    def kept_bytes(self) -> int:
        """Bytes that are held until the end of their text comes."""
        return len(self._kept)

    def feed(self, data: bytes) -> tuple[list[object], MilenaError | None]:
        """The objects that have ended by now, and what is wrong behind them: then nothing more can be read."""
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
        """Nothing more comes.

        Raises:
            MalformedRequestError: the last object has no end.
        """
        if self._kept:
            raise MalformedRequestError("the body ends within a record")

    def _check_size(self, size: int) -> None:
        if size > self._bytes_max:
            raise RequestTooLargeError(f"a record has more than {self._bytes_max} bytes")

    def _finish_line(self, data: bytes, found: list[object]) -> bytes:
        """Take what belongs to the line that is kept; returns what is behind it."""
        end = data.find(b"\n") + 1 or len(data)
        self._kept += data[:end]
        self._take_apart(found)
        return data[end:]

    def _take_lines(self, data: bytes, found: list[object]) -> bytes:
        """Take an object a line, which most clients send and no search for brackets is needed for.

        Nothing is kept before ``data``, so a line that is an object by itself is a record. Returns what begins with
        the first line that is none, or has no end yet.
        """
        lines = data.split(b"\n")
        rest = lines.pop()
        if len(data) <= self._bytes_max:
            # All of them without a look at each, where nothing is unusual.
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
        """Whether the string that had begun, if any, has ended."""
        if not self._is_in_string:
            return True
        within = _WITHIN.match(self._kept, self._seen)
        assert within is not None, "it matches nothing at all too"
        end = within.end()
        self._is_in_string = self._kept[end : end + 1] != b'"'
        self._seen = end if self._is_in_string else end + 1
        return not self._is_in_string
