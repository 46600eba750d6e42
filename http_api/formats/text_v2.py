"""Records as kafka text v2: keys and values are JSON strings, stored as their bare text in UTF-8.

``null`` and an absent field mean no value (a tombstone). Source: Strimzi's bridge, its embedded format "text".
"""

from collections.abc import Sequence
from typing import Any

from http_api.describing.schemas import json_kind
from http_api.formats.envelope import Column
from http_api.formats.rows import Shown, text_json
from http_api.formats.selection import Slice
from milena.model.errors import InvalidRecordError


def decode_items(items: list[Any], field: str, first: int) -> Column:
    """Encode strings to bytes (``ItemsDecoder``).

    Raises:
        InvalidRecordError: an item is not a string.
    """
    try:
        # The JSON parser refuses lone surrogates, so every string can be encoded.
        return [None if item is None else item.encode() for item in items]
    except AttributeError:
        index, wrong = next(
            (i, item) for i, item in enumerate(items, first) if not isinstance(item, str | None)
        )
        raise InvalidRecordError(
            f"records[{index}].{field} must be a string, since the format is text, not {json_kind(wrong)}"
        ) from None


def shown(piece: Slice) -> Shown:
    """Return keys and values as JSON strings, and the records in which one of them is not UTF-8 (``Showing``)."""
    values = _strings(piece.values)
    faults = _faults(piece.values, values)
    if piece.keys is None:
        return None, values, faults
    keys = _strings(piece.keys)
    return keys, values, faults | _faults(piece.keys, keys)


def _strings(column: Sequence[bytes | None]) -> Column:
    return [None if item is None else text_json(item) for item in column]


def _faults(stored: Sequence[bytes | None], shown: Sequence[bytes | None]) -> set[int]:
    """Return the positions of stored items that cannot be shown."""
    pairs = enumerate(zip(stored, shown, strict=True))
    return {index for index, (item, text) in pairs if item is not None and text is None}
