"""Transactional ids of Kafka clients, and what their open transactions have enlisted.

A client of Kafka keeps one producer id and epoch for many transactions. Here each transaction has an identity of its
own: the producer in ``Image.producers`` whose name is the transactional id, at its present epoch. The leaders of
partitions find this identity by the client's id and write it into the log. So ``transactions`` decides transactions of
Kafka clients and of HTTP clients in the same way.

A client enlists each partition before it writes there. So a leader knows the identity before the first record comes,
and a commit knows which leaders to ask. Offsets of groups are staged here until the commit.

Each change of a transactional id gives it a new version. The end of a transaction names the version, so it misses
nothing that was enlisted, and a late request cannot change a transaction that is being committed.

Source: KIP-98 (transactions), KIP-360 (a client raises its own epoch), KIP-447 (staged offsets), KIP-890 (a new epoch
for each transaction).
"""

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import TypeVar

from immutables import Map

from milena.model.errors import (
    ConflictError,
    GroupNotEmptyError,
    InvalidProducerError,
    InvalidRequestError,
    MemberNotFoundError,
    PartitionNotFoundError,
    RequestTooLargeError,
    StaleMemberEpochError,
    StaleProducerEpochError,
    StaleVersionError,
    TopicNotFoundError,
    TopicNotTransactionalError,
    TransactionNotFoundError,
)
from milena.model.types import PRODUCER_EPOCH_MAX, WallMs
from raft_meta.machine import producers
from raft_meta.machine.commands import (
    EnlistInTransactions,
    Enlistment,
    GroupCommit,
    InitTransactionalId,
    OffsetCommit,
    TransactionEnd,
)
from raft_meta.machine.copies import replace
from raft_meta.machine.groups import group_rules, offsets
from raft_meta.machine.image import (
    AllocatedProducer,
    Group,
    Image,
    KafkaTransactionalId,
    PartitionKey,
    StagedOffset,
    Topic,
)
from raft_meta.machine.outcome import Outcome
from raft_meta.machine.topics import partition_sets
from raft_meta.machine.topics.configs import TopicSettings

TransactionalIdCommand = InitTransactionalId | EnlistInTransactions

LEVEL = 12
"""The feature level from which on transactions of Kafka clients exist."""

TIMEOUT_MS_MAX = 900_000
"""Largest timeout of a transaction, as ``transaction.max.timeout.ms`` of Kafka."""
ITEMS_MAX = 1_000
"""Largest number of partitions, groups and offsets of one transaction."""
METADATA_BYTES_MAX = 256 << 10
"""Largest size of the metadata of all offsets that one transaction stages. A row must fit into a snapshot's frame."""
ENLISTMENTS_PER_COMMAND_MAX = 1_000

_StagedKey = tuple[str, str, int]
_Key = TypeVar("_Key", str, PartitionKey)


def apply(image: Image, index: int, now_ms: WallMs, command: TransactionalIdCommand) -> Outcome:
    """Apply a command about transactional ids. ``index`` and ``now_ms``: index and time of the command.

    Raises:
        InvalidRequestError, ConflictError, TooManyProducersError, StaleProducerEpochError, InvalidProducerError: of
            ``InitTransactionalId``; it is refused.
        RequestTooLargeError: there are too many enlistments; the command is refused as a whole.
    """
    if isinstance(command, InitTransactionalId):
        return _init(image, index, now_ms, command)
    if len(command.enlistments) > ENLISTMENTS_PER_COMMAND_MAX:
        raise RequestTooLargeError(
            f"{len(command.enlistments)} enlistments in one command; at most {ENLISTMENTS_PER_COMMAND_MAX}."
        )
    answers: list[str] = []
    for enlistment in command.enlistments:
        try:
            image = _enlist(image, index, now_ms, enlistment)
        except offsets.REFUSALS as error:
            answers.append(error.code)
        else:
            answers.append("")
    return Outcome(image, tuple(answers))


def client_row(image: Image, name: str, producer_id: int) -> KafkaTransactionalId:
    """Return the transactional id of a client that names its producer id.

    Raises:
        InvalidProducerError: the id does not belong to the transactional id, or no longer (``is_unknown``).
    """
    row = image.transactional_ids.get(name)
    if row is None or row.producer_id != producer_id:
        raise InvalidProducerError(
            f"Producer id {producer_id} does not belong to transactional id '{name}', or no longer: ask for one again.",
            is_unknown=True,
        )
    return row


