"""Parse lines into records: where a line ends, and which parts are key and value (pure).

Bytes are kept exactly. Only a line feed ends a line: a carriage return belongs to the value. An empty line is a record
with an empty value. A last line without a line feed is a line like the others.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

T = TypeVar("T")

LINE_BYTES_MAX = 32 << 20
"""The most bytes that a node takes in one request. A longer line could not be stored, so it is not held in memory."""


class BadLineError(Exception):
    """A line that is no record under the rule in force; the message says what to change."""


class LineSplitter:
    """Turn pieces of a stream into whole lines.

    A line above the limit is returned as None once, at its end or the stream's. No more than the limit is held of it.
    """

    def __init__(self, bytes_max: int = LINE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._is_too_long = False

    def feed(self, piece: bytes) -> list[bytes | None]:
        """Return the lines that end in this piece."""
        head, *rest = piece.split(b"\n")
        self._hold(head)
        if not rest:
            return []
        tail = rest.pop()
        lines = [self._release(), *rest]
        if len(piece) > self._bytes_max:
            # A line can exceed the limit only if the piece does.
            lines = [self._bounded(line) for line in lines]
        self._hold(tail)
        return lines

    def end(self) -> list[bytes | None]:
        """Return the last line, if the stream does not end with a line feed."""
        return [self._release()] if self._held_bytes or self._is_too_long else []

    def _bounded(self, line: bytes | None) -> bytes | None:
        return None if line is None or len(line) > self._bytes_max else line

    def _hold(self, piece: bytes) -> None:
        if self._is_too_long or self._held_bytes + len(piece) > self._bytes_max:
            self._is_too_long = True
            self._held.clear()
            return
        self._held_bytes += len(piece)
        if piece:
            self._held.append(piece)

    def _release(self) -> bytes | None:
        line = None if self._is_too_long else b"".join(self._held)
        self._held.clear()
        self._held_bytes = 0
        self._is_too_long = False
        return line


KeyedValue = tuple[bytes | None, bytes | None]
"""The key and value of a future record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing:
    """Properties of a record beside key and value. None: as the command line says."""

    partition: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None


UNPLACED = Placing()


