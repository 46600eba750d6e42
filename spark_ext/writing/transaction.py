"""A batch's transaction, as the driver begins and ends it, and as its tasks find out whether it is needed.

    begin     under the query's transactional id: who had it before is fenced, and what he left open aborted
    writes    by the tasks (``task_writes``), each under a key
    commit    with a group's offset, which says up to which batch all is written

The commit and the offset are one step of the cluster's. So a batch that Spark repeats after a crash, not knowing
whether it was committed, finds out: nobody but the present holder of the id can commit any more, and the offset is
either above the batch or not, for good.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from pyspark.sql.datasource import WriterCommitMessage

from milena.client import Client
from milena.cluster.access_views import TokenGrant
from milena.cluster.credentials import ANONYMOUS, Credentials
from milena.cluster.transport import MemberOffsets, WrittenPart
from milena.errors import (
    AnswerError,
    ClientError,
    TargetNotFoundError,
)
from milena.model.clock import SystemClock
from milena.records import ProducerIdentity, TopicPartition
from spark_ext.cluster.patience import patiently
from spark_ext.cluster.task_tokens import TOKENS, transaction_grants
from spark_ext.errors import BatchAbortedError
from spark_ext.options.parsing import WriteOptions
from spark_ext.writing.preparing import prepare_write

TIMEOUT_MS = 900_000
"""How long a batch may take: the longest that nodes allow."""

GROUP_PREFIX = "spark-"

_OVER = (
    "its transaction is over, since another write has begun under the id, or it took more than "
    f"{TIMEOUT_MS // 60_000} minutes. Give each query an id of its own, and run it once at a time"
)
_CHANGED = (
    "a task that was run again has other rows than before, or in another order, or its topic has other partitions. "
    "Start the query again, and the batch is written anew"
)
_WHYS = {
    40924: _OVER,
    40926: _OVER,
    40412: _OVER,
    40928: _CHANGED,
    42211: _CHANGED,
    40912: _CHANGED,
}
"""By the API's error code: the items of an answer have no other name of their error."""

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTransaction:
    """An open transaction, on its way to tasks and back; the nodes to ask, and as whom."""

    urls: tuple[str, ...]
    transactional_id: str
    identity: ProducerIdentity
    began_ms: int
    """The time of records that say none, by the driver's clock: one time for all, so that what a task repeats is the
    same."""
    credentials: Credentials = ANONYMOUS

    @property
    def header(self) -> str:
        """What a write says to be part of it."""
        return f"{self.identity.producer_id}:{self.identity.producer_epoch}:{TIMEOUT_MS}"

    def shipped(self, options: WriteOptions) -> WriteOptions:
        """Options as tasks have them, without what the driver asks as."""
        return replace(options, urls=self.urls, credentials=self.credentials)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNumber:
    """Batch of a query, or of a program under its transactional id; its group's offset is above what is committed."""

    group: str
    batch_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWritten(WriterCommitMessage):
    """What one task wrote; ``is_skipped``: nothing, since the batch is committed."""

    transaction: BatchTransaction
    number: BatchNumber | None
    parts: tuple[tuple[TopicPartition, WrittenPart], ...] = ()
    is_skipped: bool = False


def begin(options: WriteOptions, *, is_stream: bool = False) -> BatchTransaction:
    """Open a transaction, once the cluster and the topic of the option are found.

    Raises:
        OptionError: there is no such topic; or tasks are always to have a token, and there can be none.
        ClientError: the cluster does not answer, or refuses.
    """
    name = options.transactional_id
    assert name is not None, "a transaction has an id"

    async def work() -> BatchTransaction:
        async with Client(options.urls, credentials=options.credentials) as client:
            urls = await prepare_write(client, options)
            credentials = await TOKENS.credentials(
                client, options.credentials, options.task_token, _grants(options, name, is_stream)
            )
            identity = await patiently(
                lambda: client.transport.begin_transaction(name, timeout_ms=TIMEOUT_MS)
            )
        return BatchTransaction(
            urls=urls,
            transactional_id=name,
            identity=identity,
            began_ms=SystemClock().wall_ms(),
            credentials=credentials,
        )

    return asyncio.run(work())


def _grants(options: WriteOptions, name: str, is_stream: bool) -> tuple[TokenGrant, ...]:
    # Spark tells the id of a stream's query, which its group is named after, to its tasks alone.
    of_batch = None if options.batch_id is None else GROUP_PREFIX + name
    group = GROUP_PREFIX if is_stream else of_batch
    return transaction_grants(options.topic, name, group, is_prefix=is_stream)


