"""Lines to records: where one line ends, what of it is the key, what the value (pure).

Bytes are kept exactly. A line feed alone ends a line: a carriage return belongs to the value. An empty line is a
record with an empty value; a last line without an end is a line like the others.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

LINE_BYTES_MAX = 32 << 20
"""What a node takes in one request: a longer line could not be stored, and is not collected in memory."""


class BadLineError(Exception):
    """A line that is no record under the rule in force; the message says what to change."""


class LineSplitter:
    """Pieces of a stream in, whole lines out.

    A line above the bound is given as None once, at its end or the stream's; of it no more than the bound is held.
    """

    def __init__(self, bytes_max: int = LINE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._is_too_long = False

    def feed(self, piece: bytes) -> list[bytes | None]:
        """The lines that end in this piece."""
        head, *rest = piece.split(b"\n")
        self._hold(head)
        if not rest:
            return []
        tail = rest.pop()
        lines = [self._release(), *rest]
        if len(piece) > self._bytes_max:
            # Only then can one of them be.
            lines = [self._bounded(line) for line in lines]
        self._hold(tail)
        return lines

    def end(self) -> list[bytes | None]:
        """The last line, when the stream does not end with a line's end."""
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
"""Key and value of a record to be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedLines:
    """Lines as columns of records.

    ``numbers``: the line of each record; ``bad``: lines that are none, and why, in order; ``last``: the last line that
    was looked at, which is the first bad one where that ends it.
    """

    keys: list[bytes | None] | None
    values: list[bytes | None]
    numbers: Sequence[int]
    bad: Sequence[tuple[int, BadLineError]] = ()
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LineRule:
    """How a line becomes a key and a value. At most one of ``key_separator`` and ``key_field`` is given.

    ``key_separator``: the key is what stands before its first occurrence, the value what follows.
    ``key_field``: a dotted path into the line, which must be JSON; the whole line stays the value. A string is taken as
    its text, anything else as compact JSON; null means that the record has no key.
    ``null_marker``: a value that is exactly this is a tombstone.
    """

    key_separator: bytes | None = None
    key_field: tuple[str, ...] | None = None
    null_marker: bytes | None = None

    @property
    def is_keyed(self) -> bool:
        """Lines have keys."""
        return self.key_separator is not None or self.key_field is not None

    def parse_all(self, lines: list[bytes | None], *, first: int, is_skipping: bool) -> ParsedLines:
        """Lines from number ``first`` on as records; None is one above the bound.

        The first bad one is the last, unless they are skipped.
        """
        if self.is_keyed or None in lines:
            return self._parse_each(lines, first=first, is_skipping=is_skipping)
        # The commonest case, in which a line costs no call.
        values = lines
        if self.null_marker is not None:
            values = [None if line == self.null_marker else line for line in lines]
        numbers = range(first, first + len(lines))
        return ParsedLines(keys=None, values=values, numbers=numbers, last=numbers.stop - 1)

    def _parse_each(
        self, lines: list[bytes | None], *, first: int, is_skipping: bool
    ) -> ParsedLines:
        pairs: list[KeyedValue] = []
        numbers: list[int] = []
        bad: list[tuple[int, BadLineError]] = []
        for number, line in enumerate(lines, first):
            try:
                pairs.append(self.parse(line))
            except BadLineError as error:
                bad.append((number, error))
                if not is_skipping:
                    break
            else:
                numbers.append(number)
        is_cut = bool(bad) and not is_skipping
        return ParsedLines(
            keys=[key for key, _ in pairs] if self.is_keyed else None,
            values=[value for _, value in pairs],
            numbers=numbers,
            bad=bad,
            last=bad[0][0] if is_cut else first + len(lines) - 1,
        )

    def parse(self, line: bytes | None) -> KeyedValue:
        """Key and value.

        Raises:
            BadLineError: no separator, no JSON, no such field, or a line above the bound.
        """
        if line is None:
            raise _too_long()
        key: bytes | None = None
        value: bytes | None = line
        if self.key_separator is not None:
            key, found, value = line.partition(self.key_separator)
            if not found:
                raise BadLineError(
                    f"no key separator {text_of(self.key_separator)} in {_excerpt(line)}; put a key in "
                    "front of it, or say --on-bad-line skip"
                )
        elif self.key_field is not None:
            key = _key_at(self.key_field, line)
        return key, None if value == self.null_marker else value


def _too_long() -> BadLineError:
    return BadLineError(
        f"longer than {LINE_BYTES_MAX} bytes, which no node takes; split it, or say "
        "--on-bad-line skip"
    )


def _key_at(path: tuple[str, ...], line: bytes) -> bytes | None:
    try:
        found: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadLineError(
            f"--key-field needs JSON, but {_excerpt(line)} is none ({error}); mend the line, or say "
            "--on-bad-line skip"
        ) from error
    for name in path:
        if not isinstance(found, dict) or name not in found:
            raise BadLineError(
                f"no field {'.'.join(path)} in {_excerpt(line)}; give it one, or say --on-bad-line skip"
            )
        found = found[name]
    if found is None:
        return None
    text = found if isinstance(found, str) else _compact(found)
    # A lone surrogate, which JSON can spell, is no text that bytes could hold.
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadLineError(
            f"the field {'.'.join(path)} of {_excerpt(line)} is no valid text; mend the line, or say "
            "--on-bad-line skip"
        ) from error


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _excerpt(line: bytes) -> str:
    shown = line if len(line) <= 60 else line[:60] + b"..."
    return text_of(shown)


def text_of(value: bytes) -> str:
    """Bytes as people read them, quoted."""
    return repr(value.decode("utf-8", "backslashreplace"))


def parse_separator(text: str) -> bytes:
    r"""The bytes that a separator on the command line stands for; ``\t``, ``\0``, ``\x1f`` and the like are understood.

    Raises:
        ValueError: empty, or an escape that is none.
    """
    try:
        plain = text.encode("latin-1", "backslashreplace").decode("unicode_escape")
    except UnicodeDecodeError as error:
        raise ValueError(f"{text!r} ends in the middle of an escape") from error
    if not plain:
        raise ValueError("it is empty")
    return plain.encode()
