"""Fetch sessions: what is left out of responses, which requests are refused, and how many sessions there are."""

import random

import pytest

from http_api.protocol.kafka_codes import KafkaCode
from milena.model.types import MonotonicMs
from node.kafka.fetch_sessions import (
    EPOCH_MAX,
    EVICTABLE_MS,
    FINAL,
    FULL,
    FetchPlan,
    FetchSessions,
    FetchTopic,
)
from node.kafka.wire.fetch import FetchedPartition, RecordsRow, WireFetch
from node.kafka.wire.primitives import NULL_UUID

ME = ("host", "client")
Numbers = dict[str, list[int]]


def part(number: int, offset: int = 0) -> FetchedPartition:
    return FetchedPartition(number, -1, offset, 1_000)


def named(topics: Numbers, offset: int = 0) -> list[FetchTopic]:
    return [
        (name, NULL_UUID, [part(number, offset) for number in numbers])
        for name, numbers in topics.items()
    ]


def request(
    session_id: int, epoch: int, topics: Numbers, forgotten: Numbers | None = None, offset: int = 0
) -> WireFetch:
    gone = [(name, NULL_UUID, numbers) for name, numbers in (forgotten or {}).items()]
    return WireFetch(0, 1, 1_000, True, session_id, epoch, named(topics, offset), gone)


def plan(
    sessions: FetchSessions,
    session_id: int,
    epoch: int,
    topics: Numbers | None = None,
    forgotten: Numbers | None = None,
    *,
    now_ms: int = 0,
    owner: tuple[str, str] = ME,
    has_ids: bool = False,
    offset: int = 0,
) -> FetchPlan | KafkaCode:
    asked = request(session_id, epoch, topics or {}, forgotten, offset)
    return sessions.plan(asked, has_ids=has_ids, owner=owner, now_ms=MonotonicMs(now_ms))


def opened(sessions: FetchSessions, topics: Numbers, **more: int) -> FetchPlan:
    found = plan(sessions, 0, FULL, topics, **more)  # type: ignore[arg-type]
    assert isinstance(found, FetchPlan)
    return found


def numbers(found: FetchPlan | KafkaCode) -> list[tuple[str, list[int]]]:
    assert isinstance(found, FetchPlan), found
    return [(name, [one.partition for one in parts]) for name, _, parts in found.topics]


def answer(found: FetchPlan | KafkaCode, **ends: int | RecordsRow) -> list[int]:
    """The partitions in the response, if those of topic "t" have these high watermarks, or rows."""
    assert isinstance(found, FetchPlan), found
    rows = []
    for name, topic_id, parts in found.topics:
        of_topic = []
        for one in parts:
            end = ends.get(f"p{one.partition}", 0)
            row = end if isinstance(end, RecordsRow) else RecordsRow(one.partition, 0, end, end, 0)
            of_topic.append(row)
        rows.append((name, topic_id, of_topic))
    return [row.partition for _, _, of_topic in found.told(rows) for row in of_topic]


def test_a_session_knows_the_partitions_of_its_first_request() -> None:
    sessions = FetchSessions()
    first = opened(sessions, {"t": [0, 1], "u": [2]})
    assert first.session_id > 0
    assert answer(first) == [0, 1, 2]
    second = plan(sessions, first.session_id, 1)
    assert numbers(second) == [("t", [0, 1]), ("u", [2])]
    third = plan(sessions, first.session_id, 2, {"u": [3]}, {"t": [0], "none": [7]})
    assert numbers(third) == [("t", [1]), ("u", [2, 3])]
    assert sessions.partition_count == 3


def test_a_partition_is_asked_for_where_the_client_said_last() -> None:
    sessions = FetchSessions()
    first = opened(sessions, {"t": [0, 1]})
    second = plan(sessions, first.session_id, 1, {"t": [0]}, offset=9)
    assert isinstance(second, FetchPlan)
    ((_, _, parts),) = second.topics
    assert [(one.partition, one.offset) for one in parts] == [(0, 9), (1, 0)]


