"""Entries about changes as JSON, for the audit topic and for lines of a file, and what of it is read again (pure)."""

import orjson

from raft_meta.machine.image import AuditEntry


def as_json(entry: AuditEntry) -> bytes:
    """One entry, without a line's end."""
    return orjson.dumps(
        {
            "number": entry.number,
            "index": entry.index,
            "time_ms": entry.time_ms,
            "principal": entry.principal or None,
            "node_id": entry.node_id,
            "action": entry.action,
            # It is JSON already.
            "change": orjson.Fragment(entry.change),
        }
    )


def number_in(value: bytes | None) -> int:
    """The number in a record of the audit topic; 0: it is none."""
    try:
        found = orjson.loads(value or b"")
    except orjson.JSONDecodeError:
        return 0
    number = found.get("number") if isinstance(found, dict) else None
    return number if isinstance(number, int) else 0
