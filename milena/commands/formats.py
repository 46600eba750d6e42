"""Format records as the bytes that ``milena consume`` prints (pure)."""

import base64
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, unique
from json.encoder import encode_basestring

from milena.commands.producing.lines import parse_separator
from milena.model.plain_text import escaped
from milena.records import ConsumedRecord


@unique
class Format(Enum):
    """The forms in which a record is printed."""

    VALUE = "value"
    KEY_VALUE = "key-value"
    JSON = "json"
    RAW = "raw"


_FIELD = re.compile(rb"%(.?)", re.DOTALL)
_FIELDS = {b"t": "topic", b"p": "partition", b"o": "offset", b"T": "timestamp", b"k": "key", b"v": "value",
           b"h": "headers", b"%": "the sign itself"}  # fmt: skip


def parse_template(text: str) -> tuple[bytes, ...]:
    r"""Return the parts of a line template: text and the letters of fields in turn; ``%k %v`` has ``k`` and ``v``.

    Raises:
        ValueError: an unknown field or a broken escape.
    """
    parts = _FIELD.split(parse_separator(text))
    for letter in parts[1::2]:
        if letter not in _FIELDS:
            told = ", ".join(f"%{one.decode()} {name}" for one, name in _FIELDS.items())
            raise ValueError(f"'%{letter.decode(errors='replace')}' is not a field: use {told}")
    return tuple(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A format, its separators, and the text for a missing key or value (``null_marker``).

    ``template`` has the parts of a line, as ``parse_template`` returns them; then ``format`` does not count.
    """

    format: Format = Format.VALUE
    template: tuple[bytes, ...] = ()
    separator: bytes = b"\n"
    key_separator: bytes = b"\t"
    null_marker: bytes = b"null"

    is_for_terminal: bool = False
    """True if control characters of records are escaped, except tabs and line ends. ``raw`` is never escaped."""

    def encode(self, records: Iterable[ConsumedRecord]) -> bytes:
        """Return the records, one after the other."""
        is_raw = self.format is Format.RAW and not self.template
        end = b"" if is_raw else self.separator
        line = self._line()
        data = b"".join([line(record) + end for record in records])
        if not self.is_for_terminal or is_raw:
            return data
        return escaped(data.decode(errors="backslashreplace"), keeps_lines=True).encode()

    def _line(self) -> Callable[[ConsumedRecord], bytes]:
        if self.template:
            return self._filled
        match self.format:
            case Format.VALUE:
                return self._value
            case Format.KEY_VALUE:
                return self._key_value
            case Format.JSON:
                return json_line
            case Format.RAW:
                return _raw

    def _filled(self, record: ConsumedRecord) -> bytes:
        parts = list(self.template)
        parts[1::2] = [self._field(letter, record) for letter in parts[1::2]]
        return b"".join(parts)

    def _field(self, letter: bytes, record: ConsumedRecord) -> bytes:
        match letter:
            case b"k":
                return self.null_marker if record.key is None else record.key
            case b"v":
                return self._value(record)
            case b"h":
                return b",".join(
                    name.encode() + b"=" + (self.null_marker if value is None else value)
                    for name, value in record.headers
                )
            case b"%":
                return b"%"
            case b"t":
                return record.topic.encode()
            case _:
                number = getattr(record, "timestamp_ms" if letter == b"T" else _FIELDS[letter])
                return str(number).encode()

    def _value(self, record: ConsumedRecord) -> bytes:
        return self.null_marker if record.value is None else record.value

    def _key_value(self, record: ConsumedRecord) -> bytes:
        key = self.null_marker if record.key is None else record.key
        return key + self.key_separator + self._value(record)


def _raw(record: ConsumedRecord) -> bytes:
    return record.value or b""


def json_line(record: ConsumedRecord) -> bytes:
    """Return one JSON object. Bytes that are no UTF-8 become base64, and a field ``…_encoding`` marks them."""
    # Built by hand: a new dict and an encoder for each record would cost four times as much.
    fields = (
        f'"topic":{encode_basestring(record.topic)},"partition":{record.partition},'
        f'"offset":{record.offset},"timestamp":{record.timestamp_ms},'
        f"{_text_field('key', record.key)},{_text_field('value', record.value)}"
    )
    if record.headers:
        headers = ",".join(_header(name, value) for name, value in record.headers)
        fields += f',"headers":[{headers}]'
    return f"{{{fields}}}".encode()


def _header(name: str, value: bytes | None) -> str:
    return f'{{"key":{encode_basestring(name)},{_text_field("value", value)}}}'


def _text_field(name: str, value: bytes | None) -> str:
    if value is None:
        return f'"{name}":null'
    try:
        return f'"{name}":{encode_basestring(value.decode())}'
    except UnicodeDecodeError:
        return f'"{name}":"{base64.b64encode(value).decode()}","{name}_encoding":"base64"'
