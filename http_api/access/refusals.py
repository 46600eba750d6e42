"""Refused requests, counted until they are written to the audit log. Pure; used on the event loop.

Equal refusals share a row. There are at most ``ROWS_MAX`` rows for authenticated principals, and as many for unknown
clients. Further refusals are only counted, so that a client with a million different ones cannot fill the memory.
"""

import base64
import binascii
from collections.abc import Container
from typing import NamedTuple

ROWS_MAX = 20
"""The most rows of authenticated principals in one entry of the audit log, and the most of unknown clients."""
WHAT_LENGTH_MAX = 200


class Refusal(NamedTuple):
    """The key of a row: who was refused, from which address, and for what. ``principal`` is empty if unknown."""

    principal: str
    address: str
    what: str


class Refusals:
    """The refusals of one node since they were last taken."""

    def __init__(self) -> None:
        self._known: dict[Refusal, int] = {}
        self._strangers: dict[Refusal, int] = {}
        self._others = 0

    def add(self, principal: str, address: str, what: str) -> None:
        """Count a refusal."""
        rows = self._known if principal else self._strangers
        refusal = Refusal(principal, address, what[:WHAT_LENGTH_MAX])
        if refusal in rows or len(rows) < ROWS_MAX:
            rows[refusal] = rows.get(refusal, 0) + 1
        else:
            self._others += 1

    def add_stranger(self, address: str, name: str, what: str, users: Container[str]) -> None:
        """Count a failed authentication, with the name in the credentials if it is one of the ``users``."""
        self.add("", address, what + (f" (user {name})" if name in users else ""))

    def take(self) -> dict[str, object] | None:
        """Return all refusals as an entry of the audit log, and forget them; None if there are none."""
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
    """Return the user name in an ``Authorization`` header of type Basic; empty without one."""
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(given.strip(), validate=True).decode().partition(":")[0]
    except (binascii.Error, ValueError):
        return ""
