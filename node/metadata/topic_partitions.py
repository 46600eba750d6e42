"""Partitions by their topics' names, as nodes tell them to each other: ``[[topic, [number, ...]], ...]``."""

from collections.abc import Sequence

from http_api.group_ports import TopicPartition
from milena.model.errors import MalformedRequestError
from node.peers.codec import Fields, list_field


def pack_partitions(partitions: Sequence[TopicPartition]) -> list[object]:
    """A field's value; a topic's name travels once."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    return [[topic, numbers] for topic, numbers in by_topic.items()]


def partitions_field(fields: Fields, name: str) -> list[TopicPartition]:
    """Partitions of a field that ``pack_partitions`` made; topic by topic.

    Raises:
        MalformedRequestError: it has the wrong shape.
    """
    found: list[TopicPartition] = []
    for row in list_field(fields, name):
        match row:
            case [str(topic), list(numbers)] if all(type(number) is int for number in numbers):
                found += ((topic, number) for number in numbers)
            case _:
                raise MalformedRequestError(
                    f"field {name!r} of a peer's message must hold topics with numbers of partitions"
                )
    return found