def check_client_epoch(row: KafkaTransactionalId, producer_epoch: int) -> None:
    """Refuse a client that is not at its present epoch.

    Raises:
        StaleProducerEpochError: another client has taken over, or the transaction was aborted because it was overdue.
    """
    if row.producer_epoch != producer_epoch:
        raise StaleProducerEpochError(
            f"The client of transactional id '{row.name}' is at epoch {row.producer_epoch}, not {producer_epoch}: "
            "another client uses the id, or a transaction was overdue."
        )


def own_producer(image: Image, row: KafkaTransactionalId) -> AllocatedProducer:
    """Return the producer whose id and epoch name the open transaction in logs."""
    return image.producers[image.producer_names[row.name]]


# --- a client begins ---


def takes_over(image: Image, name: str, client: tuple[int, int] | None) -> bool:
    """Return whether a client that begins now would fence the one that has the transactional id.

    ``client``: the producer id and epoch that the client has already, if any.
    """
    row = image.transactional_ids.get(name)
    return row is not None and client in (None, (row.producer_id, row.producer_epoch))


def _init(image: Image, index: int, now_ms: WallMs, command: InitTransactionalId) -> Outcome:
    name = command.name
    if not 1 <= command.timeout_ms <= TIMEOUT_MS_MAX:
        raise InvalidRequestError(
            f"A transaction's timeout is 1..{TIMEOUT_MS_MAX} ms, not {command.timeout_ms}."
        )
    if name.startswith(producers.RESERVED_PREFIX):
        raise InvalidRequestError(
            f"Names that start with '{producers.RESERVED_PREFIX}' are for nodes; choose another transactional id."
        )
    row = image.transactional_ids.get(name)
    if row is None:
        # A producer id is ignored here, as in Kafka: the transactional id may have expired, and some clients send 0.
        if name in image.producer_names:
            raise ConflictError(
                f"Name '{name}' belongs to a producer of the HTTP API; choose another transactional id."
            )
        image = producers.with_named(image, name, now_ms, command.principal)
        return _new_client(image, index, command)
    if command.producer_id >= 0:
        client_row(image, name, command.producer_id)
        if command.producer_epoch == row.former_epoch:
            return Outcome(image, (row.producer_id, row.producer_epoch))
        check_client_epoch(row, command.producer_epoch)
    image = producers.used_again(image, name, now_ms, principal=command.principal)
    if row.is_open:
        image = _abort(image, row)
        row = ended(row, index)
    if row.producer_epoch + 1 >= PRODUCER_EPOCH_MAX:
        return _new_client(image, index, command)
    after = replace(
        raised(row, index, is_own=command.producer_id >= 0),
        timeout_ms=command.timeout_ms,
        last="",
    )
    return Outcome(with_rows(image, {name: after}), (after.producer_id, after.producer_epoch))


def _new_client(image: Image, index: int, command: InitTransactionalId) -> Outcome:
    """Give a client a new producer id: it is the first one, or the epochs of its former id are used up."""
    row = KafkaTransactionalId(
        name=command.name,
        version=index,
        producer_id=image.next_producer_id,
        producer_epoch=0,
        former_epoch=-1,
        timeout_ms=command.timeout_ms,
        began_ms=WallMs(0),
    )
    image = replace(image, next_producer_id=image.next_producer_id + 1)
    return Outcome(with_rows(image, {row.name: row}), (row.producer_id, 0))


def _abort(image: Image, row: KafkaTransactionalId) -> Image:
    """Return the image in which the open transaction is aborted; its row still shows it."""
    own = own_producer(image, row)
    aborted = replace(own, producer_epoch=own.producer_epoch + 1, last=producers.ABORTED)
    return replace(image, producers=image.producers.set(own.producer_id, aborted))


# --- a client enlists ---


