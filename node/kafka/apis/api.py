"""The parts that every API has: its row in the table, its calls, and the services that handlers use."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from http_api.ports.node import ApiLimits
from milena.disk.files import Buffer
from milena.model.clock import Clock
from milena.model.errors import MilenaError
from node.control.standing import Standing
from node.groups.classic.service import ClassicGroups
from node.groups.server_members import ServerMembers
from node.kafka.fetch_sessions import FetchSessions
from node.kafka.identity import AccessServices, ConnectionIdentity
from node.kafka.refused_batches import RefusedBatch, RefusedBatches
from node.kafka.rights import ApiAccess, KafkaRights
from node.kafka.wire import cold
from node.kafka.wire.primitives import WireReader
from node.metadata.store import MetadataStore
from node.replication.local_replicas import LocalReplicas
from node.services.admin import AdminService
from node.services.elections import ElectionService
from node.services.produce import ProduceService
from node.services.reads import ReadService
from node.services.reassignments import ReassignmentService
from node.services.record_deletion import DeletionService
from node.services.transactions.transactional_ids import TransactionalIds
from raft_meta.machine.image import Partition, Topic
from storage.replica.data_directory import DataDirectory

if TYPE_CHECKING:
    from node.kafka.throttle import CallQuota

Body = list[Buffer]
"""A response without its header, in pieces."""
SMALL_BYTES = 8 << 10
"""The largest message that kafka-python decodes on the event loop: hostile bytes of this size take some 30 ms."""
SMALL_ROWS = 300
"""The most rows of a response that kafka-python encodes on the event loop. They take about 10 ms."""

COLD_BYTES_MAX = 256 << 10
"""The largest request that is not on the path of records. Its decoder makes an object of every few bytes."""


INSIDE, EXTERNAL = "plain", "external"
"""The listeners of a node, as the broker's row in the replicated state names them: the first one, and one for clients
that reach the brokers under other addresses."""


@dataclass(frozen=True, slots=True)
class KafkaAddress:
    """Where clients reach a listener of a broker. ``listener``: its name.

    ``is_shared``: all brokers have this address, so a client that means another broker may come here.
    """

    host: str
    port: int
    listener: str = INSIDE
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class TopicRowKept:
    """The encoded row of a topic, and all that it was made from: these objects never change."""

    topic: Topic
    brokers: object
    states: tuple[Partition | None, ...]
    row: bytes


class Poll(Protocol):
    """A request that waits for something to happen."""

    def end(self) -> None:
        """Let the request have its response now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaServices:
    """The parts of the node that handlers use."""

    metadata: MetadataStore
    replicas: LocalReplicas
    standing: Standing
    admin: AdminService
    deletions: DeletionService
    reassignments: ReassignmentService
    elections: ElectionService
    directory: DataDirectory
    groups: ClassicGroups
    members: ServerMembers
    produce: ProduceService
    reads: ReadService
    transactional_ids: TransactionalIds
    clock: Clock
    limits: ApiLimits
    access: AccessServices
    pool: Executor
    """Decodes and encodes large messages."""
    cold_turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One large message at a time: each thread that runs Python takes an equal share from the event loop."""
    topic_rows: dict[tuple[str, int, int, str], TopicRowKept] = field(default_factory=dict)
    """Rows of Metadata, by topic id, version, authorised operations, and listener."""
    polls: dict[Poll, None] = field(default_factory=dict)
    """Fetches that wait for records."""
    refused_batches: RefusedBatches = field(default_factory=RefusedBatches)
    fetch_sessions: FetchSessions = field(default_factory=FetchSessions)


@dataclass(frozen=True, slots=True)
class Started:
    """A request that is under way: the next one may start. ``answer`` waits for its response."""

    answer: Awaitable[Body | None]


class Unencoded(list[Buffer]):
    """A large response that is not encoded yet: ``encode`` returns its pieces, and takes a while."""

    def __init__(self, encode: Callable[[], Body]) -> None:
        super().__init__()
        self.encode = encode


class KafkaCall:
    """One request."""

    __slots__ = (
        "_message",
        "address",
        "api",
        "client_id",
        "code",
        "host",
        "identity",
        "is_last",
        "leaders_until_ms",
        "quota",
        "reader",
        "refused",
        "rights",
        "version",
    )

    def __init__(
        self,
        api: "Api",
        version: int,
        client_id: str,
        reader: WireReader,
        *,
        address: KafkaAddress,
        identity: ConnectionIdentity,
        message: cold.Message | None = None,
    ) -> None:
        """Open a request. ``address``: where clients reach the listener that it came on. ``message``: as decoded."""
        self.api = api
        self.version = version
        self.client_id = client_id
        self.reader = reader
        self.address = address
        self.identity = identity
        self.host = identity.host
        self.rights = KafkaRights(identity, api.access, api.name)
        self._message = message
        self.code = 0
        """The first error code of the response, for the metrics."""
        self.refused: list[RefusedBatch] = []
        """Its batches of idempotent producers that were refused, or are not known to be written."""
        self.quota: CallQuota | None = None
        """The use of the caller's quotas; None: there are no quotas."""
        self.is_last = False
        """Whether the connection ends after the response."""
        self.leaders_until_ms: float | None = None
        """Until when the request waits for replicas that take over partitions; None: it did not have to wait yet."""

    def fork(self) -> "KafkaCall":
        """Return the same request for another reader, of which this one notices nothing."""
        return KafkaCall(
            self.api,
            self.version,
            self.client_id,
            self.reader.fork(),
            address=self.address,
            identity=self.identity,
            message=self._message,
        )

    def note(self, code: int) -> int:
        """Remember an error code that the response has; return it."""
        if code and not self.code:
            self.code = code
        return code

    def message(self) -> cold.Message:
        """Return the request as kafka-python decodes it.

        Raises:
            MalformedFrameError: the frame does not hold one.
        """
        if self._message is None:
            self._message = cold.decode(self.api.key, self.version, self.reader)
        return self._message

    @property
    def is_large(self) -> bool:
        """Whether ``message`` takes so long that it must not run on the event loop."""
        return self.api.is_cold and len(self.reader.rest()) > SMALL_BYTES

    def answer(self, fields: cold.Fields) -> Body:
        """Return a response as kafka-python encodes it."""
        if self.quota is not None and cold.has_throttle(self.api.key):
            fields = {**fields, "throttle_time_ms": self.throttle_ms}
        key, version = self.api.key, self.version
        if _rows(fields) > SMALL_ROWS:
            return Unencoded(lambda: [cold.encode(key, version, fields)])
        return [cold.encode(key, version, fields)]

    @property
    def throttle_ms(self) -> int:
        """How long the client should wait after the response."""
        return 0 if self.quota is None else self.quota.throttle_ms()


