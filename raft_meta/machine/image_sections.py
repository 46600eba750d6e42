"""The stored form of an image: sections of rows, in an order that depends only on the image.

Rows are small, so that no frame of a snapshot exceeds its bound. Lists of many parts (a proposer's responses, a group's
members and offsets) are separate sections. Derived data is not stored: maps from names to ids, counts. Section numbers
never change meaning; ``codec`` turns rows into bytes and frames.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import astuple, dataclass, field, fields
from functools import partial
from operator import attrgetter
from typing import Any

from immutables import Map

from milena.model.errors import CorruptLogError
from milena.model.types import WallMs
from raft_meta.machine import producers, shapes, transactional_ids
from raft_meta.machine.access import access, audit
from raft_meta.machine.copies import replace
from raft_meta.machine.groups import consumers
from raft_meta.machine.image import (
    Acl,
    AllocatedProducer,
    AuditEntry,
    Broker,
    ClassicGroup,
    ClassicMember,
    CommittedOffset,
    Ending,
    Group,
    GroupMember,
    Image,
    KafkaTransactionalId,
    Partition,
    PartitionKey,
    ProducerBlock,
    Proposer,
    Quota,
    RestConsumer,
    Token,
    Topic,
    TransactionKey,
    User,
)

HEADER, BROKERS, TOPICS, PARTITIONS, PRODUCERS, PROPOSERS, RESPONSES, END = range(8)
GROUPS, MEMBERS, OFFSETS, CONSUMERS, ENDINGS, USERS, TOKENS, ACLS, QUOTAS, AUDITED = range(8, 18)
PRODUCER_BLOCKS, CLASSIC_GROUPS, CLASSIC_MEMBERS, TRANSACTIONAL_IDS = range(18, 22)
"""``END`` is the number of the digest's frame, not of a section."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    index: int
    now_ms: WallMs
    cluster_id: str
    voters: tuple[int, ...]
    feature_level: int
    controller_id: int | None
    controller_epoch: int
    next_producer_id: int
    access_mode: str = field(default="off", metadata={"since": 7})
    access_version: int = field(default=0, metadata={"since": 7})
    audit_count: int = field(default=0, metadata={"since": 8})
    scram_decoy_key: bytes = field(default=b"", metadata={"since": 12})
    coordinators_version: int = field(default=0, metadata={"since": 12})


_HEADER_NAMES = tuple(item.name for item in fields(_Header))
"""The fields of an image that its header has, under the same names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """A partition with its key."""

    topic_id: str
    partition: int
    state: Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProposerRow:
    """A proposer without its window: responses are separate items, so that items stay small."""

    proposer: int
    incarnation: int
    floor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _ResponseRow:
    proposer: int
    sequence: int
    response: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _GroupRow:
    """A group without its members, which are separate items."""

    group_id: str
    version: int
    generation: int
    assignor: str
    emptied_ms: WallMs


@dataclass(frozen=True, slots=True, kw_only=True)
class _MemberRow:
    group_id: str
    member: GroupMember


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClassicRow:
    """The classic part of a group without its members, which are separate items."""

    group_id: str
    protocol_type: str
    protocol: str
    leader: str
    has_assignments: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClassicMemberRow:
    group_id: str
    member: ClassicMember


@dataclass(frozen=True, slots=True, kw_only=True)
class _OffsetRow:
    group_id: str
    topic_id: str
    partition: int
    committed: CommittedOffset


@dataclass(frozen=True, slots=True, kw_only=True)
class _EndingRow:
    topic_id: str
    partition: int
    producer_id: int
    producer_epoch: int
    ending: Ending


@dataclass(frozen=True, slots=True)
class _Table:
    """A section whose rows are the values of a map of the image: the map's name, its values, and their key there."""

    name: str
    kind: type
    key_of: Callable[[Any], Any]


_TABLES = {
    BROKERS: _Table("brokers", Broker, attrgetter("broker_id")),
    TOPICS: _Table("topics", Topic, attrgetter("topic_id")),
    PRODUCERS: _Table("producers", AllocatedProducer, attrgetter("producer_id")),
    CONSUMERS: _Table("consumers", RestConsumer, attrgetter("group_id", "instance")),
    USERS: _Table("users", User, attrgetter("name")),
    TOKENS: _Table("tokens", Token, attrgetter("token_id")),
    QUOTAS: _Table("quotas", Quota, attrgetter("user", "client_id")),
    AUDITED: _Table("audited", AuditEntry, attrgetter("number")),
    PRODUCER_BLOCKS: _Table("producer_blocks", ProducerBlock, attrgetter("number")),
    TRANSACTIONAL_IDS: _Table("transactional_ids", KafkaTransactionalId, attrgetter("name")),
}