@dataclass(frozen=True, slots=True, kw_only=True)
class LineRecords:
    """Records of consecutive lines, as columns. ``numbers`` is the line of each record."""

    keys: list[bytes | None] | None
    values: list[bytes | None]
    numbers: Sequence[int]
    placing: Placing = UNPLACED

    def part(self, places: slice) -> Self:
        """Return the records at these places."""
        return dataclasses.replace(
            self,
            keys=None if self.keys is None else self.keys[places],
            values=self.values[places],
            numbers=self.numbers[places],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedLines:
    """Lines as records.

    ``runs``: the records, in order. ``bad`` has the lines that are no record, and why, in order. ``last`` is the last
    line that was parsed: the first bad line, if that ends the run.
    """

    runs: Sequence[LineRecords]
    bad: Sequence[tuple[int, BadLineError]] = ()
    last: int


class LineParser(Protocol):
    """Turns lines into records."""

    def parse_all(self, lines: list[bytes | None], *, first: int, is_skipping: bool) -> ParsedLines:
        """Parse lines from number ``first`` on into records; a None is a line above the limit.

        The first bad line is the last one parsed, unless bad lines are skipped.
        """


def parse_each(
    parse: Callable[[bytes | None], T],
    lines: list[bytes | None],
    *,
    first: int,
    is_skipping: bool,
) -> tuple[list[tuple[int, T]], list[tuple[int, BadLineError]], int]:
    """Parse line by line; return numbered results, numbered errors, and the last line that was parsed."""
    found: list[tuple[int, T]] = []
    bad: list[tuple[int, BadLineError]] = []
    for number, line in enumerate(lines, first):
        try:
            found.append((number, parse(line)))
        except BadLineError as error:
            bad.append((number, error))
            if not is_skipping:
                return found, bad, number
    return found, bad, first + len(lines) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LineRule:
    """How a line becomes a key and a value. At most one of ``key_separator`` and ``key_field`` is given.

    ``key_separator``: the key is the text before its first occurrence, the value is the text after it. ``key_field``: a
    dotted path into the line, which must be JSON; the whole line stays the value. A string gives its text, any other
    value compact JSON; null means that the record has no key. ``null_marker``: a value that equals it is a tombstone.
    """

    key_separator: bytes | None = None
    key_field: tuple[str, ...] | None = None
    null_marker: bytes | None = None

    @property
    def is_keyed(self) -> bool:
        """True if lines have keys."""
        return self.key_separator is not None or self.key_field is not None

    def parse_all(self, lines: list[bytes | None], *, first: int, is_skipping: bool) -> ParsedLines:
        """Parse lines as ``LineParser`` says."""
        if self.is_keyed or None in lines:
            return self._parse_each(lines, first=first, is_skipping=is_skipping)
        # The most common case: no call per line.
        values = lines
        if self.null_marker is not None:
            values = [None if line == self.null_marker else line for line in lines]
        numbers = range(first, first + len(lines))
        records = LineRecords(keys=None, values=values, numbers=numbers)
        return ParsedLines(runs=[records], last=numbers.stop - 1)

    def _parse_each(
        self, lines: list[bytes | None], *, first: int, is_skipping: bool
    ) -> ParsedLines:
        found, bad, last = parse_each(self.parse, lines, first=first, is_skipping=is_skipping)
        records = LineRecords(
            keys=[key for _, (key, _) in found] if self.is_keyed else None,
            values=[value for _, (_, value) in found],
            numbers=[number for number, _ in found],
        )
        return ParsedLines(runs=[records], bad=bad, last=last)

    def parse(self, line: bytes | None) -> KeyedValue:
        """Return key and value.

        Raises:
            BadLineError: no separator, no JSON, no such field, or a line above the limit.
        """
        if line is None:
            raise too_long()
        key: bytes | None = None
        value: bytes | None = line
        if self.key_separator is not None:
            key, found, value = line.partition(self.key_separator)
            if not found:
                raise BadLineError(
                    f"no key separator {text_of(self.key_separator)} in {excerpt(line)}; put a key in "
                    "front of it, or say --on-bad-line skip"
                )
        elif self.key_field is not None:
            key = _key_at(self.key_field, line)
        return key, None if value == self.null_marker else value


def too_long() -> BadLineError:
    """Return the error of a line above the limit."""
    return BadLineError(
        f"longer than {LINE_BYTES_MAX} bytes, which no node takes; split it, or say "
        "--on-bad-line skip"
    )


def _key_at(path: tuple[str, ...], line: bytes) -> bytes | None:
    try:
        found: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadLineError(
            f"--key-field needs JSON, but {excerpt(line)} is not JSON ({error}); mend the line, or say "
            "--on-bad-line skip"
        ) from error
    for name in path:
        if not isinstance(found, dict) or name not in found:
            raise BadLineError(
                f"no field {'.'.join(path)} in {excerpt(line)}; give it one, or say --on-bad-line skip"
            )
        found = found[name]
    if found is None:
        return None
    text = found if isinstance(found, str) else _compact(found)
    # JSON can spell a lone surrogate, which UTF-8 cannot encode.
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadLineError(
            f"the field {'.'.join(path)} of {excerpt(line)} is not valid text; mend the line, or say "
            "--on-bad-line skip"
        ) from error


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def excerpt(line: bytes) -> str:
    """Return the beginning of a line as quoted text for people."""
    shown = line if len(line) <= 60 else line[:60] + b"..."
    return text_of(shown)


def text_of(value: bytes) -> str:
    """Return bytes as quoted text for people."""
    return repr(value.decode("utf-8", "backslashreplace"))


def parse_separator(text: str) -> bytes:
    r"""Return the bytes of a separator on the command line; escapes like ``\t``, ``\0`` and ``\x1f`` work.

    Raises:
        ValueError: the text is empty, or has an invalid escape.
    """
    try:
        plain = text.encode("latin-1", "backslashreplace").decode("unicode_escape")
    except UnicodeDecodeError as error:
        raise ValueError(f"{text!r} ends in the middle of an escape") from error
    if not plain:
        raise ValueError("it is empty")
    return plain.encode()
