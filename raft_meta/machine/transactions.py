"""Transactions: the command that decides each, and each transaction's outcome according to the image.

A producer id and epoch name a transaction. Nothing is registered while it runs: the transaction is open as long as its
producer is at that epoch. A commit or an abort raises the epoch. So does a client that takes over the producer's name.
So each transaction is decided once.

A commit lists the extents, which are the ranges of offsets that the transaction wrote. Writes that the commit does not
list are aborted: the client forgot them, or they were late or never acknowledged. Group offsets are committed in the
same step.

For each partition that a commit names, the image has an ``Ending`` until the partition's log is known to have the
transaction's marker. The leader writes the marker, and ``FinishMarkers`` removes the ending. After that, only the logs
tell the outcome.
"""

from enum import Enum

from immutables import Map

from milena.model.errors import (
    InvalidProducerError,
    InvalidRequestError,
    PartitionNotFoundError,
    RequestTooLargeError,
    StaleLeaderEpochError,
    StaleProducerEpochError,
    TooManyTransactionsError,
    TopicNotFoundError,
    TopicNotTransactionalError,
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionNotFoundError,
    TransactionsPendingError,
)
from milena.model.types import PRODUCER_EPOCH_MAX, WallMs
from raft_meta.machine import transactional_ids
from raft_meta.machine.commands import (
    EndTransactions,
    FinishMarkers,
    GroupCommit,
    TransactionEnd,
)
from raft_meta.machine.copies import replace
from raft_meta.machine.groups import offsets
from raft_meta.machine.image import (
    AllocatedProducer,
    Ending,
    Image,
    KafkaTransactionalId,
    PartitionKey,
    Topic,
    TransactionExtent,
    TransactionKey,
)
from raft_meta.machine.outcome import Outcome
from raft_meta.machine.producers import ABORTED, COMMITTED
from raft_meta.machine.topics.configs import TopicSettings

TransactionCommand = EndTransactions | FinishMarkers

LEVEL = 6
"""The feature level from which on transactions exist."""
LEADER_EPOCHS_LEVEL = 9
"""The feature level from which on an end may name the leader epochs under which it is valid."""
SHARED_KEYS_LEVEL = 10
"""The feature level from which on requests with idempotency keys may share a transaction. Then a batch in a log may
have several keys. One partition keeps a key. It is the key's home, and one transaction may have several homes."""

ENDS_PER_COMMAND_MAX = 1_000
MARKERS_PER_COMMAND_MAX = 4_000
"""Largest number of markers in one command, at 60 bytes each."""
ITEMS_PER_TRANSACTION_MAX = 1_000
"""Largest number of extents and group offsets of one transaction together. A thousand extents take 57 kB of a command.

Each home of an idempotency key keeps all extents of the transaction, because its marker repeats them. The extents that
all homes keep together have the same limit."""
ENDINGS_MAX = 100_000
"""Largest number of endings. There are few unless partitions have no leader. This number takes 5 MB in a snapshot."""

_NONE: Map[TransactionKey, Ending] = Map()


class NotCommitted(Enum):
    """The state of a transaction that is not committed. An aborted transaction stays aborted."""

    OPEN = "open"
    ABORTED = "aborted"


def outcome_of(
    image: Image, topic_id: str, partition: int, producer_id: int, producer_epoch: int
) -> Ending | NotCommitted:
    """Return the state of a transaction in a partition whose log has no marker of it. An ``Ending`` means committed.

    When the log has the marker, the ending is removed, and this would return ABORTED. So a caller whose log has the
    marker must not ask. A producer without a name may be forgotten after many others. It then has no open transaction.
    """
    ending = image.ending.get((topic_id, partition), _NONE).get((producer_id, producer_epoch))
    if ending is not None:
        return ending
    # ``image.producer_epoch`` must not be used: it returns 0 for forgotten ids, so their transactions would be open.
    producer = image.producers.get(producer_id)
    if producer is not None and producer.producer_epoch == producer_epoch:
        return NotCommitted.OPEN
    return NotCommitted.ABORTED