def sections_of(image: Image) -> Iterator[tuple[int, Iterator[object]]]:
    """Yield every section's number, with its rows in ascending order of their keys."""
    header = _Header(**{name: getattr(image, name) for name in _HEADER_NAMES})
    rows: dict[int, Iterator[object]] = {
        HEADER: iter([shapes.pack(header)]),
        PARTITIONS: _partition_rows(image),
        PROPOSERS: _proposer_rows(image),
        RESPONSES: _response_rows(image),
        GROUPS: _group_rows(image),
        MEMBERS: _member_rows(image),
        OFFSETS: _offset_rows(image),
        ENDINGS: _ending_rows(image),
        ACLS: _acl_rows(image),
        CLASSIC_GROUPS: _classic_rows(image),
        CLASSIC_MEMBERS: _classic_member_rows(image),
        **{section: _values(getattr(image, table.name)) for section, table in _TABLES.items()},
    }
    for section in sorted(rows):
        yield section, rows[section]


def _values(items: Map[Any, object]) -> Iterator[object]:
    for key in sorted(items):
        yield shapes.pack(items[key])


def _ascending(keys: Iterable[PartitionKey]) -> Iterator[PartitionKey]:
    # Topic by topic: one sort of all partitions would block all other threads, for 60 ms at 20,000 partitions.
    numbers: dict[str, list[int]] = {}
    for topic_id, partition in keys:
        numbers.setdefault(topic_id, []).append(partition)
    for topic_id in sorted(numbers):
        for partition in sorted(numbers[topic_id]):
            yield topic_id, partition


def _partition_rows(image: Image) -> Iterator[object]:
    for key in _ascending(image.partitions):
        yield [*key, shapes.pack(image.partitions[key])]


def _proposer_rows(image: Image) -> Iterator[object]:
    for broker_id in sorted(image.proposers):
        proposer = image.proposers[broker_id]
        yield [broker_id, proposer.incarnation, proposer.floor]


def _response_rows(image: Image) -> Iterator[object]:
    for broker_id in sorted(image.proposers):
        for sequence, response in sorted(image.proposers[broker_id].window.items()):
            yield [broker_id, sequence, response]


def _group_rows(image: Image) -> Iterator[object]:
    for group_id in sorted(image.groups):
        group = image.groups[group_id]
        row = [group_id, group.version, group.generation, group.assignor, group.emptied_ms]
        yield row


def _member_rows(image: Image) -> Iterator[object]:
    for group_id in sorted(image.groups):
        for member in image.groups[group_id].members:
            yield [group_id, shapes.pack(member)]


def _classic_groups(image: Image) -> Iterator[tuple[str, ClassicGroup]]:
    for group_id in sorted(image.groups):
        classic = image.groups[group_id].classic
        if classic is not None:
            yield group_id, classic


def _classic_rows(image: Image) -> Iterator[object]:
    for group_id, group in _classic_groups(image):
        yield [group_id, group.protocol_type, group.protocol, group.leader, group.has_assignments]


def _classic_member_rows(image: Image) -> Iterator[object]:
    for group_id, group in _classic_groups(image):
        for member in group.members:
            yield [group_id, shapes.pack(member)]


def _offset_rows(image: Image) -> Iterator[object]:
    for group_id in sorted(image.offsets):
        offsets = image.offsets[group_id]
        for key in sorted(offsets):
            yield [group_id, *key, shapes.pack(offsets[key])]


def _ending_rows(image: Image) -> Iterator[object]:
    for key in _ascending(image.ending):
        endings = image.ending[key]
        for transaction in sorted(endings):
            yield [*key, *transaction, shapes.pack(endings[transaction])]


def _acl_rows(image: Image) -> Iterator[object]:
    for principal in sorted(image.acls):
        for acl in image.acls[principal]:
            yield shapes.pack(acl)


