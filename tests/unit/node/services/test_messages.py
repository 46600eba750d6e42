"""Nodes of the release before understand these messages: names, order and kinds on the wire are what they were."""

import msgpack
import pytest

from milena.model.errors import MalformedRequestError
from node.peers.messages import Blob, Message, pack, unpack
from node.services.messages import (
    AppendBatchAnswer,
    AppendBatchRequest,
    AppendIfAnswer,
    AppendIfRequest,
    BusyRow,
    DeleteRecordsAnswer,
    DeleteRecordsRequest,
    ExtentRow,
    HistoryAnswer,
    HistoryRequest,
    KeyedTransactionAnswer,
    KeyedTransactionRequest,
    MovesAnswer,
    MovesRequest,
    OpenTransactionAnswer,
    OpenTransactionRequest,
    OpenTransactionRow,
    OpenTransactionsAnswer,
    OpenTransactionsRequest,
    PlaceRow,
    ReadAnswer,
    ReadRequest,
    ReplicaProgress,
    SequenceRow,
    SequencesAnswer,
    SequencesRequest,
    SizesAnswer,
    SizesRequest,
)

ON_THE_WIRE = [
    (
        AppendBatchRequest(topic_id="t1", partition=2, leader_epoch=3, acks=-1, timeout_ms=500),
        {"topic": "t1", "partition": 2, "epoch": 3, "acks": -1, "timeout_ms": 500},
    ),
    (
        AppendBatchAnswer(base_offset=7, last_offset=9, is_duplicate=True, append_time_ms=5),
        {"base": 7, "last": 9, "dup": True, "time": 5},
    ),
    (
        AppendIfRequest(
            topic_id="t1", partition=2, leader_epoch=3, acks=1, timeout_ms=500, expected_end=42
        ),
        {"topic": "t1", "partition": 2, "epoch": 3, "acks": 1, "timeout_ms": 500, "if": 42},
    ),
    (
        AppendIfAnswer(base_offset=-1, last_offset=-1, is_duplicate=False, end_offset=43),
        {"base": -1, "last": -1, "dup": False, "time": -1, "end": 43},
    ),
    (
        ReadRequest(
            topic_id="t1",
            partition=2,
            offset="latest",
            timestamp_ms=None,
            max_bytes=100,
            timeout_ms=500,
            leader_epoch=3,
        ),
        {
            "topic": "t1",
            "partition": 2,
            "offset": "latest",
            "timestamp": None,
            "max_bytes": 100,
            "timeout_ms": 500,
            "epoch": 3,
            "bad": False,
            "raw": False,
            "unconfirmed": False,
            "last": False,
        },
    ),
    (
        ReadAnswer(start_offset=7, readable_end=9, log_start_offset=1, leader_epoch=3),
        {
            "start": 7,
            "hw": 9,
            "log_start": 1,
            "epoch": 3,
            "last": -1,
            "committed": -1,
            "stable": -1,
        },
    ),
    (
        DeleteRecordsRequest(
            topic_id="t1", partition=2, before=None, leader_epoch=3, timeout_ms=500
        ),
        {"topic": "t1", "partition": 2, "before": None, "epoch": 3, "timeout_ms": 500},
    ),
    (DeleteRecordsAnswer(log_start_offset=17), {"start": 17}),
    (SequencesRequest(producer_id=5, producer_epoch=1), {"id": 5, "epoch": 1}),
    (
        SequencesRequest(producer_id=5, producer_epoch=1, wants_rows=False),
        {"id": 5, "epoch": 1, "rows": False},
    ),
    (SequencesAnswer(rows=(SequenceRow("orders", 0, 9),)), {"rows": [["orders", 0, 9]]}),
    (
        OpenTransactionRequest(
            topic_id="t1", partition=2, leader_epoch=3, producer_id=5, producer_epoch=1
        ),
        {"topic": "t1", "partition": 2, "epoch": 3, "id": 5, "producer_epoch": 1},
    ),
    (OpenTransactionAnswer(end_offset=7, records=2), {"end": 7, "records": 2}),
    (
        KeyedTransactionRequest(
            topic_id="t1", partition=2, leader_epoch=3, partition_count=4, key_hash=b"k"
        ),
        {"topic": "t1", "partition": 2, "epoch": 3, "partitions": 4, "key": "aw=="},
    ),
    (
        KeyedTransactionAnswer(
            partition_count=3,
            producer_id=5,
            producer_epoch=1,
            is_committed=True,
            extents=(ExtentRow("t1", 2, 7, 9),),
            places=(PlaceRow(0, 1, 2),),
        ),
        {
            "partitions": 3,
            "id": 5,
            "producer_epoch": 1,
            "committed": True,
            "extents": [["t1", 2, 7, 9]],
            "places": [[0, 1, 2]],
        },
    ),
    (OpenTransactionsRequest(), {}),
    (
        OpenTransactionsAnswer(rows=(OpenTransactionRow("t1", 2, 5, 1, 7, 2, 1000, 30_000),)),
        {"rows": [["t1", 2, 5, 1, 7, 2, 1000, 30_000]]},
    ),
    (MovesRequest(), {}),
    (
        MovesAnswer(
            rows=(
                ReplicaProgress(
                    topic_id="t1", partition=2, broker_id=3, offsets_left=4, bytes_left=5
                ),
            )
        ),
        {"rows": [["t1", 2, 3, 4, 5]]},
    ),
    (HistoryRequest(topic_id="t1"), {"topic": "t1", "group": ""}),
    (SizesRequest(topic_ids=("t1",)), {"topics": ["t1"], "by_partition": False}),
    (SizesAnswer(sizes={"t1": 7}), {"sizes": {"t1": 7}}),
]


