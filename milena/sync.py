"""The client for blocking programs: ``milena.client``, run by an event loop on another thread.

    with milena.sync.Client("localhost:8082") as client, client.producer() as producer:
        delivery = producer.send("orders", b"tea", key=b"u1")
        print(delivery.result().offset)

A switch between threads for every record would be slow. So ``send`` puts the record into the producer's batch on the
caller's thread, and readers hand over the records of a whole response at a time. A client opens connections when it is
first used, separately in each process after a fork. Producers and readers may be used only in the process that opened
them.
"""

import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from milena.blocking.access import AccessAdmin
from milena.blocking.clients import Deliveries, Delivery, PartitionReader, Producer, Resource
from milena.blocking.consumer import Consumer, on_threads
from milena.blocking.forwarding import Forwarding, described_as, forwarded
from milena.blocking.loop_thread import ClientLoopThread
from milena.blocking.transactions import NamedProducer, Transaction, TransactionalProducer
from milena.client import Client as AsyncClient
from milena.cluster.admin import TIMEOUT_S, AdminClient
from milena.cluster.credentials import ANONYMOUS, Credentials
from milena.cluster.first_contact import CONNECT_TIMEOUT_MS
from milena.cluster.metadata import MAX_AGE_MS
from milena.consuming.consumer import Consumer as AsyncConsumer
from milena.consuming.options import ConsumerKeywords
from milena.hints import Hinting, hinting
from milena.producing.options import ProducerKeywords
from milena.producing.transaction import TRANSACTION_TIMEOUT_MS
from milena.reading.cursor import OnOutOfRange
from milena.reading.reader import FETCH_BYTES, PATIENCE_MS, PREFETCH_CHUNKS, WAIT_MS
from milena.reading.reader import PartitionReader as AsyncPartitionReader
from milena.records import Position, StartAt

__all__ = [
    "AccessAdmin",
    "Admin",
    "Client",
    "Consumer",
    "Deliveries",
    "Delivery",
    "NamedProducer",
    "PartitionReader",
    "Producer",
    "Transaction",
    "TransactionalProducer",
]

T = TypeVar("T")

_Work = Callable[[AdminClient], Coroutine[object, object, T]]