class ImageReader:
    """Builds an image section by section; refuses items that are out of order."""

    def __init__(self) -> None:
        self._header: _Header | None = None
        self._section = -1
        self._key: tuple[int | str, ...] = ()
        self._maps: dict[str, dict[Any, Any]] = {table.name: {} for table in _TABLES.values()}
        self._partitions: dict[PartitionKey, Partition] = {}
        self._proposers: dict[int, _ProposerRow] = {}
        self._responses: dict[int, dict[int, bytes]] = {}
        self._groups: dict[str, _GroupRow] = {}
        self._members: dict[str, list[GroupMember]] = {}
        self._offsets: dict[str, dict[PartitionKey, CommittedOffset]] = {}
        self._ending: dict[PartitionKey, dict[TransactionKey, Ending]] = {}
        self._acls: dict[str, list[Acl]] = {}
        self._classic_groups: dict[str, _ClassicRow] = {}
        self._classic_members: dict[str, list[ClassicMember]] = {}

    def take(self, section: int, items: list[object]) -> None:
        """Take the next items of a section, which may arrive in several parts.

        Raises:
            CorruptLogError: the items are out of order, or not of the section's type.
        """
        takers: dict[int, Callable[[object], tuple[int | str, ...]]] = {
            HEADER: self._take_header,
            PARTITIONS: self._take_partition,
            PROPOSERS: self._take_proposer,
            RESPONSES: self._take_response,
            GROUPS: self._take_group,
            MEMBERS: self._take_member,
            OFFSETS: self._take_offset,
            ENDINGS: self._take_ending,
            ACLS: self._take_acl,
            CLASSIC_GROUPS: self._take_classic_group,
            CLASSIC_MEMBERS: self._take_classic_member,
            **{section: partial(self._take_value, table) for section, table in _TABLES.items()},
        }
        taker = takers.get(section)
        if taker is None:
            raise CorruptLogError(f"Snapshot section {section} is unknown to this release.")
        for item in items:
            key = taker(item)
            # All keys of one section have one shape, so any two of them can be compared.
            is_next = self._key < key if section == self._section else self._section < section
            if not is_next:
                raise CorruptLogError(f"Snapshot items are out of order at {key}.")
            self._section, self._key = section, key

    def _take_header(self, item: object) -> tuple[int | str, ...]:
        self._header = shapes.parse(_Header, item)
        return ()

    def _take_value(self, table: _Table, item: object) -> tuple[int | str, ...]:
        row: object = shapes.parse(table.kind, item)
        key = table.key_of(row)
        self._maps[table.name][key] = row
        return key if isinstance(key, tuple) else (key,)

    def _take_partition(self, item: object) -> tuple[int | str, ...]:
        placed = shapes.parse(_Placed, item)
        self._partitions[placed.topic_id, placed.partition] = placed.state
        return (placed.topic_id, placed.partition)

    def _take_proposer(self, item: object) -> tuple[int | str, ...]:
        row = shapes.parse(_ProposerRow, item)
        self._proposers[row.proposer] = row
        return (row.proposer,)

    def _take_response(self, item: object) -> tuple[int | str, ...]:
        row = shapes.parse(_ResponseRow, item)
        if row.proposer not in self._proposers:
            raise CorruptLogError(f"A response for proposer {row.proposer}, which is not there.")
        self._responses.setdefault(row.proposer, {})[row.sequence] = row.response
        return (row.proposer, row.sequence)

    def _take_group(self, item: object) -> tuple[int | str, ...]:
        row = shapes.parse(_GroupRow, item)
        self._groups[row.group_id] = row
        return (row.group_id,)

    def _take_member(self, item: object) -> tuple[int | str, ...]:
        row = shapes.parse(_MemberRow, item)
        if row.group_id not in self._groups:
            raise CorruptLogError(f"A member of group {row.group_id}, which is not there.")
        self._members.setdefault(row.group_id, []).append(row.member)
        return (row.group_id, row.member.member_id)

    def _take_offset(self, item: object) -> tuple[int | str, ...]:
        row = shapes.parse(_OffsetRow, item)
        self._offsets.setdefault(row.group_id, {})[row.topic_id, row.partition] = row.committed
        return (row.group_id, row.topic_id, row.partition)

    def _take_ending(self, item: object) -> tuple[int | str, ...]:
        row = shapes.parse(_EndingRow, item)
        transaction = (row.producer_id, row.producer_epoch)
        self._ending.setdefault((row.topic_id, row.partition), {})[transaction] = row.ending
        return (row.topic_id, row.partition, *transaction)

    def _take_acl(self, item: object) -> tuple[int | str, ...]:
        acl = shapes.parse(Acl, item)
        self._acls.setdefault(acl.principal, []).append(acl)
        return astuple(acl)

    def _take_classic_group(self, item: object) -> tuple[int | str, ...]:
        row = shapes.parse(_ClassicRow, item)
        if row.group_id not in self._groups:
            raise CorruptLogError(
                f"The row of group {row.group_id} is not a row of a classic group."
            )
        self._classic_groups[row.group_id] = row
        return (row.group_id,)

    def _take_classic_member(self, item: object) -> tuple[int | str, ...]:
        row = shapes.parse(_ClassicMemberRow, item)
        if row.group_id not in self._classic_groups:
            raise CorruptLogError(f"A member of classic group {row.group_id}, which is not there.")
        self._classic_members.setdefault(row.group_id, []).append(row.member)
        return (row.group_id, row.member.member_id)

    def _classic(self, group_id: str) -> ClassicGroup | None:
        row = self._classic_groups.get(group_id)
        if row is None:
            return None
        return ClassicGroup(
            protocol_type=row.protocol_type,
            protocol=row.protocol,
            leader=row.leader,
            members=tuple(self._classic_members.get(group_id, ())),
            has_assignments=row.has_assignments,
        )

    def _all_groups(self) -> dict[str, Group]:
        return {
            row.group_id: Group(
                group_id=row.group_id,
                version=row.version,
                generation=row.generation,
                assignor=row.assignor,
                members=tuple(self._members.get(row.group_id, ())),
                emptied_ms=row.emptied_ms,
                classic=self._classic(row.group_id),
            )
            for row in self._groups.values()
        }

    def finish(self) -> Image:
        """Return the image. The caller checks its invariants.

        Raises:
            CorruptLogError: the image has no header.
        """
        header = self._header
        if header is None:
            raise CorruptLogError("The snapshot has no header.")
        maps = self._maps
        values: dict[str, Any] = {name: Map(found) for name, found in maps.items()}
        topics: Collection[Topic] = maps["topics"].values()
        allocated: Collection[AllocatedProducer] = maps["producers"].values()
        blocks: Collection[ProducerBlock] = maps["producer_blocks"].values()
        transactional: Collection[KafkaTransactionalId] = maps["transactional_ids"].values()
        named = {p.name: p.producer_id for p in allocated if p.name is not None}
        proposers = {
            row.proposer: Proposer(
                incarnation=row.incarnation,
                floor=row.floor,
                window=Map(self._responses.get(row.proposer, {})),
            )
            for row in self._proposers.values()
        }
        offsets = {
            group_id: Map[PartitionKey, CommittedOffset](found)
            for group_id, found in self._offsets.items()
        }
        ending = {key: Map[TransactionKey, Ending](found) for key, found in self._ending.items()}
        return replace(
            Image(),
            **{name: getattr(header, name) for name in _HEADER_NAMES},
            **values,
            topic_ids=Map({topic.name: topic.topic_id for topic in topics}),
            partitions=Map(self._partitions),
            producer_names=Map(named),
            blocks_of=producers.blocks_by_principal(blocks),
            named_counts=producers.names_by_principal(allocated),
            proposers=Map(proposers),
            groups=Map(self._all_groups()),
            offsets=Map(offsets),
            offset_count=sum(len(found) for found in self._offsets.values()),
            consumer_counts=consumers.counts_by_principal(maps["consumers"].values()),
            ending=Map(ending),
            ending_count=sum(len(found) for found in self._ending.values()),
            transactional_names=Map({row.producer_id: row.name for row in transactional}),
            staging=transactional_ids.staging_of(transactional),
            tokens_of=access.tokens_by_user(maps["tokens"].values()),
            token_children=access.tokens_by_parent(maps["tokens"].values()),
            acls=Map({principal: tuple(found) for principal, found in self._acls.items()}),
            acl_count=sum(len(found) for found in self._acls.values()),
            audited_bytes=sum(audit.size_of(entry) for entry in maps["audited"].values()),
        )
