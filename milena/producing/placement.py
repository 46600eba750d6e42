"""Map each record of one topic to the lane of a partition (pure).

When the topic's partitions or leaders change, the placement is replaced by a new one. It continues with the next lane
in turn for records without a key.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, repeat

from milena.cluster.view import TopicView
from milena.errors import BadRecordError
from milena.model.batch.header import HEADER_BYTES
from milena.model.batch.timestamps import (
    AFTER,
    ANY_TIMESTAMP,
    BEFORE,
    USUAL_TIMESTAMPS,
    TimestampBounds,
)
from milena.producing.batching import Lane, RecordRows
from milena.producing.options import MESSAGE_BYTES_MAX, REQUEST_BYTES_MAX
from milena.producing.outgoing import OutgoingRecords
from milena.producing.partitioner import (
    Partitioner,
    Topology,
    available_partitions,
    choose,
    key_partition,
    next_in_turn,
)

_FRAME_BYTES = HEADER_BYTES + 32
"""The bytes that a batch of one record takes besides the record: the batch header, and the frame of five columns."""


class TopicPlacement:
    """The lanes of a topic, and the rule that chooses between them. The caller guards ``sticky`` with a lock."""

    __slots__ = (
        "_available",
        "_lanes",
        "_partitioner",
        "needs_keys",
        "partition_count",
        "record_bytes_max",
        "sticky",
        "timestamps",
        "topology",
    )

    def __init__(
        self,
        topology: Topology,
        lane_of: Callable[[int], Lane],
        *,
        partitioner: Partitioner | None,
        previous: "TopicPlacement | None" = None,
    ) -> None:
        self.topology = topology
        self.partition_count = topology.partition_count
        self._lanes = [lane_of(partition) for partition in range(topology.partition_count)]
        self._available = available_partitions(topology.topic)
        self._partitioner = partitioner
        self.record_bytes_max = _record_bytes_max(topology.topic)
        """The largest record that the topic accepts, in bytes, by the configs in the client's metadata."""
        self.timestamps = _timestamps(topology.topic)
        """The timestamps that the topic accepts, by the configs in the client's metadata."""
        self.needs_keys = "compact" in topology.topic.configs.get("cleanup.policy", "")
        """True if the topic is compacted. Nodes then refuse a batch in which a record has no key."""
        last = -1 if previous is None else previous.sticky.partition
        self.sticky: Lane = self._lanes[next_in_turn(self._available, last)]
        """The lane for records without a key, until its open batch is full."""

    def partition_for(self, key: bytes | None, value: bytes | None) -> int | None:
        """Return the partition that the caller's function or the record's key chooses; None: any partition.

        Raises:
            BadRecordError: the caller's function failed.
        """
        if self._partitioner is not None:
            return choose(self._partitioner, key, value, self.topology)
        return None if key is None else key_partition(key, self.partition_count)

    def partitions_for(
        self, keys: Sequence[bytes | None] | None, values: Sequence[bytes | None]
    ) -> list[int | None] | None:
        """Return the result of ``partition_for`` for each record; None if every record may go to any partition.

        Raises:
            BadRecordError: the caller's function failed.
        """
        if self._partitioner is None and keys is None:
            return None
        if self._partitioner is None and keys is not None:
            count = self.partition_count
            if None in keys:
                return [None if key is None else key_partition(key, count) for key in keys]
            return list(map(key_partition, keys, repeat(count)))
        rows = zip(keys or repeat(None), values, strict=False)
        return [self.partition_for(key, value) for key, value in rows]

    def lane(self, partition: int) -> Lane:
        """Return the lane of a partition that the caller named.

        Raises:
            BadRecordError: the topic has no such partition.
        """
        if 0 <= partition < self.partition_count:
            return self._lanes[partition]
        raise BadRecordError(
            f"{self.topology.topic.name} has partitions 0 to {self.partition_count - 1}, not {partition}"
        )

    def advance(self) -> Lane:
        """Move on to the next lane in turn, and return it. The caller has sealed the batch of the last lane."""
        self.sticky = self._lanes[next_in_turn(self._available, self.sticky.partition)]
        return self.sticky


def placed_rows(
    placement: TopicPlacement, records: OutgoingRecords, partition: int | None
) -> list[tuple[int | None, RecordRows]]:
    """Return pairs of a partition (None: any) and its records, in the order in which they must be put into batches.

    Raises:
        BadRecordError: the caller's function failed, or there is no such partition.
    """
    if partition is not None:
        placement.lane(partition)
        return [(partition, records.rows)]
    chosen = placement.partitions_for(records.keys, records.values)
    if chosen is None:
        return [(None, records.rows)]
    if None not in chosen:
        return _rows_by_partition(records, chosen, range(len(chosen)))
    return [
        placed
        # A record without a key may get the same partition as one with a key. Their order there must be that of the
        # call, so the records are split where ``chosen`` changes between None and a partition.
        for _, run in groupby(range(len(chosen)), lambda place: chosen[place] is None)
        for placed in _rows_by_partition(records, chosen, run)
    ]


def _rows_by_partition(
    records: OutgoingRecords, chosen: Sequence[int | None], places: Iterable[int]
) -> list[tuple[int | None, RecordRows]]:
    found: defaultdict[int | None, list[int]] = defaultdict(list)
    for place in places:
        found[chosen[place]].append(place)
    return [(partition, records.rows_at(some)) for partition, some in found.items()]


def _timestamps(topic: TopicView) -> TimestampBounds:
    if topic.configs.get("message.timestamp.type") == "LogAppendTime":
        return ANY_TIMESTAMP
    before, after = topic.configs.get(BEFORE, ""), topic.configs.get(AFTER, "")
    return TimestampBounds(
        int(before) if before.isdecimal() else None,
        int(after) if after.isdecimal() else USUAL_TIMESTAMPS.after_ms,
    )


def _record_bytes_max(topic: TopicView) -> int:
    text = topic.configs.get("max.message.bytes", "")
    allowed = int(text) if text.isdecimal() else MESSAGE_BYTES_MAX
    return min(allowed, REQUEST_BYTES_MAX) - _FRAME_BYTES