def test_only_news_is_in_a_response() -> None:
    sessions = FetchSessions()
    first = opened(sessions, {"t": [0, 1, 2]})
    assert answer(first, p1=5) == [0, 1, 2]
    key, epoch = first.session_id, iter(range(1, 9))
    assert answer(plan(sessions, key, next(epoch)), p1=5) == []
    assert answer(plan(sessions, key, next(epoch)), p1=6) == [1]
    failed = RecordsRow(2, 6)
    assert answer(plan(sessions, key, next(epoch)), p1=6, p2=failed) == [2]
    # When the error is gone, the partition is told again, although its ends are as before.
    assert answer(plan(sessions, key, next(epoch)), p1=6) == [2]
    elsewhere = RecordsRow(0, 0, 0, 0, 0, preferred=7)
    assert answer(plan(sessions, key, next(epoch)), p1=6, p0=elsewhere) == [0]
    records = RecordsRow(0, 0, 0, 0, 0, pieces=[b"x"])
    assert answer(plan(sessions, key, next(epoch)), p1=6, p0=records) == [0]
    # The one with records is read last now.
    assert numbers(plan(sessions, key, next(epoch))) == [("t", [1, 2, 0])]


@pytest.mark.parametrize("epoch", [0, 2, 3, -2, EPOCH_MAX])
def test_an_epoch_that_is_not_due_is_refused_and_the_session_stays(epoch: int) -> None:
    sessions = FetchSessions()
    first = opened(sessions, {"t": [0]})
    if epoch:
        refused = plan(sessions, first.session_id, epoch)
        assert refused == KafkaCode.INVALID_FETCH_SESSION_EPOCH
        assert isinstance(plan(sessions, first.session_id, 1), FetchPlan)
        assert plan(sessions, first.session_id, 1) == KafkaCode.INVALID_FETCH_SESSION_EPOCH


def test_epochs_begin_again_at_1() -> None:
    sessions = FetchSessions()
    first = opened(sessions, {"t": [0]})
    assert first.session is not None
    first.session.epoch = EPOCH_MAX
    assert isinstance(plan(sessions, first.session_id, EPOCH_MAX), FetchPlan)
    assert isinstance(plan(sessions, first.session_id, 1), FetchPlan)


def test_a_session_of_another_client_is_unknown() -> None:
    sessions = FetchSessions()
    first = opened(sessions, {"t": [0]})
    for owner in (("host", "other"), ("other", "client")):
        for epoch in (1, FULL, FINAL):
            found = plan(sessions, first.session_id, epoch, owner=owner)
            assert found == KafkaCode.FETCH_SESSION_ID_NOT_FOUND or epoch <= 0
    assert isinstance(plan(sessions, first.session_id, 1), FetchPlan)
    assert plan(sessions, first.session_id + 1, 1) == KafkaCode.FETCH_SESSION_ID_NOT_FOUND


def test_names_and_ids_do_not_mix() -> None:
    sessions = FetchSessions()
    first = opened(sessions, {"t": [0]})
    refused = plan(sessions, first.session_id, 1, has_ids=True)
    assert refused == KafkaCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_a_request_with_all_partitions_ends_the_former_session() -> None:
    sessions = FetchSessions()
    first = opened(sessions, {"t": [0]})
    again = plan(sessions, first.session_id, FULL, {"t": [1]})
    assert isinstance(again, FetchPlan)
    assert again.session_id not in {0, first.session_id}
    assert (len(sessions), sessions.partition_count) == (1, 1)
    last = plan(sessions, again.session_id, FINAL, {"t": [1]})
    assert isinstance(last, FetchPlan)
    assert (last.session_id, numbers(last), len(sessions)) == (0, [("t", [1])], 0)
    assert answer(last) == [1]


