"""v3: records of a request, and their receipts."""

from http_api.shapes.blocks import (
    Json,
    Shape,
    anything,
    choice,
    count,
    fields,
    integer,
    listing,
    nothing,
    nullable,
    text,
)
from http_api.shapes.requests import RECORD_HEADER, TIME

_NO_SCHEMA = nothing("there is no schema registry")
DATA = Shape(
    "RecordDataIn",
    fields(
        {
            "type": choice("BINARY", "JSON", "STRING", description="BINARY: `data` is base64"),
        },
        {
            "data": anything("null or absent: none"),
            **dict.fromkeys(
                ("subject", "subject_name_strategy", "schema_id", "schema_version", "schema"),
                _NO_SCHEMA,
            ),
        },
        is_closed=True,
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
RECORD = Shape("V3RecordIn", fields({}, _RECORD_FIELDS, is_closed=True), _RECORD_EXAMPLE)
_ENTRY = Shape(
    "V3EntryIn",
    fields(
        {"id": text("names the record in the answer: 1 to 80 letters, digits, `-` or `_`")},
        _RECORD_FIELDS,
        is_closed=True,
    ),
)
BATCH = Shape(
    "V3BatchIn",
    fields({"entries": listing(_ENTRY)}, {}, is_closed=True),
    {"entries": [{"id": "1", **_RECORD_EXAMPLE}]},
)
_SIZED = nullable(
    Shape("RecordDataReceipt", fields({"type": text(), "size": count("bytes as stored")}))
)
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
RECEIPT = Shape(
    "V3Receipt",
    fields(
        {"error_code": integer("200: the record was taken")},
        {"message": text("when it was not"), **_PLACE},
    ),
)
BATCH_RECEIPTS = Shape(
    "V3BatchReceipts",
    fields(
        {
            "successes": listing(Shape("V3EntryReceipt", fields({"id": text(), **_PLACE}))),
            "failures": listing(
                Shape(
                    "V3EntryFailure",
                    fields({"id": text(), "error_code": integer(), "message": text()}),
                )
            ),
        }
    ),
)
