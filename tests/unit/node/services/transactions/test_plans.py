"""How the writes of one request become parts of its transaction, and the parts' offsets their receipts."""

import pytest

from milena.model.columns import RecordColumns
from milena.model.requests import Receipts, Records, TransactionWrite
from node.services.record_batches import PartitionBatch
from node.services.transactions.plans import Part, Plan, WriteGroup, grouped, merged


def write(topic, partition, *values, keys=None, partitions=None) -> TransactionWrite:
    records = Records(
        keys=keys,
        values=[value.encode() for value in values],
        headers=None,
        timestamps=None,
        partitions=partitions,
    )
    return TransactionWrite(topic=topic, partition=partition, records=records)


@pytest.mark.parametrize(
    ("writes", "groups"),
    [
        (
            [("t", 1), ("t", 0), ("u", 0), ("t", 1)],
            [("t", 1, [0, 3]), ("t", 0, [1]), ("u", 0, [2])],
        ),
        # Where the others go is not known yet, and a transaction writes once in each partition.
        ([("t", 1), ("u", 2), ("t", None)], [("t", None, [0, 2]), ("u", 2, [1])]),
        ([("t", None)], [("t", None, [0])]),
    ],
)
def test_writes_are_placed_together_where_one_does_not_say_its_partition(writes, groups):
    found = grouped([write(topic, partition, "x") for topic, partition in writes])
    assert [(topic, partition, [*numbers]) for topic, partition, numbers in found] == groups


def test_a_record_that_names_a_partition_of_its_own_is_placed_with_its_topic():
    writes = [write("t", 1, "a"), write("t", 0, "b", "c", partitions=[None, 2])]
    assert list(grouped(writes)) == [("t", None, [0, 1])]
    records = merged(writes, are_placed=False)
    assert records.values == [b"a", b"b", b"c"]
    assert records.partitions == [1, 0, 2]


def test_records_of_one_partition_need_no_partition_each():
    writes = [write("t", 1, "a", keys=[b"k"]), write("t", 1, "b")]
    records = merged(writes, are_placed=True)
    assert (records.keys, records.values, records.partitions) == ([b"k", None], [b"a", b"b"], None)


def test_a_write_alone_is_not_copied():
    for alone, are_placed in ((write("t", 1, "a"), True), (write("t", None, "a"), False)):
        assert merged([alone], are_placed=are_placed) is alone.records
    placed = merged([write("t", 1, "a")], are_placed=False)
    assert placed.partitions == [1]


def part(partition, *places) -> Part:
    columns = RecordColumns(
        offset_deltas=None,
        timestamp_deltas=None,
        keys=None,
        values=[b"x"] * len(places),
        headers=None,
    )
    batch = PartitionBatch(partition, places, columns, 0)
    return Part(None, None, batch)  # type: ignore[arg-type]


def test_receipts_are_each_writes_own_in_its_order():
    parts = [part(1, 0, 1, 2), part(0, 0, 2), part(2, 1)]
    groups = [WriteGroup(1, [(0, 2), (3, 1)]), WriteGroup(2, [(2, 1), (1, 2)])]
    receipts = Plan(parts, groups, 4).receipts([10, 20, 30])
    assert [[(one.partition, one.offset) for one in of_write] for of_write in receipts] == [
        [(1, 10), (1, 11)],
        [(2, 30), (0, 21)],
        [(0, 20)],
        [(1, 12)],
    ]
    # Of one partition, they are told without a look at each.
    assert isinstance(receipts[0], Receipts)
    assert receipts[0].offsets == range(10, 12)