def _enlist(image: Image, index: int, now_ms: WallMs, enlistment: Enlistment) -> Image:
    row = client_row(image, enlistment.name, enlistment.producer_id)
    check_client_epoch(row, enlistment.producer_epoch)
    for key in enlistment.partitions:
        _check_partition(image, key)
    partitions = _united(row.partitions, enlistment.partitions)
    groups = _united(row.groups, enlistment.groups)
    for commit in enlistment.offsets:
        if commit.group_id not in groups:
            raise TransactionNotFoundError(
                f"Group {commit.group_id} is not a part of the transaction of '{row.name}'."
            )
        check_staged(image, commit)
    staged = _staged(row, enlistment.offsets)
    count = len(partitions) + len(groups) + len(staged)
    size = sum(len(offset.metadata.encode()) for offset in staged)
    if count > ITEMS_MAX or size > METADATA_BYTES_MAX:
        raise RequestTooLargeError(
            f"A transaction has at most {ITEMS_MAX} partitions, groups and offsets, and {METADATA_BYTES_MAX} bytes of "
            f"metadata; this one would have {count}, and {size}."
        )
    if row.is_open and (partitions, groups, staged) == (row.partitions, row.groups, row.offsets):
        return image
    if not row.is_open:
        image = producers.with_room_for_end(image, row.name)
    image = producers.used_again(image, row.name, now_ms)
    after = replace(
        row,
        version=index,
        # 0 means that no transaction is open, and the time may be 0 while the nodes do not know it.
        began_ms=row.began_ms or WallMs(max(1, now_ms)),
        partitions=partitions,
        groups=groups,
        offsets=staged,
    )
    return with_rows(image, {row.name: after})


def _check_partition(image: Image, key: PartitionKey) -> None:
    topic_id, partition = key
    topic = image.topics.get(topic_id)
    if topic is None:
        raise TopicNotFoundError(f"There is no topic with id {topic_id}.")
    if not 0 <= partition < topic.partition_count:
        raise PartitionNotFoundError(f"Topic '{topic.name}' has no partition {partition}.")
    if not TopicSettings.of(topic).takes_transactions:
        raise TopicNotTransactionalError(
            f"Topic '{topic.name}' may lose acknowledged records: it takes no transactions."
        )


def check_staged(image: Image, commit: GroupCommit) -> None:
    """Refuse offsets that a group would not take.

    Clients before KIP-447 name no member, and read in a group all the same. Then only the transactional id fences them.
    A server group also has members that commit without waiting for transactions, so it takes no such offsets.

    Raises:
        MilenaError: as ``offsets.check_commit``.
    """
    group = image.groups.get(commit.group_id)
    if commit.member_id is None and group is not None and group.member_count:
        if group.members:
            raise GroupNotEmptyError(
                f"Group {commit.group_id} has members: only they commit. Name the member and its epoch."
            )
        offsets.check_values(image, commit)
        return
    offsets.check_commit(image, commit)


def _united(known: tuple[_Key, ...], more: Iterable[_Key]) -> tuple[_Key, ...]:
    both = set(known)
    both.update(more)
    return tuple(sorted(both)) if len(both) > len(known) else known


def _staged(row: KafkaTransactionalId, commits: Iterable[GroupCommit]) -> tuple[StagedOffset, ...]:
    staged = {_key_of(offset): offset for offset in row.offsets}
    for commit in commits:
        for item in commit.offsets:
            offset = StagedOffset(
                group_id=commit.group_id,
                topic_id=item.topic_id,
                partition=item.partition,
                offset=item.offset,
                leader_epoch=item.leader_epoch,
                metadata=item.metadata,
                member_id=commit.member_id,
                member_epoch=commit.member_epoch,
            )
            staged[_key_of(offset)] = offset
    return tuple(staged[key] for key in sorted(staged))


def _key_of(offset: StagedOffset) -> _StagedKey:
    return offset.group_id, offset.topic_id, offset.partition


# --- a transaction ends; ``transactions`` decides it ---


def check_end(row: KafkaTransactionalId, end: TransactionEnd) -> None:
    """Refuse an end that does not fit the open transaction; the transaction stays open.

    Raises:
        StaleVersionError: something was enlisted since the end was made; make it again.
        InvalidRequestError: a commit that is not its client's, or of partitions that the client did not enlist.
        TransactionNotFoundError: the client has nothing open.
    """
    if not row.is_open and end.version in (-1, row.version):
        raise TransactionNotFoundError(f"Transactional id '{row.name}' has no open transaction.")
    if end.version < 0:
        if end.is_commit:
            raise InvalidRequestError(
                f"Only the Kafka client of transactional id '{row.name}' commits its transactions."
            )
        return
    if end.version != row.version:
        raise StaleVersionError(
            f"Transactional id '{row.name}' is at version {row.version}, not {end.version}."
        )
    if end.is_keyed or end.offsets:
        raise InvalidRequestError(
            "A transaction of a Kafka client has no keys, and its offsets are staged."
        )
    for extent in end.extents:
        if (extent.topic_id, extent.partition) not in row.partitions:
            raise InvalidRequestError(
                f"Partition {extent.partition} of topic {extent.topic_id} is not a part of the transaction."
            )


