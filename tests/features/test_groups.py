"""Consumer groups: shared work, detection of who is gone, commits, registries, and what counts once."""

import pytest

from tests.support.clusters.live_cluster import (
    call,
    create_topic,
    end_offset,
    eventually,
    offsets_of,
    ok,
    read,
    restart,
    values,
    write,
)
from tests.support.groups.live_groups import (
    SHORT_SESSION_MS,
    committed,
    consumer_of,
    coordinator_of,
    description,
    member_of,
    new_group,
    settle,
)

pytestmark = pytest.mark.integration

PARTITIONS = 4


@pytest.fixture
def topic(cluster):
    """Ten records in each of four partitions: ``"2/7"`` is the eighth of the third."""
    name = create_topic(cluster.node(1), new_group("shared"), partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        records = [f"{partition}/{n}" for n in range(10)]
        offsets_of(write(cluster.node(2), name, *records, partition=partition))
    return name


def everything():
    return sorted(f"{partition}/{n}" for partition in range(PARTITIONS) for n in range(10))


def read_all(member, cluster, topic):
    """What a member finds in its partitions, from the group's commits on; it commits that."""
    found = []
    starts = committed(cluster.node(1), member.group, topic)
    for _, partition in sorted(member.owned):
        records = values(cluster.node(3), topic, partition, offset=starts.get(partition, 0))
        found += records
        end = starts.get(partition, 0) + len(records)
        assert member.commit((topic, partition, end)).status == 204
    return found


@pytest.mark.smoke
def test_each_record_goes_to_one_member_of_each_group(cluster, topic):
    """Within a group work is shared; groups do not know of each other: broadcast is a group for each reader."""
    workers = [member_of(cluster, new_group("workers"), topic)]
    workers.append(member_of(cluster, workers[0].group, topic))
    auditor = member_of(cluster, new_group("audit"), topic)
    shares = settle(*workers)
    settle(auditor)
    assert [len(share) for share in shares] == [2, 2]
    assert not shares[0] & shares[1], "a partition has one owner"
    found = [read_all(worker, cluster, topic) for worker in workers]
    assert sorted(found[0] + found[1]) == everything()
    assert sorted(read_all(auditor, cluster, topic)) == everything(), "the other group as well"


def test_members_that_come_and_die_are_noticed_and_work_goes_on_at_the_commit(cluster, topic):
    """Who stays silent for its session is out; its partitions go on where the group committed."""
    group = new_group("noticed")
    quick = {"session_timeout_ms": SHORT_SESSION_MS}
    one, two = (member_of(cluster, group, topic, **quick) for _ in range(2))
    settle(one)
    settle(one, two)
    dead, kept = sorted(two.owned), len(one.owned)
    for _, partition in dead:
        assert two.commit((topic, partition, 6)).status == 204
    assert kept == 2
    eventually(lambda: len(one.beat()) == PARTITIONS)
    found = read_all(one, cluster, topic)
    for _, partition in dead:
        assert [v for v in found if v.startswith(f"{partition}/")] == [
            f"{partition}/{n}" for n in range(6, 10)
        ]
    assert two.commit((topic, dead[0][1], 7)).status in {404, 409}, "it is fenced"


@pytest.mark.smoke
def test_consumers_commit_when_they_like_and_the_state_reads_group_partition_offset(cluster, topic):
    """After each record, after ten, now and then: an offset is a number that the group keeps."""
    group = new_group("when")
    member = member_of(cluster, group, topic)
    settle(member)
    for offset in range(1, 4):
        assert member.commit((topic, 0, offset)).status == 204
        assert committed(cluster.nodes[offset % 3], group, topic)[0] == offset
    assert member.commit((topic, 1, 10), (topic, 2, 5)).status == 204
    for node in cluster.nodes:
        shown = eventually(lambda at=node: description(at, group)["offsets"][topic])
        assert {p: o["offset"] for p, o in shown.items()} == {"0": 3, "1": 10, "2": 5}


def test_a_group_is_set_back_and_reads_again(cluster, topic):
    """Nothing is used up: to process again is to set the group's offsets back."""
    group = new_group("again")
    member = member_of(cluster, group, topic)
    settle(member)
    assert sorted(read_all(member, cluster, topic)) == everything()
    assert read_all(member, cluster, topic) == []
    member.leave()
    path = f"POST /groups/{group}/offsets:reset"
    ok(call(cluster.node(3), path, {"topic": topic, "to": "earliest"}))
    settle(member)
    assert sorted(read_all(member, cluster, topic)) == everything()
    late = consumer_of(cluster, new_group("late")).subscribe(topic)
    assert sorted(late.read_values(40)) == everything(), "who joins at any time gets everything"
    seek = {"offsets": [{"topic": topic, "partition": 3, "offset": 8}]}
    assert late.ask("POST /positions", seek).status == 204
    assert late.read_values(2) == ["3/8", "3/9"]


def test_registries_of_members_and_owners_vanish_with_them_and_offsets_stay(cluster, topic):
    """Brokers, members, who owns what, and offsets: everybody may look; the first three end with their owner."""
    group = new_group("registry")
    member = member_of(cluster, group, topic, session_timeout_ms=SHORT_SESSION_MS)
    settle(member)
    assert member.commit((topic, 2, 4)).status == 204
    coordinator = coordinator_of(cluster, group)
    brokers = ok(call(cluster.node(1), "GET /brokers"))["brokers"]
    assert coordinator.node_id in brokers
    [found] = description(cluster.node(2), group)["members"]
    assert found["member_id"] == member.member_id
    eventually(lambda: description(cluster.node(1), group)["members"] == [])
    assert committed(cluster.node(3), group, topic) == {2: 4}
    coordinator.process.kill()
    try:
        alive = next(node for node in cluster.nodes if node.process.is_running)
        eventually(lambda: coordinator_of(cluster, group) is not coordinator)
        assert eventually(lambda: committed(alive, group, topic)) == {2: 4}
    finally:
        restart(cluster, coordinator)


def test_a_worker_that_dies_repeats_or_skips_as_it_chose(cluster, topic):
    """Commit after the work: at least once. Commit before it: at most once."""
    for is_careful in (True, False):
        group = new_group("choice")
        worker = member_of(cluster, group, topic, session_timeout_ms=SHORT_SESSION_MS)
        settle(worker)
        records = values(cluster.node(1), topic, 0)
        done = []
        for number, record in enumerate(records):
            if not is_careful:
                assert worker.commit((topic, 0, number + 1)).status == 204
            if number == 5:
                break  # It dies in the middle of this record's work.
            done.append(record)
            if is_careful and number < 4:
                # It does not come to the commit of its last piece of work.
                assert worker.commit((topic, 0, number + 1)).status == 204
        heir = member_of(cluster, group, topic)
        eventually(lambda h=heir: (topic, 0) in h.beat())
        start = committed(cluster.node(2), group, topic)[0]
        done += [r["value"] for r in ok(read(cluster.node(3), topic, 0, offset=start))]
        if is_careful:
            assert set(done) == set(records)
            assert len(done) == len(records) + 1, "one was done twice"
        else:
            assert sorted(set(records) - set(done)) == ["0/5"], "one was never done"
            assert len(done) == len(set(done))


def test_work_whose_results_and_position_are_written_together_counts_once(cluster, topic):
    """Exactly once: the results carry the position; a retry of the same piece under its key is the same piece."""
    results = create_topic(cluster.node(1), new_group("results"))
    group = new_group("once")
    for life in range(3):
        worker = member_of(cluster, group, topic, session_timeout_ms=SHORT_SESSION_MS)
        eventually(lambda w=worker: (topic, 0) in w.beat())
        start = committed(cluster.node(1), group, topic).get(0, 0)
        for record in ok(read(cluster.node(2), topic, 0, offset=start)):
            key = f"{group}-0-{record['offset']}"
            offsets_of(write(cluster.node(3), results, record["value"], key=key))
            if record["offset"] == 3 * (life + 1):
                break  # It dies after the result and before the commit.
            assert worker.commit((topic, 0, record["offset"] + 1)).status == 204
    found = values(cluster.node(1), results)
    assert found == [f"0/{n}" for n in range(len(found))]
    assert len(found) == end_offset(cluster.node(2), results) == 10
