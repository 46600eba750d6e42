"""Calls between the services of nodes, declared. Names on the wire are those of earlier releases."""

from typing import Literal

from msgspec import Struct, field

from node.peers.messages import Blob, CallType, Done, Message


class AppendBatchRequest(Message, frozen=True, kw_only=True):
    """Append the batch in the body as leader under this epoch. ``acks``: as clients send it, -1 for all."""

    topic_id: str = field(name="topic")
    partition: int
    leader_epoch: int = field(name="epoch")
    acks: Literal[0, 1, -1]
    timeout_ms: int


class AppendBatchAnswer(Message, frozen=True, kw_only=True):
    """Offsets of the batch's first and last record; -1 if the write did not wait for them."""

    base_offset: int = field(name="base")
    last_offset: int = field(name="last")
    is_duplicate: bool = field(name="dup")
    append_time_ms: int = field(name="time", default=-1)
    """Wall ms of the leader's clock; -1: not known."""


class AppendIfRequest(AppendBatchRequest, frozen=True, kw_only=True):
    """Append the batch in the body if ``expected_end`` is its offset.

    This is a call of its own: a node of an earlier release would ignore the field, and append at any end.
    """

    expected_end: int = field(name="if")


class AppendIfAnswer(AppendBatchAnswer, frozen=True, kw_only=True):
    """The result. With ``end_offset``, nothing was written: the log ended there.

    That end is committed, and no other broker led.
    """

    end_offset: int | None = field(name="end", default=None)


class ReadRequest(Message, frozen=True, kw_only=True):
    """Read committed records as leader under this epoch.

    ``offset`` may be ``earliest`` or ``latest``. With ``timestamp_ms``, that time gives the offset.
    """

    topic_id: str = field(name="topic")
    partition: int
    offset: int | str
    timestamp_ms: int | None = field(name="timestamp")
    max_bytes: int
    timeout_ms: int
    leader_epoch: int = field(name="epoch")
    is_doubted: bool = field(name="bad", default=False)
    """Read nothing: what was sent from ``offset`` on was not whole. Check it."""
    is_uncommitted: bool = field(name="raw", default=False)
    """Include records of transactions that are open or aborted."""
    is_unconfirmed: bool = field(name="unconfirmed", default=False)
    """Report from memory where the log ends, without asking the quorum. An earlier release asks it."""
    wants_records_end: bool = field(name="last", default=False)
    """Report where the last record ends, too. An earlier release does not."""


class ReadAnswer(Message, frozen=True, kw_only=True):
    """The offset at which the batches in the body begin, and the partition's state when they were read."""

    start_offset: int = field(name="start")
    readable_end: int = field(name="hw")
    """The end of reading for this reader. An earlier release knows no other end."""
    log_start_offset: int = field(name="log_start")
    leader_epoch: int = field(name="epoch")
    records_end: int = field(name="last", default=-1)
    """One above the last record that a committed reader sees; -1: not asked for, or not known."""
    high_watermark: int = field(name="committed", default=-1)
    """-1 from an earlier release."""
    last_stable_offset: int = field(name="stable", default=-1)
    """-1 from an earlier release."""


class DeleteRecordsRequest(Message, frozen=True, kw_only=True):
    """Delete the records below ``before`` as leader under this epoch. None: all committed records."""

    topic_id: str = field(name="topic")
    partition: int
    before: int | None
    leader_epoch: int = field(name="epoch")
    timeout_ms: int


class DeleteRecordsAnswer(Message, frozen=True, kw_only=True):
    """The first offset that remains."""

    log_start_offset: int = field(name="start")