def commits_of(image: Image, row: KafkaTransactionalId) -> tuple[GroupCommit, ...]:
    """Return the staged offsets as commits.

    They were checked when they were staged, and later members of a classic group wait for their end (KIP-447). Members
    of server groups may not wait. So a member of such a group must still hold the partitions, under any epoch.

    Raises:
        MilenaError: as ``check_staged``.
    """
    commits: list[GroupCommit] = []
    for (group_id, member_id, member_epoch), found in groupby(
        sorted(row.offsets, key=lambda o: (o.group_id, o.member_id or "", o.member_epoch)),
        key=lambda o: (o.group_id, o.member_id, o.member_epoch),
    ):
        commit = GroupCommit(
            group_id=group_id,
            member_id=member_id,
            member_epoch=member_epoch,
            offsets=tuple(
                OffsetCommit(
                    topic_id=offset.topic_id,
                    partition=offset.partition,
                    offset=offset.offset,
                    leader_epoch=offset.leader_epoch,
                    metadata=offset.metadata,
                )
                for offset in found
            ),
        )
        group = image.groups.get(group_id)
        if group is not None and group.members:
            _check_holder(image, group, commit)
        commits.append(commit)
    return tuple(commits)


def _check_holder(image: Image, group: Group, commit: GroupCommit) -> None:
    if commit.member_id is None:
        check_staged(image, commit)
        return
    member = group_rules.member_of(group, commit.member_id)
    if member is None:
        raise MemberNotFoundError(
            f"Group {group.group_id} has no member {commit.member_id}, or no longer: join again."
        )
    held = frozenset(partition_sets.keys_of(member.held))
    if not all((offset.topic_id, offset.partition) in held for offset in commit.offsets):
        raise StaleMemberEpochError(
            f"Member {commit.member_id} of group {group.group_id} no longer holds all partitions of its offsets."
        )


def ended(row: KafkaTransactionalId, index: int) -> KafkaTransactionalId:
    """Return the transactional id without an open transaction."""
    return replace(row, version=index, began_ms=WallMs(0), partitions=(), groups=(), offsets=())


def after_end(
    row: KafkaTransactionalId, end: TransactionEnd, index: int, last: str
) -> KafkaTransactionalId:
    """Return the transactional id after the end of its transaction.

    If the client did not ask for the end, its epoch rises: otherwise its next record would begin another transaction.
    """
    after = replace(ended(row, index), last=last)
    if end.version >= 0 and not end.raises_client:
        return after
    return raised(after, index, is_own=end.version >= 0)


def raised(row: KafkaTransactionalId, index: int, *, is_own: bool) -> KafkaTransactionalId:
    """Return the transactional id at the client's next epoch. ``is_own``: the client asked for it."""
    return replace(
        row,
        version=index,
        producer_epoch=min(row.producer_epoch + 1, PRODUCER_EPOCH_MAX),
        former_epoch=row.producer_epoch if is_own else -1,
    )


def with_rows(image: Image, rows: Mapping[str, KafkaTransactionalId]) -> Image:
    """Return the image with these transactional ids, new or changed."""
    names = image.transactional_names
    staging = image.staging
    for row in rows.values():
        former = image.transactional_ids.get(row.name)
        if former is None or former.producer_id != row.producer_id:
            if former is not None:
                names = names.delete(former.producer_id)
            names = names.set(row.producer_id, row.name)
        before = () if former is None else former.offsets
        if before != row.offsets:
            staging = _restaged(staging, row.name, before, row.offsets)
    return replace(
        image,
        transactional_ids=image.transactional_ids.update(rows),
        transactional_names=names,
        staging=staging,
    )


def _restaged(
    staging: Map[str, tuple[str, ...]],
    name: str,
    before: tuple[StagedOffset, ...],
    after: tuple[StagedOffset, ...],
) -> Map[str, tuple[str, ...]]:
    former, present = {o.group_id for o in before}, {o.group_id for o in after}
    for group_id in sorted(former ^ present):
        names = set(staging.get(group_id, ()))
        names.symmetric_difference_update({name})
        present_names = tuple(sorted(names))
        staging = staging.set(group_id, present_names) if names else staging.delete(group_id)
    return staging


def staging_of(rows: Iterable[KafkaTransactionalId]) -> Map[str, tuple[str, ...]]:
    """Return ``Image.staging`` of these transactional ids."""
    found: dict[str, set[str]] = {}
    for row in rows:
        for offset in row.offsets:
            found.setdefault(offset.group_id, set()).add(row.name)
    return Map({group_id: tuple(sorted(names)) for group_id, names in found.items()})


