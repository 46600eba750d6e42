"""Declarations of the calls of REST consumers between nodes: to and from a group's coordinator, and to leaders."""

import msgspec
from msgspec import UNSET, UnsetType, field

from http_api.ports.groups import OffsetToCommit, PartitionCommit, PartitionsByTopic, Seek
from node.groups.group_messages import GroupRequest
from node.peers.messages import Blob, CallType, Done, Message
from raft_meta.machine.image import ConsumerKey

# -- to the coordinator --------------------------------------------------------------------------


class ConsumerRequest(GroupRequest, frozen=True, kw_only=True):
    """A call that concerns one consumer."""

    instance: str

    @property
    def key(self) -> ConsumerKey:
        """The consumer's key: group and instance."""
        return self.group_id, self.instance


class ClientRequest(ConsumerRequest, frozen=True, kw_only=True):
    """A call of the consumer's client. ``asked_node_id``: the node that the client has called."""

    asked_node_id: int = field(name="from")


class ConsumerCreateRequest(ConsumerRequest, frozen=True, kw_only=True):
    """Create a consumer; see ``http_api.ports.groups.NewConsumer``. ``is_drawn``: the name was drawn at random."""

    is_drawn: bool
    format: str
    auto_offset_reset: str = field(name="reset")
    is_auto_commit: bool = field(name="auto")
    fetch_min_bytes: int = field(name="min_bytes")
    request_timeout_ms: int = field(name="timeout_ms")
    principal: str | UnsetType = UNSET
    """The consumer's owner. Not sent if the cluster asks for no credentials."""
    commits_next: bool | UnsetType = field(name="next", default=UNSET)
    """Not sent to nodes that may not know this field."""


class ConsumerDeleteRequest(ClientRequest, frozen=True, kw_only=True):
    """Leave the group and delete the consumer."""


class ConsumerSubscribeRequest(ClientRequest, frozen=True, kw_only=True):
    """Subscribe. Without topics and pattern, remove the subscription or assignment."""

    topics: tuple[str, ...]
    pattern: str | None = None


class ConsumerAssignRequest(ClientRequest, frozen=True, kw_only=True):
    """Assign these partitions, without making the consumer a member of the group."""

    partitions: PartitionsByTopic


class ConsumerViewRequest(ClientRequest, frozen=True, kw_only=True):
    """Return the consumer's subscription and its partitions."""


class ConsumerViewAnswer(Message, frozen=True, kw_only=True):
    """The subscription of the consumer, and the partitions that are assigned to it now."""

    topics: tuple[str, ...]
    pattern: str | None = None
    partitions: PartitionsByTopic


class ConsumerSeekRequest(ClientRequest, frozen=True, kw_only=True):
    """Set the positions from which records are delivered next."""

    seeks: tuple[Seek, ...]


class ConsumerRecordsRequest(ConsumerRequest, frozen=True, kw_only=True):
    """Return the next records. A repeat of the call has the same ``call_id``."""

    call_id: str = field(name="call")
    max_bytes: int | None = None


class ConsumerTokenRecordsRequest(ConsumerRecordsRequest, frozen=True, kw_only=True):
    """Return the next records. If the last response had the same token, return its records again.

    This is a separate call, because a node of an earlier release would ignore the token. It would then take a repeat
    for the next call, and its response would skip the lost records.
    """

    token: str


class ConsumerAcknowledgeRequest(ConsumerRequest, frozen=True, kw_only=True):
    """Note that the client has the response with this token, if it was the last response."""

    token: str


class DeliveryRow(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Records of one partition; see ``http_api.ports.groups.DeliveredRecords``."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    batches: Blob


class ConsumerRecordsAnswer(Message, frozen=True, kw_only=True):
    """Records, and the format that the consumer wants."""

    format: str
    deliveries: tuple[DeliveryRow, ...] = field(name="parts")


class ConsumerTakeBackRequest(ConsumerRequest, frozen=True, kw_only=True):
    """Take back a response that did not reach the client. ``is_refused``: the client got an error instead."""

    call_id: str = field(name="call")
    is_refused: bool | UnsetType = field(name="refused", default=UNSET)


class ConsumerCommitRequest(ClientRequest, frozen=True, kw_only=True):
    """Commit these offsets; None: commit what was delivered."""

    offsets: tuple[OffsetToCommit, ...] | None = None


class ConsumerCommittedRequest(ClientRequest, frozen=True, kw_only=True):
    """Return the group's committed offsets of these partitions."""

    partitions: PartitionsByTopic


class ConsumerCommittedAnswer(Message, frozen=True, kw_only=True):
    """The committed offsets. Partitions without one are left out."""

    offsets: tuple[PartitionCommit, ...]


CREATE = CallType("consumer_create", ConsumerCreateRequest, Done)
DELETE = CallType("consumer_delete", ConsumerDeleteRequest, Done)
SUBSCRIBE = CallType("consumer_subscribe", ConsumerSubscribeRequest, Done)
ASSIGN = CallType("consumer_assign", ConsumerAssignRequest, Done)
VIEW = CallType("consumer_view", ConsumerViewRequest, ConsumerViewAnswer)
SEEK = CallType("consumer_seek", ConsumerSeekRequest, Done)
RECORDS = CallType("consumer_records", ConsumerRecordsRequest, ConsumerRecordsAnswer)
TOKEN_RECORDS = CallType(
    "consumer_token_records", ConsumerTokenRecordsRequest, ConsumerRecordsAnswer
)
ACKNOWLEDGE = CallType("consumer_acknowledge", ConsumerAcknowledgeRequest, Done)
TAKE_BACK = CallType("consumer_take_back", ConsumerTakeBackRequest, Done)
COMMIT = CallType("consumer_commit", ConsumerCommitRequest, Done)
COMMITTED = CallType("consumer_committed", ConsumerCommittedRequest, ConsumerCommittedAnswer)

# -- from the coordinator, and to leaders --------------------------------------------------------


class ReturnedRequest(Message, frozen=True, kw_only=True):
    """Return whether this node has sent the response of a call to the consumer's client."""

    group_id: str = field(name="group")
    instance: str
    call_id: str = field(name="call")


class ReturnedAnswer(Message, frozen=True, kw_only=True):
    """``has_returned``: whether the node has sent the response."""

    has_returned: bool = field(name="has")


class TailRequest(Message, frozen=True, kw_only=True):
    """Respond once the partition has a committed record at or above ``offset``, or after ``wait_ms``."""

    topic_id: str = field(name="topic")
    partition: int
    offset: int
    wait_ms: int


class TailAnswer(Message, frozen=True, kw_only=True):
    """The offset at which reading of committed records ends now."""

    high_watermark: int = field(name="hw")


RETURNED = CallType("consumer_returned", ReturnedRequest, ReturnedAnswer)
TAIL = CallType("tail", TailRequest, TailAnswer)


def call_id_of(node_id: int, incarnation: int, number: int) -> str:
    """Return an id for a records call; no other call has it."""
    return f"{node_id}.{incarnation}.{number}"


def node_of(call_id: str) -> int | None:
    """Return the id of the node that made the call; None if the call id has none."""
    node_id = call_id.partition(".")[0]
    return int(node_id) if node_id.isdecimal() else None


def is_of_process(call_id: str, node_id: int, incarnation: int) -> bool:
    """Return whether this process of the node made the call."""
    return call_id.startswith(f"{node_id}.{incarnation}.")