class SequencesRequest(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Report how far a producer has written in the partitions that the node leads, once it knows the epoch."""

    producer_id: int = field(name="id")
    producer_epoch: int = field(name="epoch")
    wants_rows: bool = field(name="rows", default=True)
    """False: the response only confirms that the epoch is known. An earlier release sends rows anyway."""
    wants_held: bool = field(name="held", default=False)
    """Report also which copies have a transaction of an earlier epoch. An earlier release reports none."""


class SequenceRow(Struct, frozen=True, array_like=True):
    """The last sequence of a producer in one partition."""

    topic: str
    partition: int
    sequence: int


class HeldRow(Struct, frozen=True, array_like=True):
    """A transaction that holds up readers in a copy: open, or with a marker that the copy does not know as committed.

    ``leader_epoch``: the leader epoch that the copy knows.
    """

    topic_id: str
    partition: int
    producer_epoch: int
    leader_epoch: int


class SequencesAnswer(Message, frozen=True, kw_only=True, omit_defaults=True):
    """The partitions that the node leads and that know the producer."""

    rows: tuple[SequenceRow, ...]
    held: tuple[HeldRow, ...] = ()
    """All copies of the node count here, not only those that lead: a leader may change during the question."""


class OpenTransactionRequest(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Report how far a transaction has come in a partition, as leader under this epoch or a later one.

    ``is_bound``: the response counts only if its leader epoch is still the partition's when it is used. So the quorum
    need not be asked now whether this broker leads.
    """

    topic_id: str = field(name="topic")
    partition: int
    leader_epoch: int = field(name="epoch")
    producer_id: int = field(name="id")
    producer_epoch: int = field(name="producer_epoch")
    is_bound: bool = field(name="bound", default=False)


class OpenTransactionAnswer(Message, frozen=True, kw_only=True, omit_defaults=True):
    """The end (exclusive) of the transaction's last batch and the number of its records; -1 and 0: it is not open.

    ``leader_epoch``: the epoch under which that was said, if the request is bound to it; else -1.
    """

    end_offset: int = field(name="end")
    records: int
    leader_epoch: int = field(name="epoch", default=-1)


class KeyedTransactionRequest(Message, frozen=True, kw_only=True):
    """Report what was written under an idempotency key, as leader of a partition that may be the key's home."""

    topic_id: str = field(name="topic")
    partition: int
    leader_epoch: int = field(name="epoch")
    partition_count: int = field(name="partitions")
    """The topic's partition count that the sender knows. The leader must know it, too, before it can respond."""
    key_hash: bytes = field(name="key")


class PartitionRow(Struct, frozen=True, array_like=True):
    """The key of a partition."""

    topic_id: str
    partition: int


class MarkedTransactionRequest(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Respond once the markers of a transaction are committed in these partitions, as their leader."""

    producer_id: int = field(name="id")
    producer_epoch: int = field(name="producer_epoch")
    partitions: tuple[PartitionRow, ...]
    may_lack: bool = field(name="lack", default=False)
    """A partition that has neither records nor a marker of the transaction is done. An earlier release waits there."""


class ExtentRow(Struct, frozen=True, array_like=True):
    """The offsets that a transaction wrote in one partition; the end is exclusive."""

    topic_id: str
    partition: int
    base_offset: int
    end_offset: int


class PlaceRow(Struct, frozen=True, array_like=True):
    """The records of a request in a transaction: in which extent, after how many other records, and how many."""

    extent: int
    first: int
    records: int


class KeyedTransactionAnswer(Message, frozen=True, kw_only=True):
    """The topic's partition count when the key was used; -1: the key was not used.

    ``producer_id`` and ``producer_epoch`` name the transaction; (-1, -1): it was none. ``extents``: what the
    transaction wrote, once its marker is there. ``places``: the key's own records in a transaction that several keys
    share.
    """

    partition_count: int = field(name="partitions")
    producer_id: int = field(name="id", default=-1)
    producer_epoch: int = field(name="producer_epoch", default=-1)
    is_committed: bool = field(name="committed", default=False)
    extents: tuple[ExtentRow, ...] = ()
    places: tuple[PlaceRow, ...] = ()


class OpenTransactionsRequest(Message, frozen=True, kw_only=True):
    """Report the transactions that are open in partitions that the node leads."""


class OpenTransactionRow(Struct, frozen=True, array_like=True):
    """One transaction in one partition; times are wall ms."""

    topic_id: str
    partition: int
    producer_id: int
    producer_epoch: int
    first_offset: int
    records: int
    began_ms: int
    timeout_ms: int


class OpenTransactionsAnswer(Message, frozen=True, kw_only=True):
    """Transactions without a marker, at most ``ROWS_MAX`` of them; those that began first."""

    rows: tuple[OpenTransactionRow, ...]


class MovesRequest(Message, frozen=True, kw_only=True):
    """Report the progress of replicas that are being added to partitions that the node leads."""


class ReplicaProgress(Struct, frozen=True, kw_only=True, array_like=True):
    """The progress of a replica that is being added, as its leader knows it."""

    topic_id: str
    partition: int
    broker_id: int
    offsets_left: int
    bytes_left: int
    """Estimated, as if all records of the log had the same size."""


class MovesAnswer(Message, frozen=True, kw_only=True):
    """Replicas that are being added."""

    rows: tuple[ReplicaProgress, ...]


class HistoryRequest(Message, frozen=True, kw_only=True):
    """Report the last hour: of the node, of a topic, or of a group's lag on the partitions that the node leads."""

    topic_id: str = field(name="topic", default="")
    group: str = ""


class BusyRow(Struct, frozen=True, array_like=True):
    """A partition, and the traffic of the node's replica of it over the last minute, as rates per second."""

    topic_id: str
    partition: int
    records_in_per_second: float
    bytes_in_per_second: float
    bytes_out_per_second: float
    records_out_per_second: float = 0.0


class HistoryAnswer(Message, frozen=True, kw_only=True):
    """Series of one length, one after the other, as little-endian 32-bit floats. Each ends with ``end_slot``."""

    end_slot: int = field(name="end")
    names: tuple[str, ...]
    values: Blob
    busiest: tuple[BusyRow, ...] = field(name="busy", default=())
    left_out: int = field(name="left_out", default=0)
    version: str = field(name="version", default="")
    """The release that the node runs."""


class SizesRequest(Message, frozen=True, kw_only=True):
    """Report the bytes that the node's replicas of these topics take.

    ``by_partition``: report the bytes of each partition of the first topic.
    """

    topic_ids: tuple[str, ...] = field(name="topics")
    by_partition: bool = False


class SizesAnswer(Message, frozen=True, kw_only=True):
    """Bytes by topic id, or by partition number; without those of which the node has no replica."""

    sizes: dict[str, int]


PRODUCE = CallType("produce", AppendBatchRequest, AppendBatchAnswer)
PRODUCE_IF = CallType("produce_if", AppendIfRequest, AppendIfAnswer)
READ = CallType("read", ReadRequest, ReadAnswer)
DELETE_RECORDS = CallType("delete_records", DeleteRecordsRequest, DeleteRecordsAnswer)
SEQUENCES = CallType("sequences", SequencesRequest, SequencesAnswer)
OPEN_TRANSACTION = CallType("open_transaction", OpenTransactionRequest, OpenTransactionAnswer)
MARKED_TRANSACTION = CallType("marked_transaction", MarkedTransactionRequest, Done)
KEYED_TRANSACTION = CallType("keyed_transaction", KeyedTransactionRequest, KeyedTransactionAnswer)
OPEN_TRANSACTIONS = CallType("open_transactions", OpenTransactionsRequest, OpenTransactionsAnswer)
MOVES = CallType("moves", MovesRequest, MovesAnswer)
HISTORY = CallType("history", HistoryRequest, HistoryAnswer)
SIZES = CallType("sizes", SizesRequest, SizesAnswer)