@pytest.mark.parametrize(("message", "fields"), ON_THE_WIRE, ids=lambda value: type(value).__name__)
def test_a_message_looks_as_it_always_did(message: Message, fields: dict[str, object]) -> None:
    packed, body = pack(message)
    travelled = msgpack.unpackb(msgpack.packb(packed))
    assert travelled == fields
    assert not body
    assert unpack(type(message), travelled) == message


def test_an_hours_numbers_travel_behind_the_fields() -> None:
    answer = HistoryAnswer(
        end_slot=7, names=("lag",), values=Blob(b"1234"), busiest=(BusyRow("t1", 2, 1.5, 2, 3, 4),)
    )
    fields, chunks = pack(answer)
    travelled = msgpack.unpackb(msgpack.packb(fields))
    assert travelled == {
        "end": 7,
        "names": ["lag"],
        "values": 4,
        "busy": [["t1", 2, 1.5, 2, 3, 4]],
        "left_out": 0,
        "version": "",
    }
    assert unpack(HistoryAnswer, travelled, b"".join(chunks)) == answer


def test_a_busy_partition_of_the_release_before_has_no_records_out() -> None:
    earlier = {"end": 7, "names": [], "values": 0, "busy": [["t1", 2, 1.5, 2, 3]], "left_out": 0}
    answer = unpack(HistoryAnswer, earlier)
    assert answer.busiest == (BusyRow("t1", 2, 1.5, 2, 3, 0),)
    assert answer.version == ""


def test_a_read_of_the_release_before_doubts_nothing() -> None:
    earlier = {
        "topic": "t1", "partition": 2, "offset": 5, "timestamp": None, "max_bytes": 100,
        "timeout_ms": 500, "epoch": 3,
    }  # fmt: skip
    assert not unpack(ReadRequest, earlier).is_doubted


def test_a_leader_of_the_release_before_does_not_tell_when_it_appended() -> None:
    assert unpack(AppendBatchAnswer, {"base": 7, "last": 9, "dup": False}).append_time_ms == -1


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"topic": "t", "partition": True, "before": None, "epoch": 3, "timeout_ms": 5},
        {"topic": b"t", "partition": 1, "before": None, "epoch": 3, "timeout_ms": 5},
        {"topic": "t", "partition": 1, "before": "3", "epoch": 3, "timeout_ms": 5},
    ],
)
def test_a_message_of_another_shape_is_refused_as_a_whole(fields: dict[str, object]) -> None:
    with pytest.raises(MalformedRequestError, match="DeleteRecordsRequest"):
        unpack(DeleteRecordsRequest, fields)