def commit(messages: Sequence[WriterCommitMessage | None], topic: str | None) -> None:
    """Let all count that the tasks of a batch wrote; ``topic`` is that of the option.

    A batch without records leaves no trace: that it is repeated does no harm.

    Raises:
        BatchAbortedError: nothing counts.
        ClientError: it may count or not; when the batch is repeated its tasks find out.
    """
    written = _of_one_batch(messages)
    parts = merged(message.parts for message in written)
    if not parts:
        return
    transaction, number = written[0].transaction, written[0].number
    offsets: list[MemberOffsets] = []
    if number is not None:
        # Of the option's topic, so that there is one; else of some topic that is certainly there.
        where = TopicPartition(topic if topic is not None else min(parts).topic, 0)
        offsets.append(
            MemberOffsets(
                group=number.group,
                member_id=None,
                member_epoch=None,
                offsets={where: number.batch_id + 1},
            )
        )

    async def work() -> None:
        async with Client(transaction.urls, credentials=transaction.credentials) as client:
            await patiently(
                lambda: client.transport.commit_transaction(transaction.identity, parts, offsets)
            )

    with explained(transaction.transactional_id):
        asyncio.run(work())
    count = sum(part.records for part in parts.values())
    logger.info("%d records committed to %d partitions", count, len(parts))


def _of_one_batch(messages: Sequence[WriterCommitMessage | None]) -> list[TaskWritten]:
    """The messages of tasks that wrote; none where the batch was committed before.

    Raises:
        BatchAbortedError: some tasks found it committed and others not: another query of the same checkpoint runs.
    """
    found = [message for message in messages if isinstance(message, TaskWritten)]
    written = [message for message in found if not message.is_skipped]
    if len({(message.transaction, message.number) for message in found}) > 1 or (
        written and len(written) < len(found)
    ):
        raise BatchAbortedError(
            "another query commits batches of the same checkpoint; nothing of this one's counts. Stop one of them"
        )
    return written


def merged(
    tasks: Iterable[Iterable[tuple[TopicPartition, WrittenPart]]],
) -> dict[TopicPartition, WrittenPart]:
    """What several tasks, or chunks, wrote to each partition."""
    found: dict[TopicPartition, WrittenPart] = {}
    for parts in tasks:
        for where, part in parts:
            known = found.get(where, WrittenPart(end_offset=0, records=0))
            found[where] = WrittenPart(
                end_offset=max(known.end_offset, part.end_offset),
                records=known.records + part.records,
            )
    return found


def transactions_of(
    messages: Sequence[WriterCommitMessage | None],
) -> set[BatchTransaction]:
    """The transaction that tasks wrote in; where none of them has ended, none is known."""
    return {message.transaction for message in messages if isinstance(message, TaskWritten)}


def abort(transactions: Iterable[BatchTransaction]) -> None:
    """Let nothing count of a batch that failed, so that readers need not wait for the end of its time.

    Spark also asks for that when a commit failed. One that got through stands: the abort is refused.
    """

    async def work(transaction: BatchTransaction) -> None:
        async with Client(transaction.urls, credentials=transaction.credentials) as client:
            await client.transport.abort_transaction(transaction.identity)

    for transaction in transactions:
        try:
            asyncio.run(work(transaction))
        except ClientError as error:
            logger.warning("the transaction of the failed batch was not aborted: %s", error.message)


async def is_committed(client: Client, number: BatchNumber) -> bool:
    """Whether a batch is, as the quorum says now."""
    found = await offsets_of(client, number.group)
    return any(offset > number.batch_id for offset in found.values())


async def offsets_of(client: Client, name: str) -> dict[TopicPartition, int]:
    """What a group has committed, as the quorum says now; nothing where there is no such group."""
    try:
        found = await patiently(lambda: client.admin.group(name))
    except TargetNotFoundError:
        return {}
    return {where: committed.offset for where, committed in found.offsets.items()}


@contextmanager
def explained(transactional_id: str) -> Iterator[None]:
    """Refusals that mean the end of a batch, in words of Spark."""
    try:
        yield
    except AnswerError as error:
        why = _WHYS.get(error.error_code or 0)
        if why is None:
            raise
        raise BatchAbortedError(
            f"nothing of this batch counts: {why}. transactionalId {transactional_id}: {error.message}"
        ) from error
