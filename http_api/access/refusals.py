"""Callers that were turned away, counted until the audit log is told of them. Pure; belongs to the event loop.

One row stands for all alike. Known principals have a bounded number of rows, and strangers have as many. All others are
only counted, so a stranger that comes a million times in a million ways fills nothing.
"""

import base64
import binascii
from typing import NamedTuple

ROWS_MAX = 20
"""Of known principals in one entry of the audit log, and as many of strangers."""
WHAT_LENGTH_MAX = 200


class Refusal(NamedTuple):
    """What one row is about. ``principal`` is empty where it is not known who called."""

    principal: str
    address: str
    what: str


class Refusals:
    """Those of one node since they were last taken."""

    def __init__(self) -> None:
        self._known: dict[Refusal, int] = {}
        self._strangers: dict[Refusal, int] = {}
        self._others = 0

    def add(self, principal: str, address: str, what: str) -> None:
        """One more."""
        rows = self._known if principal else self._strangers
        refusal = Refusal(principal, address, what[:WHAT_LENGTH_MAX])
        if refusal in rows or len(rows) < ROWS_MAX:
            rows[refusal] = rows.get(refusal, 0) + 1
        else:
            self._others += 1

    def take(self) -> dict[str, object] | None:
        """All of them, as the audit log has them; None: there were none."""
        rows = [*self._known.items(), *self._strangers.items()]
        if not rows:
            return None
        taken: dict[str, object] = {
            "refusals": [
                {
                    "principal": refusal.principal or None,
                    "address": refusal.address,
                    "what": refusal.what,
                    "count": count,
                }
                for refusal, count in rows
            ],
            "others": self._others,
        }
        self._known, self._strangers, self._others = {}, {}, 0
        return taken


def name_in(authorization: str) -> str:
    """The user whose password a header says that it has; empty: it says no such thing."""
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(given.strip(), validate=True).decode().partition(":")[0]
    except (binascii.Error, ValueError):
        return ""
