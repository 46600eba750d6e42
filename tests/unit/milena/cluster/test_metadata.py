"""What the client knows of the cluster, and when it asks again."""

import asyncio

import pytest

from milena.cluster.metadata import ASK_INTERVAL_MS, MAX_AGE_MS, MetadataCache
from milena.errors import TargetNotFoundError, UnexpectedAnswerError, UnreachableError
from tests.support.fakes.scripted_cluster import ScriptedClock
from tests.support.fakes.scripted_http import A, B, ScriptedHttp


@pytest.fixture
def http():
    return ScriptedHttp()


@pytest.fixture
def clock():
    return ScriptedClock()


ANY_VERSION = "/metadata?since=0"


@pytest.fixture
def cache(http, clock):
    return MetadataCache(http, clock)


async def test_it_asks_once_and_knows_topics_leaders_and_nodes(http, cache):
    assert await cache.partition_count("t") == 2
    assert await cache.leader_url("t", 0) == A
    assert await cache.leader_url("t", 1) == B
    assert cache.leader_epoch("t", 1) == 7
    assert cache.leader_epoch("t", 2) is cache.leader_epoch("u", 0) is None
    assert http.asked == [ANY_VERSION]
    assert http.routes.order(None, 0) == [A, B]


async def test_it_asks_again_when_it_is_old(http, cache, clock):
    await cache.topic("t")
    clock.monotonic_ms += MAX_AGE_MS
    await cache.topic("t")
    assert len(http.asked) == 1
    clock.monotonic_ms += 1
    http.topics["t"].append(1)
    http.version = 2
    assert await cache.partition_count("t") == 3


async def test_it_asks_again_when_it_was_wrong_but_not_too_often(http, cache, clock):
    await cache.leader_url("t", 0)
    cache.mark_stale("t")
    await cache.leader_url("t", 0)
    assert len(http.asked) == 1
    clock.monotonic_ms += ASK_INTERVAL_MS
    http.version, http.topics["t"][0] = 2, 2
    assert await cache.leader_url("t", 0) == B
    assert len(http.asked) == 2


async def test_callers_that_come_together_share_one_question(http, cache):
    http.gate = asyncio.Event()
    callers = [asyncio.create_task(cache.topic("t")) for _ in range(5)]
    await asyncio.sleep(0)
    callers[0].cancel()
    await asyncio.sleep(0)
    http.gate.set()
    found = await asyncio.gather(*callers, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert {topic.name for topic in found[1:]} == {"t"}
    assert http.asked == [ANY_VERSION]


async def test_an_unknown_topic_is_asked_for_before_it_is_missing(http, cache):
    await cache.topic("t")
    with pytest.raises(TargetNotFoundError, match="no topic u"):
        await cache.topic("u")
    assert http.asked == [ANY_VERSION, ANY_VERSION, "/topics/u"]


async def test_a_topic_that_the_node_has_not_heard_of_is_found_at_the_quorum(http, cache, clock):
    http.other["new"] = {
        "name": "new",
        "configs": {"max.message.bytes": "1000"},
        "partitions": [{"partition": 0, "leader": 2, "replicas": [{"broker": 2, "in_sync": True}]}],
    }
    topic = await cache.topic("new")
    assert (len(topic.partitions), topic.configs["max.message.bytes"]) == (1, "1000")
    assert await cache.leader_url("new", 0) == B
    clock.monotonic_ms += ASK_INTERVAL_MS
    assert cache.is_due


async def test_without_an_answer_the_last_view_is_used(http, cache, clock):
    await cache.topic("t")
    http.failure = UnreachableError("gone")
    clock.monotonic_ms += 2 * MAX_AGE_MS
    assert await cache.partition_count("t") == 2
    assert await cache.leader_url("t", 1) == B
    assert len(http.asked) > 1


async def test_without_any_answer_ever_there_is_nothing_to_use(http, cache):
    http.failure = UnreachableError("gone")
    with pytest.raises(UnreachableError):
        await cache.topic("t")
    assert await cache.leader_url("t", 0) == A


async def test_an_answer_that_is_none_is_not_believed(http, cache):
    http.topics = {"t": ["one"]}
    with pytest.raises(UnexpectedAnswerError):
        await cache.topic("t")
    # A write goes to a node that may forward it, rather than nowhere.
    assert await cache.leader_url("t", 0) == A


async def test_while_the_leader_is_not_known_any_live_node_will_do(http, cache):
    http.topics["t"] = [None, 2]
    http.fenced = {2}
    assert await cache.leader_url("t", 0) == A
    assert await cache.leader_url("t", 1) == A
    assert await cache.leader_url("t", 99) == A
    assert await cache.leader_url("unknown", 0) == A


async def test_a_node_that_lags_does_not_take_anything_back(http, cache, clock):
    http.version = 5
    await cache.topic("t")
    http.version, http.topics = 4, {}
    clock.monotonic_ms += 2 * MAX_AGE_MS
    assert await cache.partition_count("t") == 2


async def test_who_was_wrong_is_not_asked_again_at_once(http, cache, clock):
    """A node that is cut off answers, and knows nothing new."""
    await cache.topic("t")
    for _ in range(2):
        cache.mark_stale()
        clock.monotonic_ms += ASK_INTERVAL_MS
        await cache.topic("t")
    assert http.preferred == [A, B, B]
    clock.monotonic_ms += 2 * MAX_AGE_MS
    await cache.topic("t")
    assert http.preferred[-1] is None, "age alone is nobody's fault"


async def test_partitions_that_are_not_numbered_through_are_not_believed(http, cache):
    real = http.metadata

    def metadata():
        answer = real()
        answer["topics"][0]["partitions"][1]["partition"] = 10**9
        return answer

    http.metadata = metadata
    with pytest.raises(UnexpectedAnswerError, match="partitions of t"):
        await cache.topic("t")


async def test_listeners_hear_of_each_view_until_they_stop(http, cache, clock):
    seen = []
    stop = cache.listen(lambda view: seen.append(view.version))
    await cache.topic("t")
    http.version = 2
    await cache.refresh()
    stop()
    http.version = 3
    await cache.refresh()
    assert seen == [1, 2]


async def test_closing_ends_a_question(http, cache):
    http.gate = asyncio.Event()
    asking = asyncio.create_task(cache.topic("t"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await cache.close()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await cache.close()