def test_a_session_without_partitions_ends() -> None:
    sessions = FetchSessions()
    assert opened(sessions, {}).session_id == 0
    first = opened(sessions, {"t": [0]})
    found = plan(sessions, first.session_id, 1, forgotten={"t": [0]})
    assert isinstance(found, FetchPlan)
    assert (found.session_id, found.topics, len(sessions)) == (0, [], 0)


def test_there_are_so_many_sessions_and_not_more() -> None:
    sessions = FetchSessions(sessions_max=3)
    kept = [opened(sessions, {"t": [0]}) for _ in range(3)]
    assert opened(sessions, {"t": [0, 1]}, now_ms=EVICTABLE_MS).session_id == 0
    assert isinstance(plan(sessions, kept[0].session_id, 1, now_ms=EVICTABLE_MS), FetchPlan)
    # The one that was not used for longest goes.
    assert opened(sessions, {"t": [0]}, now_ms=EVICTABLE_MS + 1).session_id > 0
    assert plan(sessions, kept[1].session_id, 1) == KafkaCode.FETCH_SESSION_ID_NOT_FOUND
    assert isinstance(plan(sessions, kept[0].session_id, 2), FetchPlan)
    assert len(sessions) == 3


def test_a_larger_session_takes_the_place_of_an_old_smaller_one() -> None:
    sessions = FetchSessions(sessions_max=2)
    small, large = opened(sessions, {"t": [0]}), opened(sessions, {"t": [0, 1, 2]})
    late = EVICTABLE_MS + 1
    for one in (small, large):
        assert isinstance(plan(sessions, one.session_id, 1, now_ms=late), FetchPlan)
    assert opened(sessions, {"t": [0]}, now_ms=late).session_id == 0
    assert opened(sessions, {"t": [0, 1]}, now_ms=late).session_id > 0
    assert plan(sessions, small.session_id, 2) == KafkaCode.FETCH_SESSION_ID_NOT_FOUND


def test_all_sessions_together_have_so_many_partitions() -> None:
    sessions = FetchSessions(partitions_max=5)
    first = opened(sessions, {"t": [0, 1, 2]})
    assert opened(sessions, {"t": [0, 1, 2]}).session_id == 0
    assert opened(sessions, {"t": list(range(6))}).session_id == 0
    grown = plan(sessions, first.session_id, 1, {"t": [3, 4, 5]})
    assert grown == KafkaCode.FETCH_SESSION_ID_NOT_FOUND
    assert (len(sessions), sessions.partition_count) == (0, 0)


def test_a_session_may_be_forbidden() -> None:
    sessions = FetchSessions()
    asked = request(0, FULL, {"t": [0]})
    found = sessions.plan(asked, has_ids=False, owner=ME, now_ms=MonotonicMs(0), may_open=False)
    assert isinstance(found, FetchPlan)
    assert (found.session_id, numbers(found), len(sessions)) == (0, [("t", [0])], 0)


def test_odd_requests_keep_the_counts_right() -> None:
    rng = random.Random(7)
    sessions = FetchSessions(sessions_max=5, partitions_max=40)
    now_ms = 0
    for _ in range(5_000):
        now_ms += rng.choice([0, 0, 10, 50_000])
        topics = {name: rng.sample(range(9), rng.randint(0, 4)) for name in rng.sample("tuv", 2)}
        gone = {name: rng.sample(range(9), 2) for name in rng.sample("tuv", 1)}
        found = plan(
            sessions,
            rng.randint(0, 60),
            rng.choice([FULL, FULL, FINAL, 1, 1, 2, 3, -5]),
            topics,
            gone,
            now_ms=now_ms,
            owner=("host", rng.choice("ab")),
        )
        answer(found, p1=rng.randint(0, 2)) if isinstance(found, FetchPlan) else None
        held = sessions._sessions.values()
        assert sessions.partition_count == sum(len(one.partitions) for one in held)
        assert (len(sessions) <= 5, sessions.partition_count <= 40) == (True, True)
