"""v2: encode receipts as the body of a produce response: one item for each record, in request order."""

from collections.abc import Sequence

import orjson

from http_api.protocol.answers import printable
from http_api.protocol.errors import kafka_code_of, row_of
from milena.model.errors import MilenaError
from milena.model.requests import ProduceReceipt, Receipts

_HEAD = b'{"offsets":'
_TAIL = b',"key_schema_id":null,"value_schema_id":null}'
_ITEM_END = b',"error_code":null,"error":null}'


def encode_receipts(receipts: Sequence[ProduceReceipt]) -> bytes:
    """Return the body.

    Raises:
        MilenaError: every record failed with the same error code.
    """
    if isinstance(receipts, Receipts) and isinstance(receipts.offsets, range):
        return b"".join((_HEAD, _run(receipts.partitions[0], receipts.offsets), _TAIL))
    items, errors = _columns(receipts) if isinstance(receipts, Receipts) else _rows(receipts)
    if len(errors) == len(items) and len({row_of(error) for error in errors}) == 1:
        raise errors[0]
    return _encode_items(items)


def encode_items(receipts: Sequence[ProduceReceipt]) -> bytes:
    """Return the JSON list of items, for records that were all written."""
    if isinstance(receipts, Receipts) and isinstance(receipts.offsets, range):
        return _run(receipts.partitions[0], receipts.offsets)
    items, errors = _columns(receipts) if isinstance(receipts, Receipts) else _rows(receipts)
    assert not errors, errors
    return orjson.dumps(items)


def _encode_items(items: Sequence[dict[str, object]]) -> bytes:
    return orjson.dumps({"offsets": items, "key_schema_id": None, "value_schema_id": None})


def _run(partition: int, offsets: range) -> bytes:
    """Return the items for consecutive offsets.

    The offsets are encoded in one call, and each comma between them is replaced with the text between two items.
    """
    start = b'{"partition":%d,"offset":' % partition
    numbers = orjson.dumps([*offsets])[1:-1].replace(b",", _ITEM_END + b"," + start)
    return b"".join((b"[", start, numbers, _ITEM_END, b"]"))


def _columns(receipts: Receipts) -> tuple[list[dict[str, object]], list[MilenaError]]:
    if receipts.errors:
        return _rows(list(receipts))
    return [
        {"partition": partition, "offset": offset, "error_code": None, "error": None}
        for partition, offset in zip(receipts.partitions, receipts.offsets, strict=True)
    ], []


def _rows(receipts: Sequence[ProduceReceipt]) -> tuple[list[dict[str, object]], list[MilenaError]]:
    items = [receipt_json(receipt) for receipt in receipts]
    return items, [receipt.error for receipt in receipts if receipt.error is not None]


def receipt_json(receipt: ProduceReceipt) -> dict[str, object]:
    """Return one record's item. An error is in ``error`` and ``message``, because clients read either."""
    item: dict[str, object] = {
        "partition": None if receipt.partition < 0 else receipt.partition,
        "offset": receipt.offset,
        "error_code": None,
        "error": None,
    }
    if receipt.error is not None:
        item["error_code"] = row_of(receipt.error).error_code
        item["kafka_error_code"] = kafka_code_of(receipt.error)
        item["error"] = item["message"] = printable(receipt.error.message)
        item["offset"] = None
    return item
