"""Calls between nodes' services, declared. Names on the wire are those of earlier releases."""

from typing import Literal

from msgspec import Struct, field

from node.peers.messages import Blob, CallType, Done, Message


class AppendBatchRequest(Message, frozen=True, kw_only=True):
    """Append the batch in the body as leader under this epoch. ``acks``: as clients say it, -1 for all."""

    topic_id: str = field(name="topic")
    partition: int
    leader_epoch: int = field(name="epoch")
    acks: Literal[0, 1, -1]
    timeout_ms: int


class AppendBatchAnswer(Message, frozen=True, kw_only=True):
    """Offsets of the batch's first and last record; -1 where nobody waited for them."""

    base_offset: int = field(name="base")
    last_offset: int = field(name="last")
    is_duplicate: bool = field(name="dup")
    append_time_ms: int = field(name="time", default=-1)
    """Of the leader's clock; -1: not known."""


class AppendIfRequest(AppendBatchRequest, frozen=True, kw_only=True):
    """Append the batch in the body if ``expected_end`` is its offset.

    A call of its own: a node of an earlier release would pass over the field, and append wherever the log ends.
    """

    expected_end: int = field(name="if")


class AppendIfAnswer(AppendBatchAnswer, frozen=True, kw_only=True):
    """With ``end_offset``: nothing was written, for there the log ended; that is committed, and nobody else led."""

    end_offset: int | None = field(name="end", default=None)


class ReadRequest(Message, frozen=True, kw_only=True):
    """Read committed records as leader under this epoch; ``offset`` may be a word, or ``timestamp_ms`` say where."""

    topic_id: str = field(name="topic")
    partition: int
    offset: int | str
    timestamp_ms: int | None = field(name="timestamp")
    max_bytes: int
    timeout_ms: int
    leader_epoch: int = field(name="epoch")
    is_doubted: bool = field(name="bad", default=False)
    """Nothing is read: what came from ``offset`` on was not whole, and is to be checked."""
    is_uncommitted: bool = field(name="raw", default=False)
    """Records of transactions that are open or aborted, too."""
    is_unconfirmed: bool = field(name="unconfirmed", default=False)
    """The leader answers from memory where the log ends, and asks no quorum. An earlier release asks it."""
    wants_records_end: bool = field(name="last", default=False)
    """Say where the last record ends, too. An earlier release does not."""


class ReadAnswer(Message, frozen=True, kw_only=True):
    """Where the batches in the body begin, and the partition as it was when they were read."""

    start_offset: int = field(name="start")
    readable_end: int = field(name="hw")
    """Where the reader's reading ends: an earlier release knows no other end."""
    log_start_offset: int = field(name="log_start")
    leader_epoch: int = field(name="epoch")
    records_end: int = field(name="last", default=-1)
    """One above the last record that a committed reader sees; -1: not asked for, or not known."""
    high_watermark: int = field(name="committed", default=-1)
    """-1: an earlier release answers."""
    last_stable_offset: int = field(name="stable", default=-1)
    """-1: an earlier release answers."""


class DeleteRecordsRequest(Message, frozen=True, kw_only=True):
    """Delete what lies below ``before`` (None: all that is committed), as leader under this epoch."""

    topic_id: str = field(name="topic")
    partition: int
    before: int | None
    leader_epoch: int = field(name="epoch")
    timeout_ms: int


class DeleteRecordsAnswer(Message, frozen=True, kw_only=True):
    """The first offset that is left."""

    log_start_offset: int = field(name="start")


