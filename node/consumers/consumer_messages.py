"""Calls of REST consumers between nodes, declared: to the group's coordinator, from it, and to a partition's leader."""

import msgspec
from msgspec import UNSET, UnsetType, field

from http_api.ports.groups import OffsetToCommit, PartitionCommit, PartitionsByTopic, Seek
from node.groups.group_messages import GroupRequest
from node.peers.messages import Blob, CallType, Done, Message
from raft_meta.machine.image import ConsumerKey

# -- to the coordinator --------------------------------------------------------------------------


class ConsumerRequest(GroupRequest, frozen=True, kw_only=True):
    """A call of one consumer, or about it."""

    instance: str

    @property
    def key(self) -> ConsumerKey:
        """The consumer's key: group and instance."""
        return self.group_id, self.instance


class ClientRequest(ConsumerRequest, frozen=True, kw_only=True):
    """A call that the consumer's client made on the node ``asked_node_id``."""

    asked_node_id: int = field(name="from")


class ConsumerCreateRequest(ConsumerRequest, frozen=True, kw_only=True):
    """Create a consumer; see ``http_api.ports.groups.NewConsumer``. ``is_drawn``: the asking node drew its name."""

    is_drawn: bool
    format: str
    auto_offset_reset: str = field(name="reset")
    is_auto_commit: bool = field(name="auto")
    fetch_min_bytes: int = field(name="min_bytes")
    request_timeout_ms: int = field(name="timeout_ms")
    principal: str | UnsetType = UNSET
    """The owner; not sent if callers are not asked for credentials."""
    commits_next: bool | UnsetType = field(name="next", default=UNSET)
    """Not sent to nodes that may not know it."""


class ConsumerDeleteRequest(ClientRequest, frozen=True, kw_only=True):
    """Leave the group and delete the consumer."""


class ConsumerSubscribeRequest(ClientRequest, frozen=True, kw_only=True):
    """Subscribe; without topics and pattern, drop the subscription or assignment."""

    topics: tuple[str, ...]
    pattern: str | None = None


class ConsumerAssignRequest(ClientRequest, frozen=True, kw_only=True):
    """Read these partitions, without being a member of the group."""

    partitions: PartitionsByTopic


class ConsumerViewRequest(ClientRequest, frozen=True, kw_only=True):
    """Report what the consumer reads."""


class ConsumerViewAnswer(Message, frozen=True, kw_only=True):
    """The subscription of the consumer, and the partitions that are assigned to it now."""

    topics: tuple[str, ...]
    pattern: str | None = None
    partitions: PartitionsByTopic


class ConsumerSeekRequest(ClientRequest, frozen=True, kw_only=True):
    """Deliver from these positions next."""

    seeks: tuple[Seek, ...]


class ConsumerRecordsRequest(ConsumerRequest, frozen=True, kw_only=True):
    """Return the next records. A repeated call has the same ``call_id``."""

    call_id: str = field(name="call")
    max_bytes: int | None = None


class ConsumerTokenRecordsRequest(ConsumerRecordsRequest, frozen=True, kw_only=True):
    """Return the next records, or those of the last response if that was given under the same token.

    This is a call of its own: a node of an earlier release would ignore the token, and take a repeat for a receipt.
    """

    token: str


class ConsumerAcknowledgeRequest(ConsumerRequest, frozen=True, kw_only=True):
    """Note that the client has the response to this token, if that was the last response."""

    token: str


class DeliveryRow(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Records of one partition; see ``http_api.ports.groups.DeliveredRecords``."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    batches: Blob


class ConsumerRecordsAnswer(Message, frozen=True, kw_only=True):
    """Records, and the format in which the consumer wants them."""

    format: str
    deliveries: tuple[DeliveryRow, ...] = field(name="parts")


class ConsumerTakeBackRequest(ConsumerRequest, frozen=True, kw_only=True):
    """Take back the response to this call: it reached no client. ``is_refused``: the client got an error instead."""

    call_id: str = field(name="call")
    is_refused: bool | UnsetType = field(name="refused", default=UNSET)


class ConsumerCommitRequest(ClientRequest, frozen=True, kw_only=True):
    """Commit these offsets; None: what was delivered."""

    offsets: tuple[OffsetToCommit, ...] | None = None


class ConsumerCommittedRequest(ClientRequest, frozen=True, kw_only=True):
    """Report what the group has committed of these partitions."""

    partitions: PartitionsByTopic


class ConsumerCommittedAnswer(Message, frozen=True, kw_only=True):
    """The committed offsets; partitions without a commit are left out."""

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
    """Report whether this node returned the response of the call to the consumer's client."""

    group_id: str = field(name="group")
    instance: str
    call_id: str = field(name="call")


class ReturnedAnswer(Message, frozen=True, kw_only=True):
    """The response: true if the node returned it."""

    has_returned: bool = field(name="has")


class TailRequest(Message, frozen=True, kw_only=True):
    """Respond once the partition has a committed record at or above ``offset``, or after ``wait_ms``."""

    topic_id: str = field(name="topic")
    partition: int
    offset: int
    wait_ms: int


class TailAnswer(Message, frozen=True, kw_only=True):
    """The offset where the committed records end now."""

    high_watermark: int = field(name="hw")


RETURNED = CallType("consumer_returned", ReturnedRequest, ReturnedAnswer)
TAIL = CallType("tail", TailRequest, TailAnswer)


def call_id_of(node_id: int, incarnation: int, number: int) -> str:
    """Return an id that no other records call ever has."""
    return f"{node_id}.{incarnation}.{number}"


def node_of(call_id: str) -> int | None:
    """Return the node that made the call, if the id has one."""
    node_id = call_id.partition(".")[0]
    return int(node_id) if node_id.isdecimal() else None
