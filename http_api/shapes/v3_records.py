"""v3: records of a request, and their receipts."""

from http_api.shapes.blocks import (
    Json,
    Optional,
    answer,
    anything,
    choice,
    count,
    integer,
    listing,
    nothing,
    nullable,
    optionals,
    request,
    text,
)
from http_api.shapes.requests import RECORD_HEADER, TIME

_NO_SCHEMA = nothing("there is no schema registry")
DATA = request(
    "RecordDataIn",
    type=choice("BINARY", "JSON", "STRING", description="BINARY: `data` is base64"),
    data=Optional(anything("null or absent: none")),
    **optionals(
        dict.fromkeys(
            ("subject", "subject_name_strategy", "schema_id", "schema_version", "schema"),
            _NO_SCHEMA,
        )
    ),
)
_RECORD_FIELDS = {
    "partition_id": nullable(count("absent: by the key's hash, or in turn")),
    "key": nullable(DATA),
    "value": nullable(DATA),
    "headers": nullable(listing(RECORD_HEADER)),
    "timestamp": TIME,
}
_RECORD_EXAMPLE: dict[str, Json] = {
    "key": {"type": "STRING", "data": "u1"},
    "value": {"type": "JSON", "data": {"item": "tea"}},
}
RECORD = request("V3RecordIn", _RECORD_EXAMPLE, **optionals(_RECORD_FIELDS))
_ENTRY = request(
    "V3EntryIn",
    id=text("names the record in the answer: 1 to 80 letters, digits, `-` or `_`"),
    **optionals(_RECORD_FIELDS),
)
BATCH = request("V3BatchIn", {"entries": [{"id": "1", **_RECORD_EXAMPLE}]}, entries=listing(_ENTRY))
_SIZED = nullable(answer("RecordDataReceipt", type=text(), size=count("bytes as stored")))
_PLACE = {
    "cluster_id": text(),
    "topic_name": text(),
    "partition_id": count(),
    "offset": nullable(count("null: acks=0")),
    "timestamp": nullable(
        text(
            "as readers see it; null: not known, as of acks=0 under LogAppendTime",
            format="date-time",
        )
    ),
    "key": _SIZED,
    "value": _SIZED,
}
RECEIPT = answer(
    "V3Receipt",
    error_code=integer("200: the record was taken"),
    message=Optional(text("when it was not")),
    **optionals(_PLACE),
)
BATCH_RECEIPTS = answer(
    "V3BatchReceipts",
    successes=listing(answer("V3EntryReceipt", id=text(), **_PLACE)),
    failures=listing(answer("V3EntryFailure", id=text(), error_code=integer(), message=text())),
)
