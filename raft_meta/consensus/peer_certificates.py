"""Reads the node ids in a peer's certificate, from its subject alternative names."""

import re
from collections.abc import Mapping
from typing import Final, cast

_ID_NAMES: Final = {
    "DNS": re.compile(r"node-([1-9][0-9]{0,8})"),
    "URI": re.compile(r"milena:node:([1-9][0-9]{0,8})"),
}


def certified_ids(shown: object) -> frozenset[int]:
    """Return the node ids in a verified certificate: alternative names DNS ``node-ID`` or URI ``milena:node:ID``.

    ``shown``: the result of ``SSLSocket.getpeercert``. Empty if there is no certificate or no such name.
    """
    if not isinstance(shown, Mapping):
        return frozenset()
    names = cast("tuple[tuple[str, str], ...]", shown.get("subjectAltName", ()))
    found = (_ID_NAMES[kind].fullmatch(name) for kind, name in names if kind in _ID_NAMES)
    return frozenset(int(match[1]) for match in found if match is not None)
