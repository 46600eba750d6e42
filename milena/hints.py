"""Hints for programs that use names of other clients: kafka-python, confluent-kafka, aiokafka, nats-py, boto3.

If a program uses such a name, the error says which name Milena has instead.
"""

from collections.abc import Callable
from functools import cached_property, wraps
from inspect import getattr_static, signature
from re import search
from typing import NoReturn, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_LOGIN = "credentials=Credentials(…) of Client"
_DECODER = "Decoder(key=…, value=…)"
_PRODUCER = "client.producer()"
_CONSUMER = "client.consumer('topic', group='name')"
_BLOCK = "async with (or with, in milena.sync)"

ARGUMENTS = {
    "auto_offset_reset": "start=StartAt.EARLIEST or start=StartAt.LATEST",
    "batch_size": "batch_bytes",
    "bootstrap_servers": "url",
    "brokers": "url",
    "buffer_memory": "buffer_bytes",
    "compression_type": "compression",
    "consumer_timeout_ms": "poll(timeout_s=…)",
    "durable": "group",
    "enable_auto_commit": "auto_commit",
    "enable_idempotence": "idempotent",
    "endpoint_url": "url",
    "fetch_max_bytes": "fetch_bytes",
    "fetch_max_wait_ms": "fetch_wait_ms",
    "group_id": "group",
    "group_instance_id": "instance_id",
    "hosts": "url",
    "key_deserializer": _DECODER,
    "linger": "linger_ms",
    "max_partition_fetch_bytes": "fetch_bytes",
    "metadata_max_age": "metadata_max_age_ms",
    "partition_assignment_strategy": "assignor",
    "queue": "group",
    "sasl_mechanism": _LOGIN,
    "sasl_plain_password": _LOGIN,
    "sasl_plain_username": _LOGIN,
    "security_protocol": _LOGIN,
    "servers": "url",
    "ssl_cafile": _LOGIN,
    "ssl_context": _LOGIN,
    "timeout": "timeout_s",
    "token": _LOGIN,
    "topics": "the names one by one, as consumer('orders', 'payments')",
    "transactional_id": "client.transactional_producer('id')",
    "value_deserializer": _DECODER,
}
"""Keywords of other clients, and the text that a hint suggests instead."""

ATTRIBUTES: dict[str, dict[str, str]] = {
    "milena": {
        "AIOKafkaConsumer": "Client, with " + _CONSUMER,
        "AIOKafkaProducer": "Client, with " + _PRODUCER,
        "KafkaAdminClient": "AdminClient, or client.admin",
        "KafkaConsumer": "Client, with " + _CONSUMER,
        "KafkaProducer": "Client, with " + _PRODUCER,
        "connect": "Client",
        "resource": "Client",
    },
    "Client": {
        "close": _BLOCK,
        "create_topic": "client.admin.create_topic",
        "create_topics": "client.admin.create_topic",
        "delete_topic": "client.admin.delete_topic",
        "jetstream": "nothing: " + _PRODUCER + " and " + _CONSUMER,
        "list_topics": "client.admin.topic_names",
        "poll": _CONSUMER,
        "produce": _PRODUCER,
        "publish": _PRODUCER,
        "receive_message": _CONSUMER,
        "send": _PRODUCER,
        "send_and_wait": _PRODUCER,
        "send_message": _PRODUCER,
        "start": _BLOCK,
        "stop": _BLOCK,
        "subscribe": _CONSUMER,
        "topics": "client.admin.topic_names",
    },
    "Admin": {
        "create_partitions": "add_partitions",
        "create_topics": "create_topic",
        "delete_consumer_groups": "delete_group",
        "delete_topics": "delete_topic",
        "describe_cluster": "cluster",
        "describe_configs": "topic",
        "describe_consumer_groups": "group",
        "describe_topics": "topic",
        "list_consumer_group_offsets": "group",
        "list_consumer_groups": "groups",
        "list_offsets": "offsets",
        "list_topics": "topic_names",
        "topics": "topic_names",
    },
    "Producer": {
        "begin_transaction": "client.transactional_producer('id').transaction()",
        "init_transactions": "client.transactional_producer('id').transaction()",
        "poll": "nothing: callbacks run by themselves",
        "produce": "send",
        "publish": "send",
        "send_and_wait": "send, and await the delivery",
        "send_batch": "send_many",
        "send_message": "send",
        "send_message_batch": "send_many",
        "start": _BLOCK,
        "stop": "close",
    },
    "Consumer": {
        "ack": "commit",
        "commit_async": "commit",
        "consume": "poll",
        "delete_message": "commit",
        "end_offsets": "client.admin.offsets",
        "fetch": "poll",
        "getmany": "poll",
        "getone": "poll",
        "highwater": "lag",
        "next_msg": "poll",
        "receive_message": "poll",
        "seek_to_beginning": "seek",
        "seek_to_end": "seek",
        "start": _BLOCK,
        "topics": "client.admin.topic_names",
        "unsubscribe": "assign",
        "wakeup": "stop",
    },
}
"""Attributes of other clients, by class (or package), and the text that a hint suggests instead."""


def attribute_hint(owner: str, name: str) -> str:
    """Return the end of an error message about an attribute that ``owner`` does not have; empty without a hint."""
    found = ATTRIBUTES.get(owner, {}).get(name)
    return "" if found is None else f"; did you mean {found}?"


def _unlisted(_: object) -> None:
    """Keep a name out of the reference that pdoc writes: @private."""


class _ForeignName(cached_property[None]):
    """An attribute that raises an ``AttributeError`` with a hint when it is looked up.

    A ``__getattr__`` of the class would also work, but would make every lookup on its objects slower. The base class is
    ``cached_property``, so that pdoc finds the docstring.
    """

    def __init__(self, owner: str, name: str) -> None:
        super().__init__(_unlisted)
        self._hint = attribute_hint(owner, name)
        self._name = name

    def __get__(self, found: object, kind: type | None = None) -> NoReturn:
        name = type(found).__name__ if kind is None else kind.__name__
        message = f"{name!r} object has no attribute {self._name!r}{self._hint}"
        raise AttributeError(message, name=self._name, obj=found)


class Hinting:
    """A base class that adds the hints for attributes: those in ``ATTRIBUTES`` under the class keyword ``hints``."""

    def __init_subclass__(cls, *, hints: str = "", **options: object) -> None:
        super().__init_subclass__(**options)
        for name in ATTRIBUTES.get(hints, {}).keys() - dir(cls):
            setattr(cls, name, _ForeignName(hints, name))

    def __dir__(self) -> list[str]:
        kind = type(self)
        return [
            name
            for name in super().__dir__()
            if not isinstance(getattr_static(kind, name, None), _ForeignName)
        ]


def hinting(function: Callable[P, T]) -> Callable[P, T]:
    """Add hints to the errors for unknown keywords of a function. Do not use it for functions called per record."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            found = search(r"unexpected keyword argument '(\w+)'", str(error))
            if found is None or found[1] not in kwargs:
                raise
            name = found[1]
            # ``url`` is no keyword of a producer: the client has the connection.
            hint = ARGUMENTS.get(name)
            if hint == "url" and "url" not in signature(function).parameters:
                hint = "url of Client"
            raise TypeError(
                str(error) + ("" if hint is None else f"; did you mean {hint}?")
            ) from None

    return call
