"""The client: use a cluster from a program or from the command line.

``import milena`` alone loads almost no modules. Each name below is loaded at its first use, with those that it needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from milena import sync
    from milena.client import Client
    from milena.cluster.access_admin import AccessAdmin
    from milena.cluster.access_views import (
        AccessView,
        AclEntry,
        AclFilter,
        NewToken,
        QuotaView,
        TokenGrant,
        TokenView,
        UserView,
    )
    from milena.cluster.admin import AdminClient, OffsetRange
    from milena.cluster.credentials import Credentials
    from milena.cluster.group_admin import PartitionLag
    from milena.cluster.group_views import GroupMember, GroupOffset, GroupSummary, GroupView
    from milena.consuming.consumer import Consumer
    from milena.consuming.options import ConsumerOptions, RebalanceListener
    from milena.errors import (
        AnswerError,
        BadCredentialsError,
        BadRecordError,
        BufferFullError,
        ClientClosedError,
        ClientError,
        CommitFailedError,
        ConditionFailedError,
        ConsumerError,
        ConsumerFencedError,
        CredentialsRefusedError,
        DeliveryTimeoutError,
        GroupNotEmptyError,
        MemberFencedError,
        MemberUnknownError,
        NeverReachedError,
        NotNowError,
        NotPermittedError,
        OutOfRangeError,
        ProducerError,
        ProducerFencedError,
        RecordTooLargeError,
        SequenceRefusedError,
        ServerFailedError,
        StaleMemberError,
        TargetExistsError,
        TargetNotFoundError,
        TooLargeError,
        TransactionAbortedError,
        UndecodableRecordError,
        UnexpectedAnswerError,
        UnknownResultError,
        UnreachableError,
        UnreadableOffsetError,
    )
    from milena.model.access import AccessMode, Operation, PatternType, Permission, ResourceType
    from milena.model.columns import Headers
    from milena.model.quotas import QuotaKey
    from milena.model.secret import Secret
    from milena.producing.deliveries import Deliveries, DeliveryReceipts, DeliveryRun
    from milena.producing.delivery import Delivery
    from milena.producing.named import NamedProducer
    from milena.producing.options import ProducerOptions
    from milena.producing.partitioner import Topology
    from milena.producing.producer import Producer
    from milena.producing.serializers import json_bytes, msgpack_bytes, plain_bytes
    from milena.producing.transaction import Transaction, TransactionalProducer
    from milena.reading.cursor import OnOutOfRange
    from milena.reading.decoding import (
        DecodedRecord,
        Decoder,
        OnUndecodable,
        json_value,
        msgpack_value,
        raw_value,
        text_value,
    )
    from milena.reading.reader import PartitionReader
    from milena.records import (
        ConsumedRecord,
        FetchedChunk,
        LastN,
        Position,
        Receipt,
        StartAt,
        TimestampMs,
        TopicPartition,
    )

__all__ = [
    "AccessAdmin",
    "AccessMode",
    "AccessView",
    "AclEntry",
    "AclFilter",
    "AdminClient",
    "AnswerError",
    "BadCredentialsError",
    "BadRecordError",
    "BufferFullError",
    "Client",
    "ClientClosedError",
    "ClientError",
    "CommitFailedError",
    "ConditionFailedError",
    "ConsumedRecord",
    "Consumer",
    "ConsumerError",
    "ConsumerFencedError",
    "ConsumerOptions",
    "Credentials",
    "CredentialsRefusedError",
    "DecodedRecord",
    "Decoder",
    "Deliveries",
    "Delivery",
    "DeliveryReceipts",
    "DeliveryRun",
    "DeliveryTimeoutError",
    "FetchedChunk",
    "GroupMember",
    "GroupNotEmptyError",
    "GroupOffset",
    "GroupSummary",
    "GroupView",
    "Headers",
    "LastN",
    "MemberFencedError",
    "MemberUnknownError",
    "NamedProducer",
    "NeverReachedError",
    "NewToken",
    "NotNowError",
    "NotPermittedError",
    "OffsetRange",
    "OnOutOfRange",
    "OnUndecodable",
    "Operation",
    "OutOfRangeError",
    "PartitionLag",
    "PartitionReader",
    "PatternType",
    "Permission",
    "Position",
    "Producer",
    "ProducerError",
    "ProducerFencedError",
    "ProducerOptions",
    "QuotaKey",
    "QuotaView",
    "RebalanceListener",
    "Receipt",
    "RecordTooLargeError",
    "ResourceType",
    "Secret",
    "SequenceRefusedError",
    "ServerFailedError",
    "StaleMemberError",
    "StartAt",
    "TargetExistsError",
    "TargetNotFoundError",
    "TimestampMs",
    "TokenGrant",
    "TokenView",
    "TooLargeError",
    "TopicPartition",
    "Topology",
    "Transaction",
    "TransactionAbortedError",
    "TransactionalProducer",
    "UndecodableRecordError",
    "UnexpectedAnswerError",
    "UnknownResultError",
    "UnreachableError",
    "UnreadableOffsetError",
    "UserView",
    "json_bytes",
    "json_value",
    "msgpack_bytes",
    "msgpack_value",
    "plain_bytes",
    "raw_value",
    "sync",
    "text_value",
]

_MODULES = {
    "milena.cluster.access_admin": ("AccessAdmin",),
    "milena.cluster.access_views": (
        "AccessView",
        "AclEntry",
        "AclFilter",
        "NewToken",
        "QuotaView",
        "TokenGrant",
        "TokenView",
        "UserView",
    ),
    "milena.model.access": (
        "AccessMode",
        "Operation",
        "PatternType",
        "Permission",
        "ResourceType",
    ),
    "milena.cluster.admin": ("AdminClient", "OffsetRange"),
    "milena.client": ("Client",),
    "milena.cluster.credentials": ("Credentials",),
    "milena.model.columns": ("Headers",),
    "milena.model.quotas": ("QuotaKey",),
    "milena.model.secret": ("Secret",),
    "milena.consuming.consumer": ("Consumer",),
    "milena.consuming.options": ("ConsumerOptions", "RebalanceListener"),
    "milena.producing.deliveries": ("Deliveries", "DeliveryRun", "DeliveryReceipts"),
    "milena.producing.delivery": ("Delivery",),
    "milena.cluster.group_admin": ("PartitionLag",),
    "milena.cluster.group_views": ("GroupMember", "GroupOffset", "GroupSummary", "GroupView"),
    "milena.producing.partitioner": ("Topology",),
    "milena.producing.producer": ("Producer",),
    "milena.producing.named": ("NamedProducer",),
    "milena.producing.options": ("ProducerOptions",),
    "milena.producing.transaction": ("Transaction", "TransactionalProducer"),
    "milena.reading.cursor": ("OnOutOfRange",),
    "milena.reading.decoding": (
        "DecodedRecord",
        "Decoder",
        "OnUndecodable",
        "json_value",
        "msgpack_value",
        "raw_value",
        "text_value",
    ),
    "milena.reading.reader": ("PartitionReader",),
    "milena.records": (
        "ConsumedRecord",
        "FetchedChunk",
        "LastN",
        "Position",
        "Receipt",
        "StartAt",
        "TimestampMs",
        "TopicPartition",
    ),
    "milena.producing.serializers": ("json_bytes", "msgpack_bytes", "plain_bytes"),
}

_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in __all__:
        hint = import_module("milena.hints").attribute_hint("milena", name)
        raise AttributeError(f"module 'milena' has no attribute {name!r}{hint}", name=name)
    if name == "sync":
        return import_module("milena.sync")
    # The names that are not in ``_HOMES`` are error classes.
    value: object = getattr(import_module(_HOMES.get(name, "milena.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