T = TypeVar("T")


async def decode(services: KafkaServices, call: KafkaCall) -> None:
    """Decode a large request, so that its handler finds it decoded.

    Raises:
        MalformedFrameError: the frame does not hold one.
    """
    if call.is_large:
        await _beside(services, call.message)


async def serve(services: KafkaServices, call: KafkaCall) -> "Body | Started | None":
    """Serve a request that is decoded, or small. Raises as a ``Handler`` does."""
    found = await call.api.handle(services, call)
    if isinstance(found, Unencoded):
        return await _beside(services, found.encode)
    return found


async def _beside(services: KafkaServices, work: Callable[[], T]) -> T:
    """Do the work on a thread. The interpreter switches between it and the event loop every few milliseconds."""
    async with services.cold_turn:
        return await asyncio.get_running_loop().run_in_executor(services.pool, work)


def _rows(fields: object) -> int:
    """Return how many structures a response has; above ``SMALL_ROWS``, at least that many and one more."""
    count, left = 0, [fields]
    while left and count <= SMALL_ROWS:
        one = left.pop()
        if isinstance(one, Mapping):
            count += 1
            left += one.values()
        elif isinstance(one, list) and one and isinstance(one[0], Mapping):
            if len(one) > SMALL_ROWS:
                return len(one)
            left += one
    return count


Handler = Callable[[KafkaServices, KafkaCall], Awaitable[Body | Started | None]]
"""Serves a request; None: it gets no response. Expected errors are codes in the response.

Raises:
    MalformedFrameError: the frame does not hold the request; the connection ends.
    CloseConnectionError: the response can only be the end of the connection.
"""


class CloseConnectionError(Exception):
    """The client must connect again. It never leaves the node."""

    def __init__(self, cause: MilenaError) -> None:
        super().__init__(cause.message)
        self.cause = cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One API key. Versions ``first`` to ``last`` are advertised."""

    key: int
    name: str
    first: int
    last: int
    flexible_from: int
    """The first version whose headers have tagged fields."""
    handle: Handler
    bytes_max: int = COLD_BYTES_MAX
    """The largest request."""
    access: ApiAccess
    """The rights that it needs."""
    is_cold: bool = True
    """Whether kafka-python decodes its requests."""
    is_pipelined: bool = False
    """Whether requests start behind each other without waiting for the responses of those before."""


def serves(
    key: int,
    name: str,
    *,
    versions: tuple[int, int],
    access: ApiAccess,
    bytes_max: int = COLD_BYTES_MAX,
    is_cold: bool = True,
    is_pipelined: bool = False,
) -> Callable[[Handler], Api]:
    """Make the API of the handler that this decorates. ``versions``: the first and the last one that it serves."""

    def api_of(handle: Handler) -> Api:
        return Api(
            key=key,
            name=name,
            first=versions[0],
            last=versions[1],
            flexible_from=cold.flexible_from(key),
            handle=handle,
            bytes_max=bytes_max,
            access=access,
            is_cold=is_cold,
            is_pipelined=is_pipelined,
        )

    return api_of