assert transactional_ids.ITEMS_MAX == ITEMS_PER_TRANSACTION_MAX, (
    "each that is enlisted can be committed"
)


def apply(image: Image, index: int, now_ms: WallMs, command: TransactionCommand) -> Outcome:
    """Apply a command about transactions. ``index`` and ``now_ms``: index and time of the command.

    Raises:
        RequestTooLargeError: the command has too many ends or markers; it is refused as a whole.
    """
    if isinstance(command, FinishMarkers):
        return _finish(image, command)
    if len(command.ends) > ENDS_PER_COMMAND_MAX:
        raise RequestTooLargeError(
            f"{len(command.ends)} transactions end in one command; at most {ENDS_PER_COMMAND_MAX}."
        )
    ends = _Ends(image, index, now_ms)
    answers: list[str] = []
    for end in command.ends:
        try:
            ends.take(end)
        except offsets.REFUSALS as error:
            answers.append(error.code)
        else:
            answers.append("")
    return Outcome(ends.image(), tuple(answers))


class _Ends:
    """Collects the ends of one command for one new image. Each end sees the effects of the ends before it."""

    def __init__(self, image: Image, index: int, now_ms: WallMs) -> None:
        self._before = image
        self._index = index
        self._now_ms = now_ms
        self._rows: dict[str, KafkaTransactionalId] = {}
        self._next_id = image.next_producer_id
        self._commits = offsets.Gathered(image, index, now_ms)
        self._producers: dict[int, AllocatedProducer] = {}
        self._ending: dict[PartitionKey, dict[TransactionKey, Ending]] = {}
        self._count = image.ending_count
        self._settings: dict[str, TopicSettings] = {}

    def take(self, end: TransactionEnd) -> None:
        """Decide a transaction. If an earlier end decided it in the same way, do nothing.

        Raises:
            one of ``offsets.REFUSALS``: the transaction did not end as requested. It may have been aborted instead.
        """
        producer = self._producers.get(end.producer_id) or self._before.producers.get(
            end.producer_id
        )
        if producer is None:
            raise TransactionNotFoundError(f"There is no producer {end.producer_id}, or no longer.")
        if producer.producer_epoch == end.producer_epoch + 1:
            _check_ended_so(producer, end)
            return
        if producer.producer_epoch != end.producer_epoch:
            raise StaleProducerEpochError(
                f"Producer {end.producer_id} is at epoch {producer.producer_epoch}, not {end.producer_epoch}."
            )
        check_end(end)
        row = self._row_of(producer)
        if row is not None:
            transactional_ids.check_end(row, end)
        elif end.version >= 0 or end.raises_client:
            raise InvalidRequestError("This is not a transaction of a Kafka client.")
        self._check_leaders(end)
        if end.home_count > 1 and self._before.feature_level < SHARED_KEYS_LEVEL:
            raise InvalidRequestError("Nodes of an earlier release know one key of a transaction.")
        if self._count + len(end.extents) > ENDINGS_MAX:
            raise TooManyTransactionsError(
                f"{self._count} markers of committed transactions are to be written; try again later."
            )
        last = ABORTED
        try:
            if end.is_commit:
                self._commit(end, row)
                last = COMMITTED
        finally:
            if row is not None:
                self._rows[row.name] = self._after_end(row, end, last)
            self._producers[end.producer_id] = replace(
                producer,
                producer_epoch=end.producer_epoch + 1,
                last=last,
                # 0 marks a name that is kept for ever. It stays 0.
                used_ms=self._now_ms if producer.used_ms else producer.used_ms,
            )

    def _after_end(
        self, row: KafkaTransactionalId, end: TransactionEnd, last: str
    ) -> KafkaTransactionalId:
        after = transactional_ids.after_end(row, end, self._index, last)
        if not end.raises_client or after.producer_epoch < PRODUCER_EPOCH_MAX:
            return after
        # The epochs of the client's id are used up: it gets another id.
        producer_id = self._next_id
        self._next_id += 1
        return replace(after, producer_id=producer_id, producer_epoch=0, former_epoch=-1)

    def _row_of(self, producer: AllocatedProducer) -> KafkaTransactionalId | None:
        """Return the transactional id of Kafka clients whose transactions the producer names; None: there is none."""
        if producer.name is None:
            return None
        return self._rows.get(producer.name) or self._before.transactional_ids.get(producer.name)

    def _commit(self, end: TransactionEnd, row: KafkaTransactionalId | None) -> None:
        for extent in end.extents:
            self._check_extent(extent)
        commits: tuple[GroupCommit, ...] = end.offsets
        if row is not None:
            commits = transactional_ids.commits_of(self._before, row)
        else:
            for commit in commits:
                offsets.check_commit(self._before, commit)
        self._commits.add(commits)
        for at, extent in enumerate(end.extents):
            endings = self._ending.setdefault((extent.topic_id, extent.partition), {})
            endings[end.producer_id, end.producer_epoch] = Ending(
                end_offset=extent.end_offset,
                extents=end.extents if end.is_keyed and at < end.home_count else (),
            )
        self._count += len(end.extents)

    def _check_leaders(self, end: TransactionEnd) -> None:
        """Refuse an end if the leader of a partition has changed since it reported its extent. Nothing is decided then.

        A partition that was deleted with its topic is no reason here: ``_commit`` checks it.
        """
        if end.leader_epochs and self._before.feature_level < LEADER_EPOCHS_LEVEL:
            raise InvalidRequestError("Nodes of an earlier release know no leaders of an end.")
        for extent, leader_epoch in zip(end.extents, end.leader_epochs, strict=False):
            partition = self._before.partitions.get((extent.topic_id, extent.partition))
            if partition is not None and partition.leader_epoch != leader_epoch:
                raise StaleLeaderEpochError(
                    f"Partition {extent.partition} of topic {extent.topic_id} is in leader epoch "
                    f"{partition.leader_epoch}, not {leader_epoch}."
                )

    def _check_extent(self, extent: TransactionExtent) -> None:
        topic = self._before.topics.get(extent.topic_id)
        if topic is None:
            raise TopicNotFoundError(f"There is no topic with id {extent.topic_id}.")
        if not 0 <= extent.partition < topic.partition_count:
            raise PartitionNotFoundError(
                f"Topic '{topic.name}' has no partition {extent.partition}."
            )
        # Topics have many extents, and creating a topic's settings takes longer than all other steps. So keep them.
        settings = self._settings.get(topic.topic_id)
        if settings is None:
            settings = self._settings[topic.topic_id] = TopicSettings.of(topic)
        if not settings.takes_transactions:
            raise TopicNotTransactionalError(
                f"Topic '{topic.name}' may lose acknowledged records: it takes no transactions."
            )

    def image(self) -> Image:
        """Return the image after all ends that were taken."""
        after = self._commits.image()
        if self._producers:
            after = replace(after, producers=after.producers.update(self._producers))
        if self._rows:
            after = transactional_ids.with_rows(after, self._rows)
            after = replace(after, next_producer_id=self._next_id)
        if not self._ending:
            return after
        ending = after.ending.update(
            {key: after.ending.get(key, _NONE).update(new) for key, new in self._ending.items()}
        )
        return replace(after, ending=ending, ending_count=self._count)


