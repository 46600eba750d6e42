"""The client: one object for everything that a program does with a cluster. asyncio; ``milena.sync`` blocks instead."""

from collections.abc import Sequence
from random import Random
from types import TracebackType
from typing import Self, Unpack

from milena.cluster.admin import TIMEOUT_S, AdminClient
from milena.cluster.credentials import ANONYMOUS, Credentials
from milena.cluster.http import HttpSession
from milena.cluster.metadata import MAX_AGE_MS, MetadataCache
from milena.cluster.transport import ClusterTransport
from milena.consuming.active_subscription import ConsumerPorts
from milena.consuming.consumer import Consumer
from milena.consuming.group_calls import GroupCalls
from milena.consuming.options import ConsumerKeywords, ConsumerOptions, Subscription
from milena.model.clock import Clock, SystemClock
from milena.producing.named import NamedProducer
from milena.producing.options import ProducerKeywords, ProducerOptions
from milena.producing.producer import Producer
from milena.producing.transaction import (
    TRANSACTION_TIMEOUT_MS,
    TransactionalId,
    TransactionalProducer,
)
from milena.reading.cursor import OnOutOfRange, ReadPlan
from milena.reading.reader import (
    FETCH_BYTES,
    PATIENCE_MS,
    PREFETCH_CHUNKS,
    WAIT_MS,
    PartitionReader,
)
from milena.records import Position, StartAt


class Client:
    """Connections to a cluster's nodes, and what is known of it. An asynchronous context manager, of one event loop.

    Args:
        url: any node of the cluster, or several: one that answers is enough, for it names the others.
        credentials: who asks, and whose certificates are believed.
        timeout_s: how long one call to one node may take where a call has no limit of its own.
        metadata_max_age_ms: how long a change of partitions may go unnoticed while nothing fails.
        clock: for tests.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        credentials: Credentials = ANONYMOUS,
        timeout_s: float = TIMEOUT_S,
        metadata_max_age_ms: float = MAX_AGE_MS,
        clock: Clock | None = None,
    ) -> None:
        self._clock = SystemClock() if clock is None else clock
        self._http = HttpSession(
            url, timeout_s=timeout_s, credentials=credentials, clock=self._clock
        )
        self.admin = AdminClient.over(self._http)
        self.metadata = MetadataCache(self._http, self._clock, max_age_ms=metadata_max_age_ms)
        self.transport = ClusterTransport(self._http, self.metadata)

    def producer(self, **options: Unpack[ProducerKeywords]) -> Producer:
        """A producer, to be used as an asynchronous context manager; ``ProducerOptions`` lists the keywords.

        Raises:
            ValueError: an option out of its range, or at odds with another.
        """
        return Producer(
            ProducerOptions(**options),
            transport=self.transport,
            metadata=self.metadata,
            clock=self._clock,
            chance=Random(),
        )

    def transactional_producer(
        self,
        transactional_id: str,
        *,
        timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        until_visible: bool = True,
        **options: Unpack[ProducerKeywords],
    ) -> TransactionalProducer:
        """Transactions, one after the other, under an id of the program's own; ``ProducerOptions`` lists the keywords.

        Args:
            transactional_id: a program that comes back under it takes over, and what its former life left open is
                aborted; 1 to 255 characters.
            timeout_ms: how long a transaction may be open, 1 to 900,000; then the cluster aborts it.
            until_visible: leave the block of one once readers see it; else once it is decided, which is sooner.

        Raises:
            ValueError: an option out of its range, or acks other than ``all``, or not idempotent.
        """
        return TransactionalProducer(
            TransactionalId(
                transactional_id,
                timeout_ms=timeout_ms,
                until_visible=until_visible,
                calls=self.transport,
            ),
            ProducerOptions(**options),
            metadata=self.metadata,
            clock=self._clock,
            chance=Random(),
        )

    def named_producer(
        self,
        name: str,
        topic: str,
        *,
        timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        **options: Unpack[ProducerKeywords],
    ) -> NamedProducer:
        """A writer of one source that goes on where it stopped, to be used as an asynchronous context manager.

        Args:
            name: of the source; a program that comes back under it takes over. It is the transactional id, too.
            topic: where the records go.
            timeout_ms: how long one write may take, 1 to 900,000; then the cluster aborts it.
            options: keywords of ``ProducerOptions``.

        Raises:
            ValueError: as ``transactional_producer``, or the name is empty or too long.
        """
        return NamedProducer(
            self.transactional_producer(name, timeout_ms=timeout_ms, **options),
            name=name,
            topic=topic,
            groups=self.admin,
        )

    def consumer(
        self, *topics: str, pattern: str | None = None, **options: Unpack[ConsumerKeywords]
    ) -> Consumer:
        """A consumer of these topics, or of those whose whole names match a pattern.

        To be used as an asynchronous context manager; ``ConsumerOptions`` lists the keywords. With ``group`` it shares
        them with the group's other members, else it reads all of them. Without topics, ``assign`` says what it reads.

        Raises:
            ValueError: an option out of its range, topics and a pattern, or a pattern without a group.
        """
        found = ConsumerOptions(**options)
        chance = Random()
        return Consumer(
            found,
            Subscription(topics=topics, pattern=pattern) if topics or pattern is not None else None,
            ports=ConsumerPorts(
                calls=GroupCalls(self._http),
                transport=self.transport,
                metadata=self.metadata,
                clock=self._clock,
            ),
            new_id=lambda: f"{found.client_id}-{chance.getrandbits(128):032x}",
        )

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.metadata.close()
        await self._http.__aexit__(kind, error, trace)

    def reader(
        self,
        topic: str,
        partition: int,
        *,
        start: Position = StartAt.EARLIEST,
        end: int | None = None,
        follow: bool = False,
        on_out_of_range: OnOutOfRange = OnOutOfRange.FAIL,
        max_bytes: int = FETCH_BYTES,
        wait_ms: int = WAIT_MS,
        prefetch_chunks: int = PREFETCH_CHUNKS,
        patience_ms: float = PATIENCE_MS,
    ) -> PartitionReader:
        """A reader of one partition, to be used as an asynchronous context manager.

        Args:
            topic: its name.
            partition: from 0.
            start: where to begin.
            end: where to end, exclusive; None: at the high watermark seen at the start, or never when it follows.
            follow: wait at the end for records to come.
            on_out_of_range: what to do when the next offset was deleted or is above the end.
            max_bytes: what one request may fetch; one batch is fetched however large it is.
            wait_ms: how long a node may wait for records before it answers that there are none.
            prefetch_chunks: how many answers may be held that were not read yet.
            patience_ms: how long to go on asking while nothing of use is answered.
        """
        plan = ReadPlan(
            topic=topic,
            partition=partition,
            start=start,
            end=end,
            is_following=follow,
            on_out_of_range=on_out_of_range,
        )
        return PartitionReader(
            plan,
            transport=self.transport,
            metadata=self.metadata,
            clock=self._clock,
            max_bytes=max_bytes,
            wait_ms=wait_ms,
            prefetch_chunks=prefetch_chunks,
            patience_ms=patience_ms,
        )
