"""The parts that every API has: its row in the table, its calls, and the services that handlers use."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from http_api.ports.node import ApiLimits
from milena.disk.files import Buffer
from milena.model.clock import Clock
from milena.model.errors import MilenaError
from node.control.standing import Standing
from node.groups.classic.service import ClassicGroups
from node.groups.server_members import ServerMembers
from node.kafka.fetch_sessions import FetchSessions
from node.kafka.identity import AccessServices, ConnectionIdentity
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

Body = list[Buffer]
"""A response without its header, in pieces."""

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
    topic_rows: dict[tuple[str, int, int, str], TopicRowKept] = field(default_factory=dict)
    """Rows of Metadata, by topic id, version, authorised operations, and listener."""
    polls: set[Poll] = field(default_factory=set)
    """Fetches that wait for records."""
    refused_batches: dict[tuple[str, int, int], tuple[int, int]] = field(default_factory=dict)
    """First sequence and monotonic time of a batch that was refused, by topic id, partition and producer id."""
    fetch_sessions: FetchSessions = field(default_factory=FetchSessions)


@dataclass(frozen=True, slots=True)
class Started:
    """A request that is under way: the next one may start. ``answer`` waits for its response."""

    answer: Awaitable[Body | None]


class KafkaCall:
    """One request."""

    __slots__ = (
        "address",
        "api",
        "client_id",
        "code",
        "host",
        "identity",
        "is_last",
        "reader",
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
    ) -> None:
        """Open a request. ``address``: where clients reach the listener that it came on."""
        self.api = api
        self.version = version
        self.client_id = client_id
        self.reader = reader
        self.address = address
        self.identity = identity
        self.host = identity.host
        self.rights = KafkaRights(identity, api.access, api.name)
        self.code = 0
        """The first error code of the response, for the metrics."""
        self.is_last = False
        """Whether the connection ends after the response."""

    def fork(self) -> "KafkaCall":
        """Return the same request for another reader, of which this one notices nothing."""
        return KafkaCall(
            self.api,
            self.version,
            self.client_id,
            self.reader.fork(),
            address=self.address,
            identity=self.identity,
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
        return cold.decode(self.api.key, self.version, self.reader)

    def answer(self, fields: cold.Fields) -> Body:
        """Return a response as kafka-python encodes it."""
        return [cold.encode(self.api.key, self.version, fields)]


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
    is_pipelined: bool = False
    """Whether requests start behind each other without waiting for the responses of those before."""
