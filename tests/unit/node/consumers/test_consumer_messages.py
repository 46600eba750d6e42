"""REST consumers' calls travel as release 0.1.0 packed them: nodes of both understand each other during an upgrade."""

import pytest

from http_api.ports.groups import OffsetToCommit, PartitionCommit, Reset, Seek
from node.consumers import consumer_messages
from node.consumers.consumer_messages import (
    ACKNOWLEDGE,
    ASSIGN,
    COMMIT,
    COMMITTED,
    CREATE,
    DELETE,
    RECORDS,
    RETURNED,
    SEEK,
    SUBSCRIBE,
    TAIL,
    TAKE_BACK,
    TOKEN_RECORDS,
    VIEW,
    ConsumerAcknowledgeRequest,
    ConsumerAssignRequest,
    ConsumerCommitRequest,
    ConsumerCommittedAnswer,
    ConsumerCommittedRequest,
    ConsumerCreateRequest,
    ConsumerDeleteRequest,
    ConsumerRecordsAnswer,
    ConsumerRecordsRequest,
    ConsumerSeekRequest,
    ConsumerSubscribeRequest,
    ConsumerTakeBackRequest,
    ConsumerTokenRecordsRequest,
    ConsumerViewAnswer,
    ConsumerViewRequest,
    DeliveryRow,
    ReturnedAnswer,
    ReturnedRequest,
    TailAnswer,
    TailRequest,
)
from node.peers.messages import Blob, CallType, Done, Message
from tests.support.clusters.peer_samples import calls_of, check_samples, samples_of

TOPIC_ID = "5ba91faf7a024204f7c1bd874da5e709"
NAMES = {"group_id": "g", "instance": "c"}
CLIENT = {**NAMES, "asked_node_id": 2}
BOTH = (("t", (0, 1)), ("u", (0,)))


def created(**settings: object) -> ConsumerCreateRequest:
    given: dict[str, object] = {
        **NAMES,
        "is_drawn": False,
        "format": "json",
        "auto_offset_reset": "earliest",
        "is_auto_commit": False,
        "fetch_min_bytes": 1,
        "request_timeout_ms": 1_000,
        **settings,
    }
    return ConsumerCreateRequest(**given)  # type: ignore[arg-type]


def committed(partition: int, leader_epoch: int, metadata: str) -> PartitionCommit:
    return PartitionCommit(
        topic="t",
        partition=partition,
        offset=1,
        leader_epoch=leader_epoch,
        metadata=metadata,
        commit_ms=1_700_001_000_430,
    )


def subscribed(topics: tuple[str, ...]) -> ConsumerSubscribeRequest:
    return ConsumerSubscribeRequest(**CLIENT, topics=topics)  # type: ignore[arg-type]


SAMPLES: list[tuple[CallType, str, list[Message]]] = [
    (
        CREATE,
        "request",
        [
            created(),
            created(
                instance="rest-consumer-e443df789558867f",
                is_drawn=True,
                auto_offset_reset="none",
                is_auto_commit=True,
                fetch_min_bytes=-1,
            ),
        ],
    ),
    (CREATE, "answer", [Done()]),
    (DELETE, "request", [ConsumerDeleteRequest(**CLIENT)]),
    (DELETE, "answer", [Done()]),
    (SUBSCRIBE, "request", [subscribed(()), subscribed(("t", "u"))]),
    (SUBSCRIBE, "answer", [Done()]),
    (
        ASSIGN,
        "request",
        [ConsumerAssignRequest(**CLIENT, partitions=(("t", (1, 0)), ("u", (0,))))],
    ),
    (ASSIGN, "answer", [Done()]),
    (VIEW, "request", [ConsumerViewRequest(**CLIENT)]),
    (VIEW, "answer", [ConsumerViewAnswer(topics=("t", "u"), partitions=BOTH)]),
    (
        SEEK,
        "request",
        [
            ConsumerSeekRequest(
                **CLIENT,
                seeks=(
                    Seek(topic="t", partition=0, offset=1),
                    Seek(topic="t", partition=1, name=Reset.EARLIEST),
                    Seek(topic="u", partition=0, timestamp_ms=5),
                ),
            )
        ],
    ),
    (SEEK, "answer", [Done()]),
    (
        RECORDS,
        "request",
        [
            ConsumerRecordsRequest(**NAMES, call_id="2.2.1", wait_ms=1_000),
            ConsumerRecordsRequest(**NAMES, call_id="2.2.2", max_bytes=1),
        ],
    ),
    *(
        (
            call,
            "answer",
            [
                ConsumerRecordsAnswer(
                    format="json",
                    deliveries=(
                        DeliveryRow(
                            topic="t",
                            partition=0,
                            start_offset=0,
                            end_offset=2,
                            batches=Blob(samples_of("consumer_records", "answer")[0][1]),
                        ),
                    ),
                )
            ],
        )
        for call in (RECORDS, TOKEN_RECORDS)
    ),
    (
        TOKEN_RECORDS,
        "request",
        [ConsumerTokenRecordsRequest(**NAMES, wait_ms=5, call_id="2.2.1", token="t")],
    ),
    (ACKNOWLEDGE, "request", [ConsumerAcknowledgeRequest(**NAMES, token="t")]),
    (ACKNOWLEDGE, "answer", [Done()]),
    (TAKE_BACK, "request", [ConsumerTakeBackRequest(**NAMES, call_id="2.2.2")]),
    (TAKE_BACK, "answer", [Done()]),
    (
        COMMIT,
        "request",
        [
            ConsumerCommitRequest(
                **CLIENT,
                offsets=(
                    OffsetToCommit(topic="t", partition=0, offset=1, leader_epoch=1, metadata="mé"),
                ),
            ),
            ConsumerCommitRequest(**CLIENT, offsets=None),
        ],
    ),
    (COMMIT, "answer", [Done()]),
    (COMMITTED, "request", [ConsumerCommittedRequest(**CLIENT, partitions=BOTH)]),
    (
        COMMITTED,
        "answer",
        [ConsumerCommittedAnswer(offsets=(committed(0, 1, "mé"), committed(1, 0, "")))],
    ),
    (RETURNED, "request", [ReturnedRequest(**NAMES, call_id="2.2.1")]),
    (RETURNED, "answer", [ReturnedAnswer(has_returned=True)]),
    (
        TAIL,
        "request",
        [TailRequest(topic_id=TOPIC_ID, partition=0, offset=0, wait_ms=30_000)],
    ),
    (TAIL, "answer", [TailAnswer(high_watermark=1)]),
]


@pytest.mark.parametrize(
    ("call", "side", "messages"), SAMPLES, ids=[f"{call.name}-{side}" for call, side, _ in SAMPLES]
)
def test_a_message_is_packed_as_it_was_at_first(
    call: CallType, side: str, messages: list[Message]
) -> None:
    check_samples(call, side, messages)


def test_every_call_has_samples() -> None:
    sampled = {(call.name, side) for call, side, _ in SAMPLES}
    names = calls_of(consumer_messages)
    assert sampled == {(name, side) for name in names for side in ("request", "answer")}
