"""Consumer groups on three real nodes: members that beat on any of them, commits, resets, a coordinator that dies."""

import time

import pytest

from tests.support.clusters.live_cluster import (
    call,
    cluster_id,
    create_topic,
    end_offset,
    eventually,
    in_background,
    metadata,
    offsets_of,
    ok,
    others,
    restart,
    running_cluster,
    values,
    write,
)
from tests.support.groups.live_groups import (
    SHORT_SESSION_MS,
    committed,
    coordinator_of,
    description,
    member_of,
    new_group,
    settle,
)

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("groups")) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def six(cluster):
    """A topic of six partitions."""
    return create_topic(cluster.node(1), "six", partitions=6)


def places(topic, *numbers):
    return {(topic, number) for number in numbers}


@pytest.mark.parametrize("assignor", ["sticky", "range", "roundrobin"])
def test_members_on_any_node_share_the_partitions(cluster, six, assignor):
    group = new_group(assignor)
    one = member_of(cluster, group, six, assignor=assignor)
    assert settle(one) == [places(six, *range(6))]
    two, three = (member_of(cluster, group, six, assignor=assignor) for _ in range(2))
    shares = settle(one, two, three)
    assert [len(share) for share in shares] == [2, 2, 2]
    assert set.union(*shares) == places(six, *range(6))
    two.leave()
    shares = settle(one, three)
    assert [len(share) for share in shares] == [3, 3]
    assert set.union(*shares) == places(six, *range(6))
    found = eventually(
        lambda: (shown := description(cluster.node(3), group))["state"] == "STABLE" and shown
    )
    assert found["assignor"] == assignor


def test_sticky_members_keep_what_they_have(cluster, six):
    group = new_group("keep")
    one, two = (member_of(cluster, group, six) for _ in range(2))
    before = settle(one, two)
    three = member_of(cluster, group, six)
    after = settle(one, two, three)
    assert all(now < then for now, then in zip(after[:2], before, strict=True))


def test_a_partition_waits_until_its_holder_lets_go(cluster, six):
    group = new_group("wait")
    one, two = (member_of(cluster, group, six) for _ in range(2))
    settle(one)
    assert two.beat() == set()
    assert len(two.pending) == 3
    assert two.beat() == set(), "nobody let go yet"
    kept = one.beat()
    assert len(kept) == 3
    assert two.beat() == set(), "asked to, and not done"
    one.beat()
    assert eventually(two.beat) == places(six, *range(6)) - kept


def test_who_is_silent_for_its_session_is_replaced_and_fenced(cluster, six):
    group = new_group("silent")
    quick = {"session_timeout_ms": SHORT_SESSION_MS}
    one, two = (member_of(cluster, group, six, **quick) for _ in range(2))
    settle(one, two)
    [lost] = [p for t, p in sorted(two.owned)][:1]
    assert two.commit((six, lost, 0)).status == 204
    eventually(lambda: one.beat() == places(six, *range(6)))
    assert two.commit((six, lost, 0)).status in {404, 409}
    assert two.send().refusal[1] in {40411, 40925}
    assert committed(cluster.node(1), group, six)[lost] == 0


def test_a_commit_is_seen_on_every_node_at_once(cluster, six):
    group = new_group("seen")
    member = member_of(cluster, group, six)
    settle(member)
    for offset in range(1, 10):
        node = cluster.nodes[offset % 3]
        assert member.commit((six, 2, offset), node=node).status == 204
        for asked in cluster.nodes:
            assert committed(asked, group, six) == {2: offset}
    shown = description(cluster.node(2), group)["offsets"]
    assert shown[six]["2"]["offset"] == 9


def test_commits_of_others_are_refused(cluster, six):
    group = new_group("refused")
    one, two = (member_of(cluster, group, six) for _ in range(2))
    settle(one, two)
    [(_, not_mine)] = sorted(two.owned)[:1]
    assert one.commit((six, not_mine, 1)).status == 409
    body = {"offsets": [{"topic": six, "partition": 0, "offset": 1}]}
    assert call(cluster.node(1), f"POST /groups/{group}/offsets", body).refusal == (409, 40918)
    one.epoch -= 1
    [(_, mine)] = sorted(one.owned)[:1]
    assert one.commit((six, mine, 1)).refusal == (409, 40925)
    assert committed(cluster.node(2), group, six) == {}


