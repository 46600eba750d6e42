"""Tasks and commits of transactional writes against real nodes, without Spark: what counts, what does not, and once."""

import itertools

import pyarrow as pa
import pytest

from milena.errors import AnswerError
from spark_ext.errors import BatchAbortedError, OptionError
from spark_ext.options.parsing import parse_write_stream_options
from spark_ext.rows.write_schema import WriteColumns
from spark_ext.writing.task_writes import write_task
from spark_ext.writing.transaction import BatchNumber, abort, begin, commit
from tests.support.clusters.live_cluster import (
    call,
    create_topic,
    eventually,
    in_background,
    last_stable_offset,
    leader_of,
    ok,
    restart,
    wait_in_sync,
)
from tests.support.spark.committed_rows import values_in

pytestmark = pytest.mark.integration

NAMES = (f"of-tasks-{number}" for number in itertools.count())


@pytest.fixture
def sink(cluster):
    return Sink(cluster)


class Sink:
    """A topic and a query that writes it."""

    def __init__(self, cluster, partitions=2, **options):
        self.cluster = cluster
        self.node = cluster.node(1)
        self.topic = create_topic(self.node, next(NAMES), partitions=partitions)
        self.partitions = partitions
        self.group = f"spark-{self.topic}"
        given = {"url": cluster.node(2).url, "topic": self.topic, "transactionalId": self.topic}
        self.options = parse_write_stream_options({**given, **options})

    def begin(self):
        return begin(self.options)

    def write(self, transaction, values, *, task=0, batch=0, columns=None, breaks_at=None):
        """A task with these rows, cut as Spark may cut them, which may fail in the middle."""
        columns = columns or {"value": values}
        rows = pa.RecordBatch.from_pydict(columns)
        names = rows.schema.names
        found = {
            name: names.index(name) if name in names else None
            for name in ("key", "headers", "topic", "partition", "timestamp")
        }
        return write_task(
            slices_of(rows, breaks_at),
            task=task,
            transaction=transaction,
            number=BatchNumber(group=self.group, batch_id=batch),
            options=self.options,
            columns=WriteColumns(value=names.index("value"), **found),
        )

    def values(self):
        """What readers of committed records get, partition by partition."""
        return [value.decode() for value in values_in(self.node.url, self.topic, self.partitions)]

    def offsets(self):
        """Topic and offset that the query's group has."""
        answer = call(self.node, f"GET /groups/{self.group}/offsets")
        if answer.status == 404:
            return {}
        found = answer.json["offsets"]
        return {(t, int(p)): at["offset"] for t, ps in found.items() for p, at in ps.items()}


class BrokenError(Exception):
    """The rows of a task end early."""


def slices_of(rows, breaks_at):
    for first in range(0, rows.num_rows, 100):
        if breaks_at is not None and first >= breaks_at:
            raise BrokenError
        yield rows.slice(first, 100)


def texts(count, *, size=1, mark="v"):
    return [f"{mark}{number}".ljust(size, ".").encode() for number in range(count)]


def test_a_batch_appears_as_a_whole_with_its_commit(sink):
    transaction = sink.begin()
    messages = [sink.write(transaction, texts(10, mark=f"{t}-"), task=t) for t in range(3)]
    assert sink.values() == []
    commit(messages, sink.topic)
    wanted = [value.decode() for t in range(3) for value in texts(10, mark=f"{t}-")]
    assert eventually(lambda: len(sink.values()) == 30)
    assert sorted(sink.values()) == sorted(wanted)
    assert sink.offsets() == {(sink.topic, 0): 1}


def test_rows_of_a_task_stay_in_their_order(cluster):
    sink = Sink(cluster, partitions=1)
    values = texts(3000, size=1000)
    commit([sink.write(sink.begin(), values)], sink.topic)
    assert eventually(lambda: len(sink.values()) == 3000)
    assert sink.values() == [value.decode() for value in values]


def test_a_task_that_is_run_again_adds_nothing(cluster):
    """The first attempt broke off with one of its three chunks written: the second one waits for that."""
    sink = Sink(cluster, partitions=1)
    values = texts(3000, size=1000)
    transaction = sink.begin()
    with pytest.raises(BrokenError):
        sink.write(transaction, values, breaks_at=2900)
    assert eventually(lambda: sink.topic in str(ok(call(sink.node, "GET /transactions"))))
    message = sink.write(transaction, values)
    commit([message, sink.write(transaction, texts(5), task=1)], sink.topic)
    assert eventually(lambda: len(sink.values()) == 3005)
    assert sum(part.records for _, part in message.parts) == 3000


def test_a_task_that_is_run_again_with_other_rows_ends_the_batch(sink):
    transaction = sink.begin()
    sink.write(transaction, texts(10))
    with pytest.raises(BatchAbortedError, match="has other rows than before"):
        sink.write(transaction, texts(10, mark="w"))


def test_records_that_no_task_answers_for_end_the_batch(cluster):
    """An attempt whose rows were more than those of the one that won."""
    sink = Sink(cluster, partitions=1)
    values = texts(3000, size=1000)
    transaction = sink.begin()
    sink.write(transaction, values)
    message = sink.write(transaction, texts(10), task=1)
    with pytest.raises(BatchAbortedError, match="a task that was run again"):
        commit([message], sink.topic)
    again = sink.begin()
    commit([sink.write(again, texts(10))], sink.topic)
    assert eventually(lambda: len(sink.values()) == 10)