def _check_ended_so(producer: AllocatedProducer, end: TransactionEnd) -> None:
    """Raise unless the transaction of the previous epoch ended in the way that ``end`` requests."""
    if end.is_commit and producer.last != COMMITTED:
        raise TransactionAbortedError(
            f"The transaction of producer {end.producer_id} at epoch {end.producer_epoch} was aborted."
        )
    if not end.is_commit and producer.last == COMMITTED:
        raise TransactionCommittedError(
            f"The transaction of producer {end.producer_id} at epoch {end.producer_epoch} was committed."
        )
    if not producer.last:
        # Another client took over the producer's name, which aborted the transaction. The error must not be "aborted":
        # then the caller would continue at the next epoch, and that epoch belongs to the other client.
        raise StaleProducerEpochError(
            f"Producer {end.producer_id} was taken over, under epoch {producer.producer_epoch}."
        )


def check_end(end: TransactionEnd) -> None:
    """Refuse an end that is invalid for every image. Proposers also call this before they propose the end.

    Raises:
        InvalidProducerError: the epoch is the last that a producer may have. It carries no transaction, because an end
            could not raise it.
        RequestTooLargeError: there are more extents and offsets than a transaction may have.
        InvalidRequestError: the fields contradict each other.
    """
    if end.producer_epoch >= PRODUCER_EPOCH_MAX:
        raise InvalidProducerError(
            f"Epoch {end.producer_epoch} of producer {end.producer_id} carries no transaction: begin again."
        )
    count = len(end.extents) + sum(len(commit.offsets) for commit in end.offsets)
    if count > ITEMS_PER_TRANSACTION_MAX:
        raise RequestTooLargeError(
            f"A transaction has at most {ITEMS_PER_TRANSACTION_MAX} partitions and offsets, not {count}."
        )
    if not end.is_commit and (end.extents or end.offsets):
        raise InvalidRequestError("An abort names neither partitions nor offsets.")
    if end.is_keyed and not end.extents:
        raise InvalidRequestError("A transaction under an idempotency key needs a partition.")
    if end.leader_epochs and len(end.leader_epochs) != len(end.extents):
        raise InvalidRequestError("An end names the leader of each of its partitions, or of none.")
    _check_homes(end)
    if len({(extent.topic_id, extent.partition) for extent in end.extents}) < len(end.extents):
        raise InvalidRequestError("A transaction names a partition twice.")
    for extent in end.extents:
        if not -1 <= extent.base_offset < extent.end_offset or extent.end_offset < 1:
            raise InvalidRequestError(
                f"No transaction can have written offsets {extent.base_offset} to {extent.end_offset}."
            )