def test_offsets_are_reset_by_name_number_and_time_once_nobody_is_there(cluster):
    topic = create_topic(cluster.node(1), "resettable", partitions=2)
    for partition in range(2):
        offsets_of(write(cluster.node(2), topic, *range(5), partition=partition))
    between_ms = int(time.time() * 1000) + 20
    time.sleep(0.05)
    offsets_of(write(cluster.node(3), topic, *range(5), partition=1))
    group = new_group("reset")
    member = member_of(cluster, group, topic)
    settle(member)
    assert member.commit((topic, 0, 2), (topic, 1, 3)).status == 204
    path = f"POST /groups/{group}/offsets:reset"
    assert call(cluster.node(1), path, {"topic": topic, "to": "latest"}).refusal == (409, 40918)
    member.leave()
    eventually(lambda: description(cluster.node(1), group)["state"] == "EMPTY")

    def reset(node, **wanted):
        ok(call(cluster.node(node), path, {"topic": topic, **wanted}))
        return committed(cluster.node(1 + node % 3), group, topic)

    assert reset(1, to="latest") == {0: 5, 1: 10}
    assert reset(2, to="earliest") == {0: 0, 1: 0}
    assert reset(3, to=4, partitions=[1]) == {0: 0, 1: 4}
    assert call(cluster.node(1), path, {"topic": topic, "to": 1000}).refusal == (400, 40002)
    assert reset(1, to=5) == {0: 5, 1: 5}
    iso = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(between_ms / 1000))
    assert reset(2, to=f"{iso}.{between_ms % 1000:03}Z") == {0: 5, 1: 5}
    v3 = f"/v3/clusters/{cluster_id(cluster.node(1))}/consumer-groups/{group}"
    ok(call(cluster.node(3), f"POST {v3}/offsets:reset", {"topic": topic, "to": "earliest"}))
    assert committed(cluster.node(1), group, topic) == {0: 0, 1: 0}
    # The audit log leaves out what is too long for it, and refuses no request.
    for where, missing in ((path, 40401), (f"POST {v3}/offsets:reset", 40403)):
        long = {"topic": "a" * 65_536, "to": "earliest"}
        assert call(cluster.node(3), where, long).refusal == (404, missing)
        many = {"topic": topic, "partitions": [2**63 - 1] * 10_000, "to": 0}
        assert call(cluster.node(3), where, many).status == 404
    assert call(cluster.node(2), f"DELETE /groups/{group}").status == 204
    for node in cluster.nodes:
        eventually(lambda at=node: call(at, f"GET /groups/{group}").refusal == (404, 40405))


def test_heartbeats_and_fetches_write_nothing_to_the_quorum(cluster, six):
    group = new_group("nothing")
    one, two = (member_of(cluster, group, six) for _ in range(2))
    settle(one, two)

    def is_quiet():
        before = metadata(cluster.node(1))["version"]
        for _ in range(10):
            one.beat()
            two.beat()
            values(cluster.node(1), six, offset="latest", timeout=0)
        return metadata(cluster.node(1))["version"] == before

    # Members of other tests expire, and the controller compares images: now and then something else is written.
    eventually(is_quiet)


def test_a_long_poll_is_answered_by_the_rebalance(cluster, six):
    group = new_group("poll")
    one = member_of(cluster, group, six)
    settle(one)
    with in_background(lambda: one.beat(timeout_ms=20_000)) as waiting:
        two = member_of(cluster, group, six)
        began = time.monotonic()
        two.beat()
        assert len(waiting.result()) == 3
        assert time.monotonic() - began < 10


