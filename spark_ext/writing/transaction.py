"""Begin and end a batch's transaction on the driver, and let tasks find out whether the batch is committed.

    begin     under the query's transactional id: fences the previous holder and aborts its open transaction
    writes    by the tasks (``task_writes``), each under an idempotency key
    commit    with a group's offset, which says up to which batch everything is committed

The cluster commits the records and the offset in one step. After a crash, Spark repeats a batch without knowing
whether it was committed. The repeated batch first calls ``begin``. After that the previous holder of the id can no
longer commit, so the group's offset is final. The batch is committed if and only if that offset is above its number.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pyspark.sql.datasource import WriterCommitMessage

from milena.client import Client
from milena.cluster.access_views import TokenGrant
from milena.cluster.credentials import ANONYMOUS, Credentials
from milena.cluster.first_contact import CONNECT_TIMEOUT_MS_MAX
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
"""How long a batch may take, in ms: the longest timeout that nodes allow."""

GROUP_PREFIX = "spark-"

_OVER = (
    "its transaction is over, since another write has started under the id, or it took more than "
    f"{TIMEOUT_MS // 60_000} minutes. Give each query an id of its own, and run it once at a time"
)
_CHANGED = (
    "a task that was run again has other rows than before, or in another order, or its topic has other partitions. "
    "Start the query again, and the batch is written again"
)
# ``_OVER``: the error is a stale epoch, an aborted transaction, or no transaction. The transaction has ended.
# ``_CHANGED``: the records differ from the ``parts`` of the commit, an idempotency key came with another body, or the
# partition count changed. A repeated task sent other chunks than its first attempt, and both would be committed.
_WHYS = {
    40924: _OVER,
    40926: _OVER,
    40412: _OVER,
    40928: _CHANGED,
    42211: _CHANGED,
    40912: _CHANGED,
}
"""Explanations by the API's error code. An item of a response has only the code of its error."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTransaction:
    """An open transaction that Spark sends to tasks and back, with the nodes' URLs and the credentials to use."""

    urls: tuple[str, ...]
    transactional_id: str
    identity: ProducerIdentity
    began_ms: int
    """The time of records without a time, in ms by the driver's clock.

    All tasks use this time, so that a repeated task sends the same bytes.
    """
    credentials: Credentials = ANONYMOUS

    @property
    def header(self) -> str:
        """Return the header that makes a write part of the transaction."""
        return f"{self.identity.producer_id}:{self.identity.producer_epoch}:{TIMEOUT_MS}"

    def shipped(self, options: WriteOptions) -> WriteOptions:
        """Return the options for tasks, without the driver's credentials."""
        return replace(options, urls=self.urls, credentials=self.credentials)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNumber:
    """The number of a batch of a query, or of a program under its transactional id.

    The batch is committed if an offset of ``group`` is above ``batch_id``.
    """

    group: str
    batch_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWritten(WriterCommitMessage):
    """The parts that one task wrote. If ``is_skipped``, it wrote nothing because the batch is committed."""

    transaction: BatchTransaction
    number: BatchNumber | None
    parts: tuple[tuple[TopicPartition, WrittenPart], ...] = ()
    is_skipped: bool = False


def begin(options: WriteOptions, *, is_stream: bool = False) -> BatchTransaction:
    """Open a transaction, after a check that the cluster responds and has the topic of the option.

    Raises:
        OptionError: there is no such topic; or the options require tokens for tasks, and the cluster cannot give one.
        ClientError: the cluster does not respond, or refuses.
    """
    name = options.transactional_id
    assert name is not None, "a transaction has an id"

    async def work() -> BatchTransaction:
        async with Client(options.urls, credentials=options.credentials) as client:
            urls = await prepare_write(client, options)
            credentials = await TOKENS.credentials(
                client, options.credentials, options.task_token, _grants(options, name, is_stream)
            )
            # Last, because it fences the query that runs: a write that fails the checks above must not disturb it.
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
    # A stream's group is named after the query's id, which Spark tells only the tasks. So the driver cannot name the
    # group here, and grants all groups with the prefix.
    of_batch = None if options.batch_id is None else GROUP_PREFIX + name
    group = GROUP_PREFIX if is_stream else of_batch
    return transaction_grants(options.topic, name, group, is_prefix=is_stream)