# --- topics that are deleted, transactions that are overdue ---


def without_topic(image: Image, index: int, topic: Topic) -> Image:
    """Return the image in which no open transaction has enlisted or staged anything of the topic.

    The transaction stays open. Its commit is valid without the topic, as the topic's records are gone.
    """
    changed: dict[str, KafkaTransactionalId] = {}
    for name, row in image.transactional_ids.items():
        if not row.is_open:
            continue
        partitions = tuple(key for key in row.partitions if key[0] != topic.topic_id)
        kept = tuple(offset for offset in row.offsets if offset.topic_id != topic.topic_id)
        if len(partitions) < len(row.partitions) or len(kept) < len(row.offsets):
            changed[name] = replace(row, version=index, partitions=partitions, offsets=kept)
    return with_rows(image, changed) if changed else image


def unstable_in(image: Image, group_id: str) -> frozenset[PartitionKey]:
    """Return the partitions in which the group has offsets that an open transaction will commit (KIP-447)."""
    return frozenset(
        (offset.topic_id, offset.partition)
        for name in image.staging.get(group_id, ())
        for offset in image.transactional_ids[name].offsets
        if offset.group_id == group_id
    )


def overdue(image: Image, now_ms: WallMs) -> Iterable[TransactionEnd]:
    """Yield the aborts of open transactions that are older than their timeout; they also fence the clients."""
    for row in image.transactional_ids.values():
        if row.is_open and now_ms - row.began_ms >= row.timeout_ms:
            own = own_producer(image, row)
            yield TransactionEnd(
                producer_id=own.producer_id,
                producer_epoch=own.producer_epoch,
                is_commit=False,
                is_keyed=False,
                extents=(),
                offsets=(),
            )


def problems(image: Image) -> Iterable[str]:
    """Yield a sentence for each broken invariant of transactional ids."""
    if image.transactional_ids and image.feature_level < LEVEL:
        yield "transactional ids of Kafka clients below the feature level that knows them"
    names = {row.producer_id: name for name, row in image.transactional_ids.items()}
    if names != dict(image.transactional_names):
        yield "transactional ids and the ids of their clients do not match"
    if image.staging != staging_of(image.transactional_ids.values()):
        yield "groups and the transactions with offsets of them do not match"
    for name, row in image.transactional_ids.items():
        for problem in _row_problems(image, row):
            yield f"transactional id {name}: {problem}"


def _row_problems(image: Image, row: KafkaTransactionalId) -> Iterable[str]:
    if row.name not in image.producer_names:
        yield "its transactions have no identity"
    if row.producer_id in image.producers or not 0 < row.producer_id < image.next_producer_id:
        yield f"its client cannot have producer id {row.producer_id}"
    if not 0 < row.version <= image.index:
        yield "it comes from the future"
    if (
        not 0 <= row.producer_epoch <= PRODUCER_EPOCH_MAX
        or not -1 <= row.former_epoch < PRODUCER_EPOCH_MAX
    ):
        yield "its client has an epoch that there is not"
    if row.last not in ("", producers.COMMITTED, producers.ABORTED):
        yield f"its last transaction cannot have ended as {row.last!r}"
    if not 1 <= row.timeout_ms <= TIMEOUT_MS_MAX or not 0 <= row.began_ms <= max(1, image.now_ms):
        yield "its times are out of bounds"
    yield from _enlisted_problems(image, row)


def _enlisted_problems(image: Image, row: KafkaTransactionalId) -> Iterable[str]:
    if not row.is_open and (row.partitions or row.groups or row.offsets):
        yield "it has enlisted something without an open transaction"
    if len(row.partitions) + len(row.groups) + len(row.offsets) > ITEMS_MAX:
        yield "it has enlisted too much"
    keys = [_key_of(offset) for offset in row.offsets]
    is_in_order = (
        list(row.partitions) == sorted(set(row.partitions))
        and list(row.groups) == sorted(set(row.groups))
        and keys == sorted(set(keys))
    )
    if not is_in_order:
        yield "what it has enlisted is not in order"
    named = {(offset.topic_id, offset.partition) for offset in row.offsets}
    if not all(key in image.partitions for key in (*row.partitions, *named)):
        yield "it has enlisted a partition that is not there"
    if not {offset.group_id for offset in row.offsets} <= set(row.groups):
        yield "it has staged offsets of a group that is not enlisted"