class Client(Hinting, hints="Client"):
    """Connect to a cluster. A context manager; several threads may use it.

        with sync.Client("http://127.0.0.1:8082") as client:
            print(client.admin.topic_names())

    Args:
        url: any node of the cluster, or several.
        credentials: the client's identity, and the authorities that it trusts.
        timeout_s: how long one call to one node may take, unless the call has its own limit.
        metadata_max_age_ms: age at which metadata is refreshed even if nothing fails, so that new partitions are seen.
        connect_timeout_ms: how long calls are retried while no node has ever responded; see ``milena.Client``.
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
    ) -> None:
        self._url = url
        self._credentials = credentials
        self._timeout_s = timeout_s
        self._metadata_max_age_ms = metadata_max_age_ms
        self._connect_timeout_ms = connect_timeout_ms
        self._lock = threading.Lock()
        self._opened: tuple[ClientLoopThread, AsyncClient] | None = None
        self._users: set[Resource[Any]] = set()
        """Producers, readers and consumers that are open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close(kind, error, trace)

    def close(self) -> None:
        """Close producers, readers and consumers that are still open, then all connections. You may call this again."""
        self._close(None, None, None)

    @property
    def admin(self) -> "Admin":
        """The administration of topics, groups, access and the cluster."""
        return Admin(self)

    @hinting
    def producer(self, **options: Unpack[ProducerKeywords]) -> "Producer":
        """Return a producer. Use it as a context manager; ``ProducerOptions`` lists the keywords.

        Raises:
            ValueError: an option is out of its range, or contradicts another.
        """
        thread, client = self._open()
        producer = Producer(client.producer(**options), thread, on_exit=self._users.discard)
        self._users.add(producer)
        return producer

    @hinting
    @described_as(AsyncClient.transactional_producer)
    def transactional_producer(
        self,
        transactional_id: str,
        *,
        timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        until_visible: bool = True,
        **options: Unpack[ProducerKeywords],
    ) -> "TransactionalProducer":
        """Return a blocking producer of transactions; parameters as for ``milena.Client``."""
        thread, client = self._open()
        return TransactionalProducer(
            client.transactional_producer(
                transactional_id, timeout_ms=timeout_ms, until_visible=until_visible, **options
            ),
            thread,
            on_open=self._users.add,
            on_exit=self._users.discard,
        )

    @hinting
    @described_as(AsyncClient.named_producer)
    def named_producer(
        self,
        name: str,
        topic: str,
        *,
        timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        **options: Unpack[ProducerKeywords],
    ) -> "NamedProducer":
        """Return a blocking producer that writes one source exactly once; parameters as for ``milena.Client``."""
        thread, client = self._open()
        producer = NamedProducer(
            client.named_producer(name, topic, timeout_ms=timeout_ms, **options),
            thread,
            on_exit=self._users.discard,
        )
        self._users.add(producer)
        return producer

    @hinting
    @described_as(AsyncClient.reader)
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
    ) -> "PartitionReader":
        """Return a blocking reader of one partition; parameters as for ``milena.Client``."""
        thread, client = self._open()

        async def make() -> AsyncPartitionReader:
            # The reader's queues must be created on the loop's thread.
            return client.reader(
                topic,
                partition,
                start=start,
                end=end,
                follow=follow,
                on_out_of_range=on_out_of_range,
                max_bytes=max_bytes,
                wait_ms=wait_ms,
                prefetch_chunks=prefetch_chunks,
                patience_ms=patience_ms,
            )

        reader = PartitionReader(thread.run(make()), thread, on_exit=self._users.discard)
        self._users.add(reader)
        return reader

    @hinting
    @described_as(AsyncClient.consumer)
    def consumer(
        self, *topics: str, pattern: str | None = None, **options: Unpack[ConsumerKeywords]
    ) -> Consumer:
        """Return a blocking consumer; parameters as for ``milena.Client``.

        A listener's methods run on another thread, while this one waits in ``poll`` or for the next record. They may
        call the consumer.
        """
        thread, client = self._open()
        options["listener"] = on_threads(options.get("listener"))

        async def make() -> AsyncConsumer:
            # The consumer's events must be created on the loop's thread.
            return client.consumer(*topics, pattern=pattern, **options)

        consumer = Consumer(thread.run(make()), thread, on_exit=self._users.discard)
        self._users.add(consumer)
        return consumer

    def _open(self) -> tuple[ClientLoopThread, AsyncClient]:
        """Return the loop and the client of this process; create them if needed."""
        with self._lock:
            if self._opened is None or not self._opened[0].is_ours:
                thread = ClientLoopThread()
                client = AsyncClient(
                    self._url,
                    credentials=self._credentials,
                    timeout_s=self._timeout_s,
                    metadata_max_age_ms=self._metadata_max_age_ms,
                    connect_timeout_ms=self._connect_timeout_ms,
                )
                thread.run(client.__aenter__())
                self._opened = thread, client
                self._users = set()
            return self._opened

    def _call(self, work: _Work[T]) -> T:
        thread, client = self._open()
        return thread.run(work(client.admin))

    def _close(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            opened, self._opened = self._opened, None
            users, self._users = self._users, set()
        if opened is None or not opened[0].is_ours:
            return
        thread, client = opened
        with ExitStack() as stack:
            stack.callback(thread.close)
            stack.callback(lambda: thread.run(client.__aexit__(None, None, None)))
            for user in users:
                stack.callback(user.__exit__, kind, error, trace)


class Admin(Forwarding[AdminClient], Hinting, hints="Admin"):
    """The blocking ``milena.AdminClient``. Methods, parameters and errors are the same."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def _run(self, work: _Work[T]) -> T:
        return self._client._call(work)

    @property
    def url(self) -> str:
        """The URL of the first node that the client was given."""
        return self._client._open()[1].admin.url

    @property
    def access(self) -> AccessAdmin:
        """Administration of access: users, tokens, access control entries and the mode."""
        return AccessAdmin(self._client._call)

    cluster = forwarded(AdminClient.cluster)
    has_majority = forwarded(AdminClient.has_majority)
    node_metrics = forwarded(AdminClient.node_metrics)
    examine = forwarded(AdminClient.examine)
    rebalance = forwarded(AdminClient.rebalance)
    move_replicas = forwarded(AdminClient.move_replicas)
    reassignments = forwarded(AdminClient.reassignments)
    cancel_reassignments = forwarded(AdminClient.cancel_reassignments)
    topic_sizes = forwarded(AdminClient.topic_sizes)
    reset_plan = forwarded(AdminClient.reset_plan)
    cluster_id = forwarded(AdminClient.cluster_id)
    topic_names = forwarded(AdminClient.topic_names)
    topic = forwarded(AdminClient.topic)
    offsets = forwarded(AdminClient.offsets)
    create_topic = forwarded(AdminClient.create_topic)
    add_partitions = forwarded(AdminClient.add_partitions)
    alter_configs = forwarded(AdminClient.alter_configs)
    delete_records = forwarded(AdminClient.delete_records)
    offset_at = forwarded(AdminClient.offset_at)
    remove_node = forwarded(AdminClient.remove_node)
    delete_topic = forwarded(AdminClient.delete_topic)
    groups = forwarded(AdminClient.groups)
    group = forwarded(AdminClient.group)
    group_lags = forwarded(AdminClient.group_lags)
    reset_group = forwarded(AdminClient.reset_group)
    delete_group = forwarded(AdminClient.delete_group)
    transactions = forwarded(AdminClient.transactions)
    abort_transaction = forwarded(AdminClient.abort_transaction)
    node_id = forwarded(AdminClient.node_id)
    drain = forwarded(AdminClient.drain)
