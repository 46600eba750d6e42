"""Calls about groups travel as release 0.1.0 packed them: nodes of both understand each other during an upgrade."""

import pytest

from http_api.ports.groups import Heartbeat, HeartbeatAnswer, by_topic, each_partition
from node.groups import group_messages
from node.groups.group_messages import (
    COMMIT,
    DELETE,
    HEARTBEAT,
    GroupCommitRequest,
    GroupDeleteRequest,
    OffsetRow,
)
from node.peers.messages import CallType, Done, Message
from tests.support.clusters.peer_samples import calls_of, check_samples

TOPIC_ID = "0a5d2f346baa9455e3e70682c2094cac"
BOTH = (("t", (0, 1)), ("u", (0,)))


def heartbeat(member_id: str, epoch: int, **settings: object) -> Heartbeat:
    given: dict[str, object] = {"client_id": "", "host": "", **settings}
    return Heartbeat(
        group_id="gg",
        member_id=member_id,
        member_epoch=epoch,
        **given,  # type: ignore[arg-type]
    )


def answer(
    member_id: str, epoch: int, generation: int, interval_ms: int = 5_000, **partitions: object
) -> HeartbeatAnswer:
    given: dict[str, object] = {"assignment": (), "pending": (), **partitions}
    return HeartbeatAnswer(
        member_id=member_id,
        member_epoch=epoch,
        generation=generation,
        heartbeat_interval_ms=interval_ms,
        **given,  # type: ignore[arg-type]
    )


def offset(partition: int, offset: int, leader_epoch: int = -1, metadata: str = "") -> OffsetRow:
    return OffsetRow(
        topic_id=TOPIC_ID,
        partition=partition,
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=metadata,
    )


SAMPLES: list[tuple[CallType, str, list[Message]]] = [
    (
        HEARTBEAT,
        "request",
        [
            heartbeat("m", 0, client_id="cl", host="h", topics=("t", "u"), owned=()),
            heartbeat("m", 1, owned=BOTH, wait_ms=50),
            heartbeat("m", -1),
            heartbeat(
                "n",
                0,
                instance_id="i",
                pattern="t.*",
                assignor="range",
                session_timeout_ms=9_000,
                rebalance_timeout_ms=7_000,
            ),
        ],
    ),
    (
        HEARTBEAT,
        "answer",
        [
            answer("m", 1, 1, assignment=BOTH),
            answer("m", 1, 2, assignment=(("t", (0,)), ("u", (0,)))),
            answer("m", -1, 3),
            answer("n", 2, 2, 3_000, pending=(("t", (1,)),)),
            answer("n", -1, 3),
        ],
    ),
    (
        COMMIT,
        "request",
        [
            GroupCommitRequest(
                group_id="gg",
                member_id="m",
                member_epoch=1,
                offsets=(offset(0, 3, 2, "x"), offset(1, 4)),
            ),
            GroupCommitRequest(
                group_id="gg", member_id=None, member_epoch=-1, offsets=(offset(0, 3),)
            ),
        ],
    ),
    (COMMIT, "answer", [Done()]),
    (DELETE, "request", [GroupDeleteRequest(group_id="gg")]),
    (DELETE, "answer", [Done()]),
]


@pytest.mark.parametrize(
    ("call", "side", "messages"), SAMPLES, ids=[f"{call.name}-{side}" for call, side, _ in SAMPLES]
)
def test_a_message_is_packed_as_in_the_release_before(
    call: CallType, side: str, messages: list[Message]
) -> None:
    check_samples(call, side, messages)


def test_every_call_has_samples() -> None:
    sampled = {(call.name, side) for call, side, _ in SAMPLES}
    names = calls_of(group_messages)
    assert sampled == {(name, side) for name in names for side in ("request", "answer")}


def test_a_topics_name_travels_once() -> None:
    pairs = [("t", 3), ("u", 0), ("t", 1)]
    assert by_topic(pairs) == (("t", (3, 1)), ("u", (0,)))
    assert each_partition(by_topic(pairs)) == [("t", 3), ("t", 1), ("u", 0)]
