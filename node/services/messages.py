"""Declarations of the calls between the services of nodes. Names on the wire are those of earlier releases."""

from typing import Literal

from msgspec import Struct, field

from node.peers.messages import Blob, CallType, Done, Message


class AppendBatchRequest(Message, frozen=True, kw_only=True):
    """Append the batch in the body, as leader under this epoch. ``acks``: as clients send it, -1 for all."""

    topic_id: str = field(name="topic")
    partition: int
    leader_epoch: int = field(name="epoch")
    acks: Literal[0, 1, -1]
    timeout_ms: int


class AppendBatchAnswer(Message, frozen=True, kw_only=True):
    """The offsets of the batch's first and last record; -1 with acks=0."""

    base_offset: int = field(name="base")
    last_offset: int = field(name="last")
    is_duplicate: bool = field(name="dup")
    append_time_ms: int = field(name="time", default=-1)
    """Time of the append by the leader's wall clock, in ms; -1: unknown."""


class AppendIfRequest(AppendBatchRequest, frozen=True, kw_only=True):
    """Append the batch in the body only if it gets the offset ``expected_end``.

    This is a separate call, because a node of an earlier release would ignore an additional field and append anywhere.
    """

    expected_end: int = field(name="if")


class AppendIfAnswer(AppendBatchAnswer, frozen=True, kw_only=True):
    """The result. If ``end_offset`` is set, nothing was written, because the log ended there.

    That end was committed, and this broker was still the leader.
    """

    end_offset: int | None = field(name="end", default=None)


class ReadRequest(Message, frozen=True, kw_only=True):
    """Read committed records, as leader under this epoch.

    ``offset``: an offset, ``earliest`` or ``latest``. ``timestamp_ms``: if set, start at the first record at or after
    this time.
    """

    topic_id: str = field(name="topic")
    partition: int
    offset: int | str
    timestamp_ms: int | None = field(name="timestamp")
    max_bytes: int
    timeout_ms: int
    leader_epoch: int = field(name="epoch")
    is_doubted: bool = field(name="bad", default=False)
    """Read nothing, but check the stored records: those that were sent from ``offset`` on arrived damaged."""
    is_uncommitted: bool = field(name="raw", default=False)
    """Include records of transactions that are open or aborted."""
    is_unconfirmed: bool = field(name="unconfirmed", default=False)
    """Return the log's end as this node knows it, without asking the quorum. An earlier release asks the quorum."""
    wants_records_end: bool = field(name="last", default=False)
    """Also return the end of the last record. An earlier release does not."""


class ReadAnswer(Message, frozen=True, kw_only=True):
    """The offset of the first batch in the body, and the partition's ends when the batches were read."""

    start_offset: int = field(name="start")
    readable_end: int = field(name="hw")
    """The offset at which reading ends for this reader. It is the only end that an earlier release sends."""
    log_start_offset: int = field(name="log_start")
    leader_epoch: int = field(name="epoch")
    records_end: int = field(name="last", default=-1)
    """One above the last record that a reader of committed records sees; -1: not asked for, or unknown."""
    high_watermark: int = field(name="committed", default=-1)
    """-1 from an earlier release."""
    last_stable_offset: int = field(name="stable", default=-1)
    """-1 from an earlier release."""


class DeleteRecordsRequest(Message, frozen=True, kw_only=True):
    """Delete the records below ``before``, as leader under this epoch. None: delete all committed records."""

    topic_id: str = field(name="topic")
    partition: int
    before: int | None
    leader_epoch: int = field(name="epoch")
    timeout_ms: int


class DeleteRecordsAnswer(Message, frozen=True, kw_only=True):
    """The first offset that is left."""

    log_start_offset: int = field(name="start")


class KnownImageRequest(Message, frozen=True, kw_only=True):
    """Answer once the node's image has this index, or a later one."""

    index: int


