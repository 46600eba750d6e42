"""Writes that are repeated: the same key or the same producer sequence is applied once, wherever the repeat arrives."""

import pytest

from tests.support.clusters.live_cluster import (
    call,
    create_topic,
    encoded,
    end_offset,
    eventually,
    leader_of,
    offsets_of,
    ok,
    others,
    restart,
    running_cluster,
    values,
    wait_in_sync,
    write,
    write_batch,
)

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("idempotence")) as nodes:
        yield nodes


def new_producer(node, name=None):
    """Id and epoch."""
    state = ok(call(node, "POST /producers", None if name is None else {"name": name}))
    return state["producer_id"], state["producer_epoch"]


def receipt(answer):
    """Base offset, last offset, and whether the batch was there already."""
    told = ok(answer)
    return told["base_offset"], told["last_offset"], told["is_duplicate"]


# -- Idempotency-Key -------------------------------------------------------------------------------


def test_a_repeat_on_any_node_gets_the_first_offsets(cluster):
    topic = create_topic(cluster.node(1), "repeat")
    offsets_of(write(cluster.node(2), topic, "before"))
    first = offsets_of(write(cluster.node(1), topic, "a", "b", key="order-1"))
    offsets_of(write(cluster.node(2), topic, "after"))
    for node in cluster.nodes:
        assert offsets_of(write(node, topic, "a", "b", key="order-1")) == first
    assert values(cluster.node(3), topic) == ["before", "a", "b", "after"]


def test_a_repeat_is_placed_as_the_first_request_was(cluster):
    topic = create_topic(cluster.node(1), "placed", partitions=4)
    first = offsets_of(write(cluster.node(1), topic, *range(40), key="spread"))
    assert len({partition for partition, _ in first}) > 1, "keyless records are spread by position"
    for node in cluster.nodes:
        assert offsets_of(write(node, topic, *range(40), key="spread")) == first
    assert sum(end_offset(cluster.node(2), topic, p) for p in range(4)) == 40


def test_the_same_key_with_another_body_is_refused_and_nothing_is_written(cluster):
    topic = create_topic(cluster.node(1), "other-body")
    offsets_of(write(cluster.node(1), topic, "paid 10", key="payment"))
    for node in cluster.nodes:
        assert write(node, topic, "paid 20", key="payment").refusal == (422, 42211)
    assert values(cluster.node(1), topic) == ["paid 10"]


def test_the_same_key_in_another_topic_is_another_key(cluster):
    one, two = (create_topic(cluster.node(1), name) for name in ("key-one", "key-two"))
    assert offsets_of(write(cluster.node(1), one, "x", key="k")) == [(0, 0)]
    assert offsets_of(write(cluster.node(1), two, "y", key="k")) == [(0, 0)]


def test_a_repeat_after_the_leader_was_killed_gets_the_first_offsets(cluster):
    topic = create_topic(cluster.node(1), "killed")
    leader = leader_of(cluster, topic)
    first = offsets_of(write(leader, topic, "a", "b", key="order-2"))
    leader.process.kill()
    left = others(cluster, leader)
    for node in left:
        again = eventually(lambda at=node: offsets_of(write(at, topic, "a", "b", key="order-2")))
        assert again == first
        assert write(node, topic, "c", key="order-2").refusal == (422, 42211)
    restart(cluster, leader)
    assert offsets_of(write(leader, topic, "a", "b", key="order-2")) == first
    assert values(leader, topic) == ["a", "b"]


def test_keys_and_sequences_survive_a_kill_of_every_node(cluster):
    topic = create_topic(cluster.node(1), "blackout")
    producer = new_producer(cluster.node(1))
    keyed = offsets_of(write(cluster.node(1), topic, "a", key="order-3"))
    batch = encoded(b'"b"', producer=(*producer, 0))
    assert receipt(write_batch(cluster.node(1), topic, batch)) == (1, 1, False)
    cluster.kill()
    restart(cluster, *cluster.nodes)
    wait_in_sync(cluster, topic)
    for node in cluster.nodes:
        assert offsets_of(write(node, topic, "a", key="order-3")) == keyed
        assert receipt(write_batch(node, topic, batch)) == (1, 1, True)
    assert values(cluster.node(1), topic) == ["a", "b"]