def test_who_begins_under_the_id_fences_the_one_before(sink):
    first = sink.begin()
    message = sink.write(first, texts(10))
    second = sink.begin()
    with pytest.raises(BatchAbortedError, match="another write has started under the id"):
        sink.write(first, texts(10), task=1)
    with pytest.raises(BatchAbortedError, match="another write has started under the id"):
        commit([message], sink.topic)
    abort([first])
    commit([sink.write(second, texts(10))], sink.topic)
    assert eventually(lambda: len(sink.values()) == 10)


def test_a_batch_that_is_committed_is_skipped_when_it_comes_again(sink):
    commit([sink.write(sink.begin(), texts(10), batch=4)], sink.topic)
    again = sink.begin()
    for batch in (3, 4):
        message = sink.write(again, texts(10), batch=batch)
        assert message.is_skipped
        commit([message], sink.topic)
    later = sink.write(again, texts(7, mark="later"), batch=5)
    assert not later.is_skipped
    commit([later], sink.topic)
    assert eventually(lambda: len(sink.values()) == 17)
    assert sink.offsets() == {(sink.topic, 0): 6}


def test_a_commit_whose_answer_was_lost_may_be_asked_for_again(sink):
    message = sink.write(sink.begin(), texts(10))
    commit([message], sink.topic)
    commit([message], sink.topic)
    abort([message.transaction])
    assert eventually(lambda: len(sink.values()) == 10)


def test_what_is_aborted_holds_no_reader_up(cluster):
    sink = Sink(cluster, partitions=1)
    message = sink.write(sink.begin(), texts(10))
    assert last_stable_offset(sink.node, sink.topic) == 0
    abort([message.transaction])
    assert eventually(lambda: last_stable_offset(sink.node, sink.topic) > 10)
    assert sink.values() == []
    with pytest.raises(BatchAbortedError):
        commit([message], sink.topic)


def test_a_batch_without_rows_leaves_no_trace(sink):
    transaction = sink.begin()
    message = sink.write(transaction, pa.array([], pa.binary()))
    commit([message, message], sink.topic)
    assert message.parts == ()
    assert sink.offsets() == {}


def test_topics_by_row_are_one_transaction(cluster):
    sink = Sink(cluster)
    other = create_topic(sink.node, next(NAMES))
    sink.options = parse_write_stream_options(
        {"url": cluster.node(3).url, "transactionalId": sink.topic}
    )
    columns = {
        "value": [b"a", b"b", b"c"],
        "key": [None, b"k", None],
        "topic": [other, sink.topic, sink.topic],
        "partition": pa.array([None, None, 1], pa.int32()),
    }
    message = sink.write(sink.begin(), None, columns=columns)
    commit([message], None)
    assert eventually(lambda: sorted(sink.values()) == ["b", "c"])
    assert values_in(sink.node.url, other) == [b"a"]
    assert sink.values()[-1] == "c"
    assert [*sink.offsets().values()] == [1]
    assert sink.write(sink.begin(), None, columns=columns).is_skipped


def test_a_topic_whose_batches_are_small_gets_small_chunks(cluster):
    sink = Sink(cluster, partitions=1)
    body = {"data": [{"name": "max.message.bytes", "value": "5000"}]}
    cluster_id = ok(call(sink.node, "GET /v3/clusters"))["data"][0]["cluster_id"]
    line = f"POST /v3/clusters/{cluster_id}/topics/{sink.topic}/configs:alter"
    assert call(sink.node, line, body).status == 204
    commit([sink.write(sink.begin(), texts(100, size=500))], sink.topic)
    assert eventually(lambda: len(sink.values()) == 100)


def test_a_topic_that_takes_no_transactions_says_so(sink):
    create_topic(sink.node, "lazily-flushed", flush_messages=100)
    columns = {"value": [b"v"], "topic": ["lazily-flushed"]}
    sink.options = parse_write_stream_options({"url": sink.node.url, "transactionalId": sink.topic})
    with pytest.raises(AnswerError, match=r"flush\.messages"):
        sink.write(sink.begin(), None, columns=columns)


def test_a_topic_that_is_not_there_is_refused_before_it_begins(cluster):
    options = parse_write_stream_options(
        {"url": cluster.node(1).url, "topic": "no-such", "transactionalId": "i"}
    )
    with pytest.raises(OptionError, match="no such topic: no-such"):
        begin(options)


def test_a_leader_that_is_killed_costs_and_doubles_nothing(cluster):
    sink = Sink(cluster, partitions=1)
    wait_in_sync(cluster, sink.topic)
    leader = leader_of(cluster, sink.topic)
    sink.node = next(node for node in cluster.nodes if node is not leader)
    values = texts(20_000, size=500)
    transaction = sink.begin()
    with pytest.raises(BrokenError):
        sink.write(transaction, values, breaks_at=3000)
    with in_background(leader.process.kill) as killer:
        message = sink.write(transaction, values)
        killer.result()
    commit([message], sink.topic)
    assert eventually(lambda: last_stable_offset(sink.node, sink.topic) > 20_000)
    restart(cluster, leader)
    assert sink.values() == [value.decode() for value in values]
