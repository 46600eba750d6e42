"""Compare the response of a read with the model."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.judge.model import UID, Fate, Model, Partition, Seen, Sent, Shown

if TYPE_CHECKING:
    from tests.judge.rules import Verdicts


@dataclass(frozen=True)
class Row:
    """A record as a format shows it; a field is None if the format does not have it."""

    offset: int
    key: Shown
    value: Shown
    headers: tuple[tuple[str, bytes], ...] | None = None
    timestamp: int | None = None


@dataclass
class Read:
    """One response about one partition.

    `start` is the first offset that was requested. If `is_whole`, the response must reach the end of the partition;
    otherwise it may stop anywhere after its first record.
    """

    partition: Partition
    path: str
    start: int
    rows: list[Row]
    began: float
    ended: float
    is_whole: bool = False
    next_offset: int | None = None
    is_uncommitted: bool = False
    rule: str = "J-read-ack"  # what is broken if the answer ends too early


@dataclass
class Checker:
    """Checks the responses of reads at once."""

    model: Model
    verdicts: Verdicts

    def read(self, read: Read) -> None:
        """Check a read: each record, the order, and missing records."""
        with self.model.lock:
            for row in read.rows:
                self.row(read, row)
            offsets = [row.offset for row in read.rows]
            rising = all(a < b for a, b in itertools.pairwise(offsets))
            self.verdicts.check("J-order", rising, read.path, "rising offsets", offsets)
            least = min(offsets, default=read.start)
            self.verdicts.check(
                "J-order", least >= read.start, read.path, f"offsets from {read.start}", offsets[:5]
            )
            self._missing(read, set(offsets))

    def _missing(self, read: Read, shown: set[int]) -> None:
        must = read.partition.must_show(
            read.began, read.ended, read.start, uncommitted=read.is_uncommitted
        )
        last = max(shown, default=read.start - 1)
        if read.next_offset is not None:
            last = max(last, read.next_offset - 1)
        left_out = [offset for offset in must if offset <= last and offset not in shown]
        where = f"{read.path} {read.partition.name} from {read.start}"
        self.verdicts.check(
            "J-gap",
            not left_out,
            where,
            "no record left out",
            f"without {left_out[:9]}, last {last}",
        )
        behind = [offset for offset in must if offset > last]
        is_stale = bool(behind) and (read.is_whole or not shown)
        self.verdicts.check(
            read.rule,
            not is_stale,
            where,
            f"records acknowledged before, up to {must[-1] if must else None}",
            f"up to {last}",
        )

    def row(self, read: Read, row: Row) -> None:
        """Check one record."""
        check, part = self.verdicts.check, read.partition
        where = f"{read.path} {part.name}@{row.offset}"
        found = UID.search(row.value.text()) or UID.search(row.key.text())
        sent = self.model.sent.get(int(found.group(1))) if found else None
        if sent is None:
            known = part.acked.get(row.offset)
            rule = "J-value" if known else "J-phantom"
            expected = (
                f"{known.key} {known.value} by {known.path}"
                if known
                else "a record that a client sent"
            )
            check(rule, False, where, expected, f"{row.key} {row.value}")
            return
        if sent.topic is not part.topic or sent.partition not in (None, part.number):
            rule = (
                "J-successor"
                if sent.topic.name == part.topic.name and sent.topic is not part.topic
                else "J-phantom"
            )
            part.is_doubled = True
            expected = f"sent to {sent.topic.name}-{sent.partition} by {sent.path}"
            check(rule, False, where, expected, f"{row.value}")
            return
        check(
            "J-refused",
            sent.fate is not Fate.REFUSED or sent.transaction is not None,
            where,
            f"w{sent.uid}x refused ({sent.path})",
            "shown",
        )
        self._identity(read, row, sent, where)
        self._visibility(read, row, sent, where)
        self.model.appeared(sent, part, row.offset, read.ended)
        is_exact = sent.key.allows(row.key) and sent.value.allows(row.value)
        check(
            "J-value",
            is_exact,
            where,
            f"{sent.key} {sent.value} by {sent.path}",
            f"{row.key} {row.value}",
        )
        if row.headers is not None:
            check(
                "J-value",
                row.headers == sent.headers,
                where,
                f"headers {sent.headers} by {sent.path}",
                row.headers,
            )
        if row.timestamp is not None and sent.timestamp is not None:
            check(
                "J-value",
                row.timestamp == sent.timestamp,
                where,
                f"time {sent.timestamp} by {sent.path}",
                row.timestamp,
            )

    def _identity(self, read: Read, row: Row, sent: Sent, where: str) -> None:
        part, check = read.partition, self.verdicts.check
        # A transaction of one request may take several tries. A reader who asks for it also sees the aborted ones.
        may_be_aborted = (
            read.is_uncommitted and sent.transaction is not None and "tx-one" in sent.path
        )
        if not may_be_aborted:
            place = part.uids.setdefault(sent.uid, row.offset)
            part.is_doubled = part.is_doubled or place != row.offset
            check(
                "J-once",
                place == row.offset,
                where,
                f"w{sent.uid}x at {place} only ({sent.path})",
                row.offset,
            )
        acked = part.acked.get(row.offset, sent)
        check(
            "J-stable", acked is sent, where, f"w{acked.uid}x, acknowledged here", f"w{sent.uid}x"
        )
        seen = part.seen.setdefault(
            row.offset, Seen(sent.uid, row.key, row.value, row.timestamp, read.ended, read.path)
        )
        check(
            "J-stable",
            seen.uid == sent.uid,
            where,
            f"w{seen.uid}x, read here by {seen.path}",
            f"w{sent.uid}x",
        )

    def _visibility(self, read: Read, row: Row, sent: Sent, where: str) -> None:
        sure, _ = read.partition.start_range(read.began, read.ended)
        self.verdicts.check(
            "J-deleted", row.offset >= sure, where, f"nothing below {sure}", f"w{sent.uid}x"
        )
        tx = sent.transaction
        if tx is None or read.is_uncommitted:
            return
        may = tx.fate is not Fate.REFUSED and tx.may_show <= read.ended
        self.verdicts.check(
            "J-tx-isolation",
            may,
            where,
            f"nothing of transaction {tx.name} ({tx.fate.value})",
            f"w{sent.uid}x",
        )