# -- producer ids and sequences ------------------------------------------------------------------


def test_a_repeated_batch_is_a_duplicate_on_every_node(cluster):
    topic = create_topic(cluster.node(1), "sequences")
    producer = new_producer(cluster.node(1))
    first = encoded(b"0", b"1", b"2", producer=(*producer, 0))
    second = encoded(b"3", b"4", producer=(*producer, 3))
    assert receipt(write_batch(cluster.node(1), topic, first)) == (0, 2, False)
    assert receipt(write_batch(cluster.node(2), topic, second)) == (3, 4, False)
    for node in cluster.nodes:
        assert receipt(write_batch(node, topic, first)) == (0, 2, True)
        assert receipt(write_batch(node, topic, second)) == (3, 4, True)
    assert values(cluster.node(3), topic) == [0, 1, 2, 3, 4]


def test_a_gap_in_the_sequence_is_refused_and_nothing_is_written(cluster):
    topic = create_topic(cluster.node(1), "gap")
    producer = new_producer(cluster.node(2))
    ok(write_batch(cluster.node(1), topic, encoded(b"0", producer=(*producer, 0))))
    for node in cluster.nodes:
        ahead = encoded(b"2", producer=(*producer, 2))
        assert write_batch(node, topic, ahead).refusal == (422, 42210)
    assert values(cluster.node(1), topic) == [0]
    assert receipt(write_batch(cluster.node(3), topic, encoded(b"1", producer=(*producer, 1)))) == (
        1,
        1,
        False,
    )


def test_the_former_holder_of_a_name_is_fenced(cluster):
    topic = create_topic(cluster.node(1), "fenced")
    old = new_producer(cluster.node(1), "billing")
    ok(write_batch(cluster.node(1), topic, encoded(b"0", producer=(*old, 0))))
    new = new_producer(cluster.node(2), "billing")
    assert (new[0], new[1] > old[1]) == (old[0], True)
    ok(write_batch(cluster.node(3), topic, encoded(b"1", producer=(*new, 0))))
    for node in cluster.nodes:
        late = encoded(b"9", producer=(*old, 1))
        assert write_batch(node, topic, late).refusal == (409, 40924)
    assert values(cluster.node(1), topic) == [0, 1]


def test_names_share_nothing_and_nameless_producers_are_always_new(cluster):
    ids = [
        new_producer(node, name)[0] for node in cluster.nodes for name in (None, f"n{node.node_id}")
    ]
    assert len(set(ids)) == len(ids)


def test_a_producer_id_that_was_never_given_is_refused(cluster):
    topic = create_topic(cluster.node(1), "stranger")
    for node in cluster.nodes:
        answer = write_batch(node, topic, encoded(b"0", producer=(1 << 40, 0, 0)))
        assert answer.status == 422
        assert "POST /producers" in answer.json["message"]
    assert end_offset(cluster.node(1), topic) == 0


def test_sequences_go_on_after_the_leader_was_killed(cluster):
    topic = create_topic(cluster.node(1), "moved")
    producer = new_producer(cluster.node(1))
    batches = [encoded(str(n).encode(), producer=(*producer, n)) for n in range(3)]
    for batch in batches:
        ok(write_batch(cluster.node(1), topic, batch))
    leader = leader_of(cluster, topic)
    leader.process.kill()
    node = others(cluster, leader)[0]
    assert eventually(lambda: receipt(write_batch(node, topic, batches[2]))) == (2, 2, True)
    assert receipt(write_batch(node, topic, batches[1])) == (1, 1, True)
    ahead = encoded(b"4", producer=(*producer, 4))
    assert write_batch(node, topic, ahead).refusal == (422, 42210)
    following = encoded(b"3", producer=(*producer, 3))
    assert receipt(write_batch(node, topic, following)) == (3, 3, False)
    restart(cluster, leader)
    wait_in_sync(cluster, topic)
    eventually(lambda: values(leader, topic, replica="local") == [0, 1, 2, 3])