class SequencesRequest(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Report how far a producer has written in the partitions that the node leads, once its image has the epoch."""

    producer_id: int = field(name="id")
    producer_epoch: int = field(name="epoch")
    wants_rows: bool = field(name="rows", default=True)
    """False: only confirm that the image has the epoch. An earlier release sends rows nevertheless."""
    wants_held: bool = field(name="held", default=False)
    """Also report which copies have transactions of an earlier epoch. An earlier release reports none."""


class SequenceRow(Struct, frozen=True, array_like=True):
    """The last sequence of a producer in one partition."""

    topic: str
    partition: int
    sequence: int


class HeldRow(Struct, frozen=True, array_like=True):
    """A transaction for which readers of a copy wait: it is open there, or its marker is not known to be committed.

    ``leader_epoch``: the partition's leader epoch as the copy's node knows it.
    """

    topic_id: str
    partition: int
    producer_epoch: int
    leader_epoch: int


class SequencesAnswer(Message, frozen=True, kw_only=True, omit_defaults=True):
    """The last sequences of the producer in the partitions that the node leads."""

    rows: tuple[SequenceRow, ...]
    held: tuple[HeldRow, ...] = ()
    """Transactions in all copies of the node, not only those that lead: a leader may change during the question."""


class OpenTransactionRequest(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Report how far a transaction has come in a partition, as leader under this epoch or a later one.

    ``is_bound``: the sender will have the quorum check that the leader epoch of the response is still the present one.
    So the leader need not ask the quorum now whether it still leads.
    """

    topic_id: str = field(name="topic")
    partition: int
    leader_epoch: int = field(name="epoch")
    producer_id: int = field(name="id")
    producer_epoch: int = field(name="producer_epoch")
    is_bound: bool = field(name="bound", default=False)


class OpenTransactionAnswer(Message, frozen=True, kw_only=True, omit_defaults=True):
    """The end (exclusive) of the transaction's last batch, and its number of records; -1 and 0 if it is not open.

    ``leader_epoch``: the leader epoch of this response if the request is bound, else -1.
    """

    end_offset: int = field(name="end")
    records: int
    leader_epoch: int = field(name="epoch", default=-1)


class KeyedTransactionRequest(Message, frozen=True, kw_only=True):
    """Report which transaction used an idempotency key, as leader of a partition that may be the key's home."""

    topic_id: str = field(name="topic")
    partition: int
    leader_epoch: int = field(name="epoch")
    partition_count: int = field(name="partitions")
    """The topic's partition count in the sender's image. The leader responds once its own image has it, too."""
    key_hash: bytes = field(name="key")


class PartitionRow(Struct, frozen=True, array_like=True):
    """The topic id and number of a partition."""

    topic_id: str
    partition: int


class MarkedTransactionRequest(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Respond once the markers of a transaction are committed in these partitions, as their leader."""

    producer_id: int = field(name="id")
    producer_epoch: int = field(name="producer_epoch")
    partitions: tuple[PartitionRow, ...]
    may_lack: bool = field(name="lack", default=False)
    """Count a partition as done if it has neither records nor a marker of the transaction. Earlier releases wait."""


class ExtentRow(Struct, frozen=True, array_like=True):
    """The range of offsets that a transaction wrote in one partition; the end is exclusive."""

    topic_id: str
    partition: int
    base_offset: int
    end_offset: int


class PlaceRow(Struct, frozen=True, array_like=True):
    """The place of a request's records in a transaction: index of the extent, number of records before them, count."""

    extent: int
    first: int
    records: int


class KeyedTransactionAnswer(Message, frozen=True, kw_only=True):
    """The topic's partition count when the key was used; -1 if the key was not used.

    ``producer_id`` and ``producer_epoch`` name the transaction that used the key; (-1, -1): a write without one.
    ``extents``: all that the transaction wrote, once its marker is in the log. ``places``: the records of the request
    with this key, if several keys share the transaction.
    """

    partition_count: int = field(name="partitions")
    producer_id: int = field(name="id", default=-1)
    producer_epoch: int = field(name="producer_epoch", default=-1)
    is_committed: bool = field(name="committed", default=False)
    extents: tuple[ExtentRow, ...] = ()
    places: tuple[PlaceRow, ...] = ()


class OpenTransactionsRequest(Message, frozen=True, kw_only=True):
    """Report the transactions that are open in the partitions that the node leads."""


class OpenTransactionRow(Struct, frozen=True, array_like=True):
    """One transaction in one partition; times are ms of the wall clock."""

    topic_id: str
    partition: int
    producer_id: int
    producer_epoch: int
    first_offset: int
    records: int
    began_ms: int
    timeout_ms: int


class OpenTransactionsAnswer(Message, frozen=True, kw_only=True):
    """Transactions without a committed marker: at most ``ROWS_MAX``, the oldest first."""

    rows: tuple[OpenTransactionRow, ...]


class MovesRequest(Message, frozen=True, kw_only=True):
    """Report the progress of replicas that moves add to the partitions that the node leads."""


class ReplicaProgress(Struct, frozen=True, kw_only=True, array_like=True):
    """The progress of a replica that a move adds, as its leader knows it."""

    topic_id: str
    partition: int
    broker_id: int
    offsets_left: int
    bytes_left: int
    """Estimated from the log's size, as if all its records had the same size."""


class MovesAnswer(Message, frozen=True, kw_only=True):
    """The progress of replicas that moves add."""

    rows: tuple[ReplicaProgress, ...]


class HistoryRequest(Message, frozen=True, kw_only=True):
    """Report the last hour: of the node, of a topic, or of a group's lag in the partitions that the node leads."""

    topic_id: str = field(name="topic", default="")
    group: str = ""


class BusyRow(Struct, frozen=True, array_like=True):
    """A partition, and the traffic of the node's replica of it in the last minute, as rates per second."""

    topic_id: str
    partition: int
    records_in_per_second: float
    bytes_in_per_second: float
    bytes_out_per_second: float
    records_out_per_second: float = 0.0


class HistoryAnswer(Message, frozen=True, kw_only=True):
    """Series of equal length, one after the other, as little-endian 32-bit floats. Each ends with ``end_slot``."""

    end_slot: int = field(name="end")
    names: tuple[str, ...]
    values: Blob
    busiest: tuple[BusyRow, ...] = field(name="busy", default=())
    left_out: int = field(name="left_out", default=0)
    version: str = field(name="version", default="")
    """The release that the node runs."""


class SizesRequest(Message, frozen=True, kw_only=True):
    """Report the sizes of the node's replicas of these topics, in bytes.

    ``by_partition``: report the size of each partition of the first topic.
    """

    topic_ids: tuple[str, ...] = field(name="topics")
    by_partition: bool = False


class SizesAnswer(Message, frozen=True, kw_only=True):
    """Sizes in bytes by topic id, or by partition number. What the node has no replica of is left out."""

    sizes: dict[str, int]


PRODUCE = CallType("produce", AppendBatchRequest, AppendBatchAnswer)
PRODUCE_IF = CallType("produce_if", AppendIfRequest, AppendIfAnswer)
READ = CallType("read", ReadRequest, ReadAnswer)
DELETE_RECORDS = CallType("delete_records", DeleteRecordsRequest, DeleteRecordsAnswer)
KNOWN_IMAGE = CallType("known_image", KnownImageRequest, Done)
SEQUENCES = CallType("sequences", SequencesRequest, SequencesAnswer)
OPEN_TRANSACTION = CallType("open_transaction", OpenTransactionRequest, OpenTransactionAnswer)
MARKED_TRANSACTION = CallType("marked_transaction", MarkedTransactionRequest, Done)
KEYED_TRANSACTION = CallType("keyed_transaction", KeyedTransactionRequest, KeyedTransactionAnswer)
OPEN_TRANSACTIONS = CallType("open_transactions", OpenTransactionsRequest, OpenTransactionsAnswer)
MOVES = CallType("moves", MovesRequest, MovesAnswer)
HISTORY = CallType("history", HistoryRequest, HistoryAnswer)
SIZES = CallType("sizes", SizesRequest, SizesAnswer)