def _check_homes(end: TransactionEnd) -> None:
    if not end.is_keyed:
        if end.home_count != 1:
            raise InvalidRequestError(
                "Without idempotency keys a transaction has no homes of them."
            )
        return
    if not 1 <= end.home_count <= len(end.extents):
        raise InvalidRequestError(
            "A transaction under idempotency keys needs partitions, and they are at home in the first of them."
        )
    if end.home_count * len(end.extents) > ITEMS_PER_TRANSACTION_MAX:
        raise RequestTooLargeError(
            f"A transaction of {len(end.extents)} partitions has idempotency keys in {end.home_count} of them."
        )


def _finish(image: Image, command: FinishMarkers) -> Outcome:
    if len(command.markers) > MARKERS_PER_COMMAND_MAX:
        raise RequestTooLargeError(
            f"{len(command.markers)} markers in one command; at most {MARKERS_PER_COMMAND_MAX}."
        )
    remaining = image.ending.mutate()
    count = image.ending_count
    for marker in command.markers:
        key = (marker.topic_id, marker.partition)
        endings = remaining.get(key, _NONE)
        if (marker.producer_id, marker.producer_epoch) not in endings:
            continue
        left = endings.delete((marker.producer_id, marker.producer_epoch))
        count -= 1
        if left:
            remaining[key] = left
        else:
            del remaining[key]
    if count == image.ending_count:
        return Outcome(image, 0)
    after = replace(image, ending=remaining.finish(), ending_count=count)
    return Outcome(after, image.ending_count - count)


# --- topics that change or are deleted ---


def check_configs(image: Image, after: Topic) -> None:
    """Refuse topic configs under which markers that are not yet written could be lost.

    Raises:
        TransactionsPendingError: the topic has endings, and the new configs do not allow transactions.
    """
    if not TopicSettings.of(after).takes_transactions and offsets.keys_in(image.ending, after):
        raise TransactionsPendingError(
            f"Topic '{after.name}' has transactions that are just being ended; try again later."
        )


def without_topic(image: Image, topic: Topic) -> Image:
    """Return the image without endings in the topic."""
    keys = offsets.keys_in(image.ending, topic)
    if not keys:
        return image
    remaining = image.ending.mutate()
    count = image.ending_count
    for key in keys:
        count -= len(remaining.pop(key))
    return replace(image, ending=remaining.finish(), ending_count=count)