def commit(messages: Sequence[WriterCommitMessage | None], topic: str | None) -> None:
    """Commit everything that the tasks of a batch wrote. ``topic`` is the topic of the option.

    A batch without records commits nothing, not even its offset: repeating it does no harm.

    Raises:
        BatchAbortedError: the batch was aborted; none of its records count.
        ClientError: the batch may be committed or not; its tasks find out when Spark repeats it.
    """
    written = _of_one_batch(messages)
    parts = merged(message.parts for message in written)
    if not parts:
        return
    transaction, number = written[0].transaction, written[0].number
    offsets: list[MemberOffsets] = []
    if number is not None:
        # The cluster keeps offsets per partition, and only of topics that exist. The offset is a batch number here, so
        # any partition will do: of the option's topic, else of a topic that the batch wrote to. ``is_committed`` looks
        # at all partitions of the group, because the topic may differ from batch to batch.
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
        async with Client(
            transaction.urls,
            credentials=transaction.credentials,
            connect_timeout_ms=CONNECT_TIMEOUT_MS_MAX,
        ) as client:
            # Retrying is safe: a repeated commit gets the first one's result (docs/guarantees.md, Transactions).
            # ``parts`` lets the cluster refuse a transaction that has records of no task in the list.
            await patiently(
                lambda: client.transport.commit_transaction(transaction.identity, parts, offsets)
            )

    with explained(transaction.transactional_id):
        asyncio.run(work())
    count = sum(part.records for part in parts.values())
    logger.info("%d records committed to %d partitions", count, len(parts))


def _of_one_batch(messages: Sequence[WriterCommitMessage | None]) -> list[TaskWritten]:
    """Return the messages of the tasks that wrote; none if the batch was committed before.

    Raises:
        BatchAbortedError: some tasks found the batch committed and others did not, or tasks wrote in different
            transactions: another query of the same checkpoint is running.
    """
    found = [message for message in messages if isinstance(message, TaskWritten)]
    written = [message for message in found if not message.is_skipped]
    # Committing the tasks that wrote would lose or double the rows of the tasks that skipped.
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
    """Return what several tasks, or chunks, wrote to each partition, added up."""
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
    """Return the transactions that tasks wrote in; empty if no task has ended."""
    return {message.transaction for message in messages if isinstance(message, TaskWritten)}


def abort(transactions: Iterable[BatchTransaction]) -> None:
    """Abort the transactions of a failed batch, so that readers need not wait for their timeout.

    Spark also calls this after a failed commit. If that commit took effect, it stands: the cluster refuses the abort.
    A failure of the abort itself is logged and not raised.
    """

    async def work(transaction: BatchTransaction) -> None:
        async with Client(transaction.urls, credentials=transaction.credentials) as client:
            await client.transport.abort_transaction(transaction.identity)

    for transaction in transactions:
        try:
            asyncio.run(work(transaction))
        # Raised here, it would hide the error of the batch. The timeout or the next ``begin`` aborts, too.
        except ClientError as error:
            logger.warning("the transaction of the failed batch was not aborted: %s", error.message)


async def is_committed(client: Client, number: BatchNumber) -> bool:
    """Return whether a batch is committed, as the quorum says now."""
    found = await offsets_of(client, number.group)
    return any(offset > number.batch_id for offset in found.values())


async def offsets_of(client: Client, name: str) -> dict[TopicPartition, int]:
    """Return the committed offsets of a group, as the quorum says now; empty if there is no such group."""
    try:
        found = await patiently(lambda: client.admin.group(name))
    except TargetNotFoundError:
        return {}
    return {where: committed.offset for where, committed in found.offsets.items()}


@contextmanager
def explained(transactional_id: str) -> Iterator[None]:
    """Raise BatchAbortedError with an explanation for a refusal that ends the batch; pass other errors on."""
    try:
        yield
    except AnswerError as error:
        why = _WHYS.get(error.error_code or 0)
        if why is None:
            raise
        raise BatchAbortedError(
            f"nothing of this batch counts: {why}. transactionalId {transactional_id}: {error.message}"
        ) from error