def test_new_topics_of_a_pattern_and_new_partitions_are_shared_out(cluster):
    group = new_group("pattern")
    create_topic(cluster.node(1), "log.a", partitions=1)
    create_topic(cluster.node(1), "other.a", partitions=1)
    member = member_of(cluster, group, pattern=r"log\..*")
    assert settle(member) == [places("log.a", 0)]
    create_topic(cluster.node(2), "log.b", partitions=2)
    eventually(lambda: member.beat() == places("log.a", 0) | places("log.b", 0, 1))
    at = f"/v3/clusters/{cluster_id(cluster.node(1))}/topics/log.a"
    ok(call(cluster.node(3), f"PATCH {at}", {"partitions_count": 2}))
    eventually(lambda: member.beat() == places("log.a", 0, 1) | places("log.b", 0, 1))


def test_a_named_instance_comes_back_to_what_it_had(cluster, six):
    group = new_group("instances")
    one, two = (member_of(cluster, group, six, instance_id=f"pod-{n}") for n in range(2))
    before = settle(one, two)
    epoch = one.epoch
    again = member_of(cluster, group, six, instance_id="pod-1")
    assert again.beat() == before[1], "at once"
    assert settle(one, again) == before
    assert one.epoch == epoch, "nobody had to give anything back"
    assert two.send().refusal[1] == 40935, "another process has its instance id"
    [(_, partition)] = sorted(again.owned)[:1]
    assert two.commit((six, partition, 1)).status == 409


def test_the_group_lives_on_when_its_coordinator_dies(cluster, six):
    group = new_group("failover")
    one, two = (member_of(cluster, group, six) for _ in range(2))
    before = settle(one, two)
    [(_, mine)] = sorted(one.owned)[:1]
    assert one.commit((six, mine, 7)).status == 204
    generation, coordinator = one.generation, coordinator_of(cluster, group)
    coordinator.process.kill()
    try:
        eventually(lambda: one.beat() == before[0] and two.beat() == before[1])
        assert one.generation == two.generation == generation
        assert coordinator_of(cluster, group) is not coordinator
        for node in others(cluster, coordinator):
            assert committed(node, group, six) == {mine: 7}
        alive = others(cluster, coordinator)[0]
        assert eventually(lambda: one.commit((six, mine, 8), node=alive).status == 204)
    finally:
        restart(cluster, coordinator)
    eventually(lambda: one.beat() == before[0] and two.beat() == before[1])


def test_groups_are_listed_on_every_node(cluster, six):
    names = {new_group("listed") for _ in range(3)}
    for name in names:
        settle(member_of(cluster, name, six))
    for node in cluster.nodes:
        eventually(
            lambda at=node: names <= {g["group_id"] for g in ok(call(at, "GET /groups"))["groups"]}
        )


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"member_epoch": 0}, id="no-subscription"),
        pytest.param({"member_epoch": 0, "topics": "six"}, id="topics-no-list"),
        pytest.param({"member_epoch": -2, "topics": ["six"]}, id="epoch-below-all"),
        pytest.param({"member_epoch": 0, "topics": ["six"], "assignor": "magic"}, id="assignor"),
        pytest.param({"member_epoch": 0, "pattern": "(", "topics": []}, id="pattern"),
        pytest.param(
            {"member_epoch": 0, "topics": ["six"], "session_timeout_ms": 1}, id="short-session"
        ),
        pytest.param(
            {"member_epoch": 0, "topics": ["six"], "session_timeout_ms": 10**9}, id="long-session"
        ),
        pytest.param({"topics": ["six"]}, id="no-epoch"),
        pytest.param(
            {"member_epoch": 0, "topics": [f"t{n}" for n in range(100_000)]}, id="many-topics"
        ),
    ],
)
def test_a_heartbeat_that_makes_no_sense_is_told_why(cluster, six, body):
    answer = call(cluster.node(2), f"POST /groups/{new_group('bad')}/heartbeat", body)
    assert 400 <= answer.status < 500, answer
    assert " " in answer.json["message"]


def test_who_was_never_a_member_must_join(cluster, six):
    body = {"member_id": "nobody", "member_epoch": 3, "owned": []}
    answer = call(cluster.node(3), f"POST /groups/{new_group('never')}/heartbeat", body)
    assert answer.refusal[0] == 404
    assert end_offset(cluster.node(1), six) >= 0
