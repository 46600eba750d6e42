"""A page of records from a fetch, in either format, and the rules that any page must keep (pure)."""

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
    """A record as it is in the log."""

    offset: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The records of one response, from the requested offset."""

    records: tuple[StoredRecord, ...]

    @property
    def offsets(self) -> tuple[int, ...]:
        """Return the offsets of the records, in the order of the response."""
        return tuple(record.offset for record in self.records)

    @property
    def fingerprints(self) -> bytes:
        """Return the fingerprint of each record, joined."""
        return b"".join(fingerprint(r.key, r.value or b"") for r in self.records)

    @property
    def value_bytes(self) -> int:
        """Return the size of all values."""
        return sum(len(record.value or b"") for record in self.records)

    def before(self, end: int) -> "Page":
        """Return a page with only the records below an offset."""
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
                # Records from before the test are not checked: other programs wrote them.
                continue
            except DamagedValueError as error:
                yield f"corrupt-record: offset {record.offset}: {error}"


def parse_page(page_format: PageFormat, body: bytes, asked: int) -> Page:
    """Return the records of a response.

    Raises:
        PageError: the response is damaged.
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
