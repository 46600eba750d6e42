"""Receipts: the fate of each record of a produce request, from its response (pure).

A record has one of three fates: acknowledged; refused, which promises that it was not written; or unknown. A temporary
refusal is worth a retry; a refusal that blames the request is not.
"""

import json
from dataclasses import dataclass
from enum import IntEnum, unique
from typing import NamedTuple


@unique
class Fate(IntEnum):
    """Fate of a record, as its writer knows it. The numbers are in ledgers."""

    UNKNOWN = 0
    ACKNOWLEDGED = 1
    REFUSED = 2
    """The cluster says that the record was not written."""


class RecordReceipt(NamedTuple):
    """The fate of one record. ``offset`` is -1 if the record is not acknowledged, or with ``acks=0``."""

    fate: Fate
    partition: int = -1
    offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceAnswer:
    """The response to a request. ``trouble`` is empty if every record was acknowledged."""

    receipts: tuple[RecordReceipt, ...]
    trouble: str = ""
    is_final: bool = False
    """Whether the request itself is wrong, so that a repetition would fail as well."""
    is_unsent: bool = False
    """Whether the request reached no node."""


def unanswered(count: int, reason: str, *, is_sent: bool) -> ProduceAnswer:
    """No response arrived. A request that was not sent wrote nothing."""
    fate = Fate.UNKNOWN if is_sent else Fate.REFUSED
    return ProduceAnswer(
        receipts=(RecordReceipt(fate),) * count, trouble=reason, is_unsent=not is_sent
    )


def parse_answer(status: int, body: bytes, count: int) -> ProduceAnswer:
    """Return the fates in the response to a request of ``count`` records."""
    if status != 200:
        trouble = f"HTTP {status} {body[:200].decode(errors='replace')}"
        return ProduceAnswer(
            receipts=(RecordReceipt(_fate_of(status)),) * count,
            trouble=trouble,
            is_final=_is_final(status),
        )
    try:
        items = json.loads(body)["offsets"]
        receipts = tuple(map(_receipt, items))
    except (ValueError, KeyError, TypeError, AttributeError):
        return unanswered(count, f"not a list of receipts: {body[:200]!r}", is_sent=True)
    if len(receipts) != count:
        return unanswered(count, f"{len(receipts)} receipts for {count} records", is_sent=True)
    failed = next((i for i in items if i.get("error_code") is not None), None)
    if failed is None:
        return ProduceAnswer(receipts=receipts)
    return ProduceAnswer(
        receipts=receipts,
        trouble=f"{failed['error_code']} {failed.get('error')}",
        is_final=any(_is_final(_status_of(i["error_code"])) for i in items if i.get("error_code")),
    )


def _receipt(item: dict[str, int | None]) -> RecordReceipt:
    code = item.get("error_code")
    if code is not None:
        return RecordReceipt(_fate_of(_status_of(code)))
    partition, offset = item["partition"], item.get("offset")
    if partition is None:
        raise KeyError("partition")
    return RecordReceipt(Fate.ACKNOWLEDGED, partition, -1 if offset is None else offset)


def _status_of(code: int) -> int:
    """Return the HTTP status of an error code: its first three digits."""
    return int(str(code)[:3])


def _fate_of(status: int) -> Fate:
    """Return the fate: status 503 and all that blame the request promise that nothing was written."""
    return Fate.REFUSED if 400 <= status < 500 or status == 503 else Fate.UNKNOWN


def _is_final(status: int) -> bool:
    return 400 <= status < 500 and status not in (408, 429)
