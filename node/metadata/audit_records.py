"""Writes audit entries as JSON, for the audit topic and for the lines of a file, and reads their numbers. Pure."""

import orjson

from raft_meta.machine.image import AuditEntry


def as_json(entry: AuditEntry) -> bytes:
    """Return an entry as JSON, without a line end."""
    return orjson.dumps(
        {
            "number": entry.number,
            "index": entry.index,
            "time_ms": entry.time_ms,
            "principal": entry.principal or None,
            "node_id": entry.node_id,
            "action": entry.action,
            # ``change`` is JSON already.
            "change": orjson.Fragment(entry.change),
        }
    )


def number_in(value: bytes | None) -> int:
    """Return the entry's number in a record of the audit topic; 0 if the record is not an entry."""
    try:
        found = orjson.loads(value or b"")
    except orjson.JSONDecodeError:
        return 0
    number = found.get("number") if isinstance(found, dict) else None
    return number if isinstance(number, int) else 0
