"""The client for asyncio: one object for all that a program does with a cluster. ``milena.sync`` has a blocking one."""

from collections.abc import Sequence
from random import Random
from typing import Self, Unpack

from milena.cluster.admin import TIMEOUT_S, AdminClient
from milena.cluster.credentials import ANONYMOUS, Credentials
from milena.cluster.first_contact import CONNECT_TIMEOUT_MS
from milena.cluster.http import HttpSession
from milena.cluster.metadata import MAX_AGE_MS, MetadataCache
from milena.cluster.transport import ClusterTransport
from milena.consuming.active_subscription import ConsumerPorts
from milena.consuming.consumer import Consumer
from milena.consuming.group_calls import GroupCalls
from milena.consuming.options import ConsumerKeywords, ConsumerOptions, Subscription
from milena.hints import Hinting, hinting
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


class Client(Hinting, hints="Client"):
    """Connect to a cluster. An asynchronous context manager, for one event loop.

        async with Client("http://127.0.0.1:8082") as client:
            print(await client.admin.topic_names())

    Args:
        url: the URL of any node of the cluster, or of several. If one responds, the client learns the others from it.
        credentials: the client's identity, and the authorities that it trusts.
        timeout_s: how long one call to one node may take, unless the call has its own limit.
        metadata_max_age_ms: age at which metadata is refreshed even if nothing fails, so that new partitions are seen.
        connect_timeout_ms: how long producers, readers, consumers and transactions try while no node has ever
            responded. Then they raise ``NeverReachedError``. After the first response, their own timeouts count.
        clock: the clock to use; tests pass a virtual one.
    """

    @hinting
    def __init__(
        self,
        url: str | Sequence[str],
        *,
        credentials: Credentials = ANONYMOUS,
        timeout_s: float = TIMEOUT_S,
        metadata_max_age_ms: float = MAX_AGE_MS,
        connect_timeout_ms: float = CONNECT_TIMEOUT_MS,
        clock: Clock | None = None,
    ) -> None:
        self._clock = SystemClock() if clock is None else clock
        self._http = HttpSession(
            url,
            timeout_s=timeout_s,
            credentials=credentials,
            clock=self._clock,
            connect_timeout_ms=connect_timeout_ms,
        )
        self.admin = AdminClient.over(self._http)
        self.metadata = MetadataCache(self._http, self._clock, max_age_ms=metadata_max_age_ms)
        self.transport = ClusterTransport(self._http, self.metadata)

    @hinting
    def producer(self, **options: Unpack[ProducerKeywords]) -> Producer:
        """Return a producer. Use it as an asynchronous context manager; ``ProducerOptions`` lists the keywords.

        Raises:
            ValueError: an option is out of its range, or contradicts another.
        """
        return Producer(
            ProducerOptions(**options),
            transport=self.transport,
            metadata=self.metadata,
            clock=self._clock,
            chance=Random(),
        )

    @hinting
    def transactional_producer(
        self,
        transactional_id: str,
        *,
        timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        until_visible: bool = True,
        **options: Unpack[ProducerKeywords],
    ) -> TransactionalProducer:
        """Return a producer of transactions, one at a time, under a transactional id that you choose.

        Args:
            transactional_id: 1 to 255 characters. When a second program uses the same id, the first one is fenced, and
                its open transaction is aborted.
            timeout_ms: how long a transaction may be open, 1 to 900,000. Then the cluster aborts it.
            until_visible: whether leaving a transaction's block waits until readers see its records. Otherwise it waits
                only until the commit is decided.
            options: keywords of ``ProducerOptions``.

        Raises:
            ValueError: an option is out of its range, acks is not ``all``, or the producer is not idempotent.
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

    @hinting
    def named_producer(
        self,
        name: str,
        topic: str,
        *,
        timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        **options: Unpack[ProducerKeywords],
    ) -> NamedProducer:
        """Return a producer that writes the records of one source exactly once, also after restarts of the program.

        Use it as an asynchronous context manager.

        Args:
            name: the source's name, which is also the transactional id. When a second program uses the same name, the
                first one is fenced.
            topic: the topic of the records.
            timeout_ms: how long one write may take, 1 to 900,000. Then the cluster aborts it.
            options: keywords of ``ProducerOptions``.

        Raises:
            ValueError: an error of ``transactional_producer``, or the name is empty or too long.
        """
        return NamedProducer(
            self.transactional_producer(name, timeout_ms=timeout_ms, **options),
            name=name,
            topic=topic,
            groups=self.admin,
        )

    @hinting
    def consumer(
        self, *topics: str, pattern: str | None = None, **options: Unpack[ConsumerKeywords]
    ) -> Consumer:
        """Return a consumer of these topics, or of the topics whose whole name matches a pattern.

        Use it as an asynchronous context manager; ``ConsumerOptions`` lists the keywords. With ``group``, the consumer
        shares the partitions with the other members of the group. Without a group, it reads all partitions. If you name
        no topics, call ``assign`` to set the partitions.

        Args:
            topics: names of topics.
            pattern: a regular expression that whole names match, instead of ``topics``; needs a group.
            options: keywords of ``ConsumerOptions``.

        Raises:
            ValueError: an option is out of its range, topics and a pattern are given, or a pattern without a group.
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

    async def __aexit__(self, *_: object) -> None:
        await self.metadata.close()
        await self._http.__aexit__()

    @hinting
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
        """Return a reader of one partition. Use it as an asynchronous context manager.

        Args:
            topic: the topic's name.
            partition: the partition's number, from 0.
            start: where to begin.
            end: the offset at which to end, exclusive. None: at the end that the partition has when reading starts;
                with ``follow``, never.
            follow: wait at the end for new records.
            on_out_of_range: the policy if the next offset was deleted or is above the end.
            max_bytes: the most bytes that one request fetches. A larger batch is fetched whole.
            wait_ms: how long a node may wait for records before it responds that there are none.
            prefetch_chunks: the most responses that are fetched ahead of the reader.
            patience_ms: how long to retry without a useful response.
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
