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
from functools import partial, wraps
from inspect import getdoc
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

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
from milena.consuming.options import ConsumerKeywords
from milena.hints import Hinting, hinting
from milena.producing.options import ProducerKeywords
from milena.producing.transaction import TRANSACTION_TIMEOUT_MS

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

B = TypeVar("B", bound=Resource[Any])
P = ParamSpec("P")
T = TypeVar("T")


def opened(
    method: Callable[Concatenate[AsyncClient, P], object], kind: Callable[..., B], told: str
) -> "Callable[Concatenate[Client, P], B]":
    """Return the method of the blocking client for one that returns a context manager.

    ``kind`` makes the blocking object. ``told`` is the beginning of the documentation.
    """

    @wraps(method)
    def call(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> B:
        return self._opened_as(kind, lambda client: method(client, *args, **kwargs))

    call.__doc__ = f"{told}\n\n{getdoc(method)}"
    return call


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
        self._make = partial(
            AsyncClient,
            url,
            credentials=credentials,
            timeout_s=timeout_s,
            metadata_max_age_ms=metadata_max_age_ms,
            connect_timeout_ms=connect_timeout_ms,
        )
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

    def close(self) -> None:
        """Close producers, readers and consumers that are still open, then all connections. You may call this again."""
        self.__exit__(None, None, None)

    @property
    def admin(self) -> "Admin":
        """The administration of topics, groups, access and the cluster."""
        return Admin(self)

    producer = opened(AsyncClient.producer, Producer, "Return a blocking producer.")
    named_producer = opened(
        AsyncClient.named_producer,
        NamedProducer,
        "Return a blocking producer that writes one source exactly once.",
    )
    reader = opened(
        AsyncClient.reader, PartitionReader, "Return a blocking reader of one partition."
    )

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
    @described_as(AsyncClient.consumer)
    def consumer(
        self, *topics: str, pattern: str | None = None, **options: Unpack[ConsumerKeywords]
    ) -> Consumer:
        """Return a blocking consumer; parameters as for ``milena.Client``.

        A listener's methods run on another thread, while this one waits in ``poll`` or for the next record. They may
        call the consumer.
        """
        options["listener"] = on_threads(options.get("listener"))
        return self._opened_as(
            Consumer, lambda client: client.consumer(*topics, pattern=pattern, **options)
        )

    def _opened_as(self, kind: Callable[..., B], make: Callable[[AsyncClient], object]) -> B:
        """Return the blocking object around the one that ``make`` returns, and close it with the client."""
        thread, client = self._open()
        # Queues and events must be created on the loop's thread.
        held = kind(thread.call(lambda: make(client)), thread, on_exit=self._users.discard)
        self._users.add(held)
        return held

    def _open(self) -> tuple[ClientLoopThread, AsyncClient]:
        """Return the loop and the client of this process; create them if needed."""
        with self._lock:
            if self._opened is None or not self._opened[0].is_ours:
                thread = ClientLoopThread()
                client = self._make()
                thread.run(client.__aenter__())
                self._opened = thread, client
                self._users = set()
            return self._opened


class Admin(Forwarding[AdminClient], Hinting, hints="Admin"):
    """The blocking ``milena.AdminClient``. Methods, parameters and errors are the same."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def _run(self, work: Callable[[AdminClient], Coroutine[object, object, T]]) -> T:
        thread, client = self._client._open()
        return thread.run(work(client.admin))

    @property
    def url(self) -> str:
        """The URL of the first node that the client was given."""
        return self._client._open()[1].admin.url

    @property
    def access(self) -> AccessAdmin:
        """Administration of access: users, tokens, access control entries and the mode."""
        return AccessAdmin(self)

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
