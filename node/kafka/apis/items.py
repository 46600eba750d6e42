"""Requests of many items, each of which succeeds or fails by itself.

The items of a request share its timeout. An item that is still in work then has REQUEST_TIMED_OUT: its change may yet
happen.

A request may have an item more than once. Each API does what Apache Kafka does with a repeated item:

- one row with INVALID_REQUEST, and nothing is changed: ListOffsets, CreateTopics, DeleteTopics, CreatePartitions,
  AlterClientQuotas;
- one row with DUPLICATE_RESOURCE: DescribeUserScramCredentials, AlterUserScramCredentials;
- as many rows with INVALID_REQUEST as there are items: AlterConfigs, IncrementalAlterConfigs;
- one row, and the last item counts: Fetch, DeleteRecords, AlterReplicaLogDirs; also without differences between
  the items: Metadata, AddPartitionsToTxn, DescribeLogDirs, DeleteGroups, DescribeTopicPartitions;
- a row for each item: all others. Of two offsets to commit, the last one counts.

Four differences are meant:

- Produce: Kafka writes the last batch of a partition and drops the others without an error. Here, the partition has one
  row with INVALID_REQUEST, and nothing is written to it.
- AlterClientQuotas: Kafka refuses a repeated entity and still applies its first entry. Here, nothing is applied.
- DescribeGroups, ConsumerGroupDescribe, DescribeTransactions, and OffsetFetch of all offsets of a group: one row.
  Otherwise, a request of some kilobytes could ask for a response of gigabytes.
- DeleteAcls: the second one of two equal filters finds nothing, as the first one deleted the entries.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar
from uuid import UUID

from http_api.protocol.errors import kafka_code_of
from http_api.protocol.kafka_codes import KafkaCode
from milena.model.errors import MilenaError
from node.kafka.apis.api import KafkaCall

ITEMS_MAX = 10_000
"""Items of one request."""
AT_ONCE_MAX = 50
"""Items of one request that are in work side by side. Their commands share writes of the quorum's log."""
TIMEOUT_MS_MIN = 500
"""The shortest wait. Some clients send 0 to start a change without a wait. A command takes a few milliseconds, so the
client learns the result, too."""
TIMEOUT_MS_MAX = 300_000
MESSAGE_LENGTH_MAX = 2_000
"""Characters of an error message. A message may quote a name from the request, and a text has 32,767 bytes at most."""

NO_ID = UUID(int=0)
"""The id in a message that names a topic by its name."""

T = TypeVar("T")
R = TypeVar("R")
K = TypeVar("K", bound=Hashable)


class ItemError(Exception):
    """The reason why an item was refused: Kafka's code, and a sentence. It never leaves the node."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = int(code)
        self.message = message[:MESSAGE_LENGTH_MAX]

    @classmethod
    def of(cls, error: "MilenaError | ItemError") -> "ItemError":
        """Return the refusal by a service, or a refusal as it is."""
        if isinstance(error, ItemError):
            return error
        return cls(kafka_code_of(error), error.message)


def invalid(message: str) -> ItemError:
    """Return the refusal of an item that no request may have."""
    return ItemError(KafkaCode.INVALID_REQUEST, message)


def too_many(count: int) -> ItemError:
    """Return the refusal of a request with more items than ``ITEMS_MAX``."""
    return invalid(f"The request has {count} items: send at most {ITEMS_MAX} in one request.")


def wait_ms(timeout_ms: int) -> int:
    """Return how long a request waits, for the timeout that its client sent."""
    return max(TIMEOUT_MS_MIN, min(timeout_ms, TIMEOUT_MS_MAX))


async def each(
    items: Sequence[T], work: Callable[[T], Awaitable[R]], *, timeout_ms: int
) -> list[R | ItemError]:
    """Do the work of every item, many side by side; return their results in order.

    ``work`` may raise ItemError and MilenaError. ``timeout_ms``: as the client sent it.
    """
    if len(items) > ITEMS_MAX:
        return [too_many(len(items)) for _ in items]
    not_begun = ItemError(
        KafkaCode.REQUEST_TIMED_OUT, "The timeout ended before this was started; nothing was done."
    )
    results: list[R | ItemError] = [not_begun for _ in items]
    places = iter(range(len(items)))

    async def do_some() -> None:
        for place in places:
            results[place] = ItemError(
                KafkaCode.REQUEST_TIMED_OUT,
                "The timeout ended before the result was known; the change may yet happen.",
            )
            try:
                results[place] = await work(items[place])
            except (ItemError, MilenaError) as error:
                results[place] = ItemError.of(error)

    limit = asyncio.timeout(wait_ms(timeout_ms) / 1000)
    try:
        async with limit, asyncio.TaskGroup() as group:
            for _ in range(min(AT_ONCE_MAX, len(items))):
                group.create_task(do_some())
    except TimeoutError:
        # A task's own TimeoutError comes out of the group in an ExceptionGroup.
        assert limit.expired(), "only the limit raises it"
    return results


def repeated(keys: Iterable[K]) -> frozenset[K]:
    """Return the keys that are there more than once."""
    return frozenset(key for key, count in Counter(keys).items() if count > 1)


def twice(what: str) -> ItemError:
    """Return the refusal of an item that is in the request more than once."""
    return invalid(f"{what} is in the request more than once: name it once.")


def by_topic(rows: Iterable[tuple[str, R]]) -> dict[str, list[R]]:
    """Return rows of partitions, by the name of their topic, of which each has one entry."""
    found: dict[str, list[R]] = {}
    for name, row in rows:
        found.setdefault(name, []).append(row)
    return found


def error_fields(call: KafkaCall, result: object) -> dict[str, Any]:
    """Return the error fields of an item's row."""
    if isinstance(result, ItemError):
        return {"error_code": call.note(result.code), "error_message": result.message}
    return {"error_code": KafkaCode.NONE.value, "error_message": None}