class SequencesRequest(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Say how far a producer has written on what you lead, once you know its epoch."""

    producer_id: int = field(name="id")
    producer_epoch: int = field(name="epoch")
    wants_rows: bool = field(name="rows", default=True)
    """Without: the answer only means that the epoch is known. An earlier release sends rows."""


class SequenceRow(Struct, frozen=True, array_like=True):
    """The last sequence of a producer in one partition."""

    topic: str
    partition: int
    sequence: int


class SequencesAnswer(Message, frozen=True, kw_only=True):
    """Partitions that are led here and know the producer."""

    rows: tuple[SequenceRow, ...]


class OpenTransactionRequest(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Say how far a transaction has come in a partition, as leader under this epoch, or one of a later epoch.

    ``is_bound``: the answer is to count only if the answer's leader epoch is still the partition's when it is used, so
    that the quorum need not be asked whether it is now.
    """

    topic_id: str = field(name="topic")
    partition: int
    leader_epoch: int = field(name="epoch")
    producer_id: int = field(name="id")
    producer_epoch: int = field(name="producer_epoch")
    is_bound: bool = field(name="bound", default=False)


class OpenTransactionAnswer(Message, frozen=True, kw_only=True, omit_defaults=True):
    """The end (exclusive) of its last batch, and the number of its records; -1 and 0: it is not open there.

    ``leader_epoch``: under which that was said, where the request asks to be bound to it.
    """

    end_offset: int = field(name="end")
    records: int
    leader_epoch: int = field(name="epoch", default=-1)


class KeyedTransactionRequest(Message, frozen=True, kw_only=True):
    """Say what came under an idempotency key, as leader of a partition where the key may be at home."""

    topic_id: str = field(name="topic")
    partition: int
    leader_epoch: int = field(name="epoch")
    partition_count: int = field(name="partitions")
    """The topic's, as the asker knows it; an answer is of no use before its leader knows it, too."""
    key_hash: bytes = field(name="key")


class PartitionRow(Struct, frozen=True, array_like=True):
    """A partition."""

    topic_id: str
    partition: int


class MarkedTransactionRequest(Message, frozen=True, kw_only=True):
    """Answer once the markers of a committed transaction are committed in these partitions, as their leader."""

    producer_id: int = field(name="id")
    producer_epoch: int = field(name="producer_epoch")
    partitions: tuple[PartitionRow, ...]


class ExtentRow(Struct, frozen=True, array_like=True):
    """Offsets that a transaction wrote in one partition, the last exclusive."""

    topic_id: str
    partition: int
    base_offset: int
    end_offset: int


class PlaceRow(Struct, frozen=True, array_like=True):
    """Which of a transaction's extents has records of a request, behind how many others, and how many of them."""

    extent: int
    first: int
    records: int


class KeyedTransactionAnswer(Message, frozen=True, kw_only=True):
    """The topic's partition count when the key was used, -1: it was not.

    Of a transaction its identity, (-1, -1): it was none; and, once its marker is there, what it wrote. ``places``: the
    key's own in one that several share.
    """

    partition_count: int = field(name="partitions")
    producer_id: int = field(name="id", default=-1)
    producer_epoch: int = field(name="producer_epoch", default=-1)
    is_committed: bool = field(name="committed", default=False)
    extents: tuple[ExtentRow, ...] = ()
    places: tuple[PlaceRow, ...] = ()


class OpenTransactionsRequest(Message, frozen=True, kw_only=True):
    """Say which transactions are open in what you lead."""


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
    """Transactions without a marker, at most ``ROWS_MAX`` of them, those that began first."""

    rows: tuple[OpenTransactionRow, ...]


class MovesRequest(Message, frozen=True, kw_only=True):
    """Say how far the replicas are that are added to what you lead."""


class ReplicaProgress(Struct, frozen=True, kw_only=True, array_like=True):
    """A replica that is being added, as its leader knows it."""

    topic_id: str
    partition: int
    broker_id: int
    offsets_left: int
    bytes_left: int
    """Estimated: as if all records of the log were of one size."""


class MovesAnswer(Message, frozen=True, kw_only=True):
    """Replicas that are being added."""

    rows: tuple[ReplicaProgress, ...]


class HistoryRequest(Message, frozen=True, kw_only=True):
    """Tell the last hour of what you did: in all, or for a topic, or how far a group was behind on what you led."""

    topic_id: str = field(name="topic", default="")
    group: str = ""


class BusyRow(Struct, frozen=True, array_like=True):
    """A partition, and what went through the node's replica of it over the last minute, as rates."""

    topic_id: str
    partition: int
    records_in_per_second: float
    bytes_in_per_second: float
    bytes_out_per_second: float
    records_out_per_second: float = 0.0


class HistoryAnswer(Message, frozen=True, kw_only=True):
    """Series of one length, one behind the other as little-endian 32-bit floats; each ends with ``end_slot``."""

    end_slot: int = field(name="end")
    names: tuple[str, ...]
    values: Blob
    busiest: tuple[BusyRow, ...] = field(name="busy", default=())
    left_out: int = field(name="left_out", default=0)
    version: str = field(name="version", default="")
    """Of the release that the node runs."""


class SizesRequest(Message, frozen=True, kw_only=True):
    """Tell the bytes that your replicas of these topics take; ``by_partition``: of one topic, of each partition."""

    topic_ids: tuple[str, ...] = field(name="topics")
    by_partition: bool = False


class SizesAnswer(Message, frozen=True, kw_only=True):
    """Bytes by topic id, or by partition, without those that the node has no replica of."""

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
