"""A page of records as a fetch returns it, in either form, and the rules that it must keep by itself (pure)."""

import json
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, unique
from typing import NamedTuple

from loadtest.records.fingerprints import fingerprint
from loadtest.records.source import BINARY_TYPE
from loadtest.records.workload import DamagedValueError, ForeignValueError, identify
from milena.model.batch.decode import records_in
from milena.model.errors import CorruptBatchError


class PageError(Exception):
    """The bytes are no page of records."""


@unique
class PageFormat(Enum):
    """The form of fetched records, by the requested media type."""

    BASE64 = BINARY_TYPE
    BATCHES = "application/vnd.milena.batch"


class StoredRecord(NamedTuple):
    """One record as the log has it."""

    offset: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The records of one response, from the requested offset."""

    records: tuple[StoredRecord, ...]

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where the records stand, in the order they came."""
        return tuple(record.offset for record in self.records)

    @property
    def fingerprints(self) -> bytes:
        """Return the fingerprint of each record, joined."""
        return b"".join(fingerprint(r.key, r.value or b"") for r in self.records)

    @property
    def value_bytes(self) -> int:
        """Size of all values."""
        return sum(len(record.value or b"") for record in self.records)

    def before(self, end: int) -> "Page":
        """Its records below an offset."""
        if not self.records or self.records[-1].offset < end:
            return self
        return Page(records=tuple(record for record in self.records if record.offset < end))

    def troubles(self, asked: int) -> Iterator[str]:
        """Return the faults of the page, for a reader that requested all records from ``asked``."""
        expected = asked
        for record in self.records:
            if record.offset != expected:
                name = "nonmonotonic-poll" if record.offset < expected else "poll-skip"
                yield f"{name}: offset {record.offset} where {expected} should come"
            expected = record.offset + 1
            try:
                identify(record.key, record.value)
            except ForeignValueError:
                # What others wrote before the test began is none of a reader's business.
                continue
            except DamagedValueError as error:
                yield f"corrupt-record: offset {record.offset}: {error}"


def parse_page(page_format: PageFormat, body: bytes, asked: int) -> Page:
    """The records of an answer.

    Raises:
        PageError: it is damaged.
    """
    try:
        if page_format is PageFormat.BATCHES:
            return Page(records=tuple(_in_batches(body, asked)))
        return Page(records=tuple(_in_base64(json.loads(body))))
    except (CorruptBatchError, ValueError, KeyError, TypeError, Base64Error) as error:
        raise PageError(f"the page from offset {asked} is damaged: {error}") from error


def _in_batches(body: bytes, asked: int) -> Iterator[StoredRecord]:
    for offset, _, key, value, _ in records_in(body, asked):
        yield StoredRecord(offset, key, value)


def _in_base64(items: Iterable[dict[str, str | int | None]]) -> Iterator[StoredRecord]:
    for item in items:
        yield StoredRecord(int(item["offset"] or 0), _decoded(item["key"]), _decoded(item["value"]))


def _decoded(text: str | int | None) -> bytes | None:
    return None if text is None else b64decode(str(text), validate=True)
