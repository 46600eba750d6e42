"""The tree of typed errors that every part of a node raises, and nothing else.

    MilenaError
    ├── InvalidRequestError      the caller must change the request
    │   ├── MalformedRequestError, InvalidRecordError, InvalidTopicNameError, InvalidConfigError
    │   ├── InvalidReplicationError, OffsetOutOfRangeError, UnsupportedMediaTypeError
    │   └── NotAcceptableError, UnsupportedSchemaError, InvalidProducerError
    ├── NotFoundError            TopicNotFoundError, PartitionNotFoundError, ClusterNotFoundError, ...
    ├── ConflictError            TopicExistsError, StaleVersionError, PreconditionFailedError, ...
    ├── FencedError              StaleLeaderEpochError, StaleBrokerEpochError, ...
    ├── NotLeaderError           carries the leader hint; nothing was appended
    ├── DeniedError              UnauthenticatedError, ForbiddenError
    ├── UnavailableError         NoQuorumError, NoLeaderError, NotEnoughReplicasError, DiskFullError, ...
    ├── FateUnknownError         the request may or may not have been applied; InternalError: because of a bug
    ├── LimitReachedError        RequestTooLargeError, TooManyRequestsError, TooManyProducersError, ...
    ├── CorruptLogError          CorruptBatchError
    ├── DiskFailedError          the page cache cannot be trusted any more: the process must stop
    └── StartupError             the node refuses to start; the message gives the reason

``code`` is a stable word that travels between nodes and in logs. One table in ``http_api.protocol.errors`` maps it to
HTTP. ``is_retriable`` means that the same request may succeed later, unchanged.
"""

from typing import ClassVar


class MilenaError(Exception):
    """Root of the tree; only its leaves and ``FateUnknownError`` are raised."""

    code: ClassVar[str] = "error"
    is_retriable: ClassVar[bool] = False

    def __init_subclass__(cls, code: str | None = None) -> None:
        if code is not None:
            cls.code = code

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidRequestError(MilenaError, code="invalid_request"):
    """The request is wrong; the message says what to change."""


class MalformedRequestError(InvalidRequestError, code="malformed_request"):
    """Invalid JSON, a wrong JSON type, bad base64, an unreadable number, an unknown parameter or condition."""


class InvalidRecordError(InvalidRequestError, code="invalid_record"):
    """A record or batch that is well-formed but may not be stored.

    ``records`` are the places of the refused records in their batch; none if the error concerns the batch. ``is_time``
    says whether the reason is a timestamp.
    """

    def __init__(
        self, message: str, *, records: tuple[int, ...] = (), is_time: bool = False
    ) -> None:
        super().__init__(message)
        self.records = records
        self.is_time = is_time


class InvalidTopicNameError(InvalidRequestError, code="invalid_topic_name"):
    """A topic name outside ``[a-zA-Z0-9._-]{1,249}``, or ``.`` or ``..``."""


class InvalidConfigError(InvalidRequestError, code="invalid_config"):
    """An unknown config name, or a value outside of its range."""


class InvalidReplicationError(InvalidRequestError, code="invalid_replication"):
    """A partition count, replication factor or explicit assignment that cannot be met."""


class InvalidProducerError(InvalidRequestError, code="invalid_producer"):
    """A producer id that was never allocated, or a sequence that leaves a gap.

    ``is_unknown``: the producer is not known, so its sequence cannot be judged. ``is_repeated``: the sequence is one
    that the producer has passed.
    """

    def __init__(
        self, message: str, *, is_unknown: bool = False, is_repeated: bool = False
    ) -> None:
        super().__init__(message)
        self.is_unknown = is_unknown
        self.is_repeated = is_repeated


class InvalidConsumerError(InvalidRequestError, code="invalid_consumer"):
    """A consumer's or member's settings are outside of their range or contradict each other."""


class InvalidSessionTimeoutError(InvalidRequestError, code="invalid_session_timeout"):
    """A session timeout of a member of a classic group is out of its range."""


class TopicNotTransactionalError(InvalidRequestError, code="topic_not_transactional"):
    """The topic's settings allow acknowledged records to be lost, so it takes no transactions."""


class InvalidAccessError(InvalidRequestError, code="invalid_access"):
    """An invalid user, token or access control entry."""


class OffsetOutOfRangeError(InvalidRequestError, code="offset_out_of_range"):
    """An offset below the log start or above the log end."""


class UnsupportedMediaTypeError(InvalidRequestError, code="unsupported_media_type"):
    """A ``Content-Type`` that no decoder accepts."""


class NotAcceptableError(InvalidRequestError, code="not_acceptable"):
    """An ``Accept`` that no encoder supports, or records that the requested format cannot hold."""


class UnsupportedSchemaError(InvalidRequestError, code="unsupported_schema"):
    """Avro, Protobuf or JSON Schema: these formats need a schema registry."""


class NotFoundError(MilenaError, code="not_found"):
    """The named resource does not exist, as far as a majority of the quorum knows."""


class TopicNotFoundError(NotFoundError, code="topic_not_found"):
    """The topic does not exist."""


class PartitionNotFoundError(NotFoundError, code="partition_not_found"):
    """The topic has no partition of this number."""


class ClusterNotFoundError(NotFoundError, code="cluster_not_found"):
    """The cluster id in the path is that of another cluster."""


class BrokerNotFoundError(NotFoundError, code="broker_not_found"):
    """No broker with this id is registered."""


class ConfigNotFoundError(NotFoundError, code="config_not_found"):
    """No config has this name."""


class RouteNotFoundError(NotFoundError, code="route_not_found"):
    """The API has no endpoint at this path."""


class ReplicaNotFoundError(NotFoundError, code="replica_not_found"):
    """This node holds no copy of the partition."""


class GroupNotFoundError(NotFoundError, code="group_not_found"):
    """No consumer group has this id."""


class MemberNotFoundError(NotFoundError, code="member_not_found"):
    """The group does not have this member, or has removed it; the client must join again."""


class TransactionNotFoundError(NotFoundError, code="transaction_not_found"):
    """No transaction is known for this producer id and epoch: it never started, or ended long ago."""


class UserNotFoundError(NotFoundError, code="user_not_found"):
    """No user has this name."""


class TokenNotFoundError(NotFoundError, code="token_not_found"):
    """The user has no token with this id."""


class ConsumerNotFoundError(NotFoundError, code="consumer_not_found"):
    """The group has no REST consumer with this name: it was never created, or was deleted, or has expired."""


class ConflictError(MilenaError, code="conflict"):
    """The current state does not allow the request."""


class TopicExistsError(ConflictError, code="topic_exists"):
    """A topic with this name already exists."""


class StaleVersionError(ConflictError, code="stale_version"):
    """A compare-and-set failed: the state changed since the caller read it."""


class PreconditionFailedError(ConflictError, code="precondition_failed"):
    """The partition does not end at the offset that `If-Match` names; nothing was written.

    ``end_offset`` is the high watermark when the condition was checked; None if a node of an earlier release checked
    it.
    """

    def __init__(self, message: str, *, end_offset: int | None = None) -> None:
        super().__init__(message)
        self.end_offset = end_offset


class PartitionCountChangedError(ConflictError, code="partition_count_changed"):
    """The idempotency key was first used when the topic had another number of partitions."""


class IdempotencyKeyReusedError(ConflictError, code="idempotency_key_reused"):
    """The idempotency key was used with another body."""


class FeatureLevelError(ConflictError, code="feature_level"):
    """The command needs a higher feature level than the cluster has."""


class BrokerIdInUseError(ConflictError, code="broker_id_in_use"):
    """A live broker already uses this id with another directory."""


class BrokerInUseError(ConflictError, code="broker_in_use"):
    """The broker cannot be removed: it is alive, a voter, or holds replicas."""


class GroupNotEmptyError(ConflictError, code="group_not_empty"):
    """The group has members; the change is only for groups without members."""


class ConsumerExistsError(ConflictError, code="consumer_exists"):
    """The group already has a REST consumer with this name."""


class SubscriptionConflictError(ConflictError, code="subscription_conflict"):
    """The consumer mixes a subscription with a manual assignment, or seeks in a partition that it does not have."""


class GroupChangedError(ConflictError, code="group_changed"):
    """The group has changed since the change was computed from it; compute the change again."""


class InconsistentGroupProtocolError(ConflictError, code="inconsistent_group_protocol"):
    """The group's members are of another kind, or no assignment protocol is common to all of them."""


class RebalanceInProgressError(ConflictError, code="rebalance_in_progress"):
    """The classic group is rebalancing: the member must join again."""


class MemberIdRequiredError(ConflictError, code="member_id_required"):
    """A new member of a classic group must join again, with the id that it got. Source: KIP-394.

    ``member_id`` is that id.
    """

    def __init__(self, message: str, *, member_id: str = "") -> None:
        super().__init__(message)
        self.member_id = member_id


class InstanceHeldError(ConflictError, code="instance_held"):
    """Another member of the group has the instance id, and has not left. Source: KIP-848."""


class GroupSubscribedError(ConflictError, code="group_subscribed"):
    """A member of the group subscribes to the topic, so the group's offsets in it cannot be deleted."""


class LastSuperuserError(ConflictError, code="last_superuser"):
    """The change would leave the cluster without an administrator."""


class TransactionAbortedError(ConflictError, code="transaction_aborted"):
    """The transaction was aborted; none of its writes takes effect."""


class TransactionCommittedError(ConflictError, code="transaction_committed"):
    """The transaction was committed and cannot be aborted."""


class TransactionChangedError(ConflictError, code="transaction_changed"):
    """The commit does not name all that the transaction wrote. The transaction is still open."""


class FencedError(MilenaError, code="fenced"):
    """The request was refused for a stale epoch."""


class StaleLeaderEpochError(FencedError, code="stale_leader_epoch"):
    """The leader epoch in the request is not the partition's current one."""


class StaleBrokerEpochError(FencedError, code="stale_broker_epoch"):
    """The broker epoch in the request is not the broker's current one."""


class StaleControllerEpochError(FencedError, code="stale_controller_epoch"):
    """The command comes from a controller that another one has replaced."""


class StaleProducerEpochError(FencedError, code="stale_producer_epoch"):
    """The producer epoch is stale, because another program has taken over the producer id."""


class StaleMemberEpochError(FencedError, code="stale_member_epoch"):
    """The member's epoch is stale, or the member does not own the partition; it must send a heartbeat first."""


class GenerationError(FencedError, code="generation"):
    """The classic group is at another generation: the member must join again."""


class MemberFencedError(FencedError, code="member_fenced"):
    """Another process has taken over the member's instance id; this process must stop and not join again."""


class NotLeaderError(MilenaError, code="not_leader"):
    """This node does not lead the partition; nothing was appended.

    ``leader`` is the id of the leading broker as far as this node knows, or None.
    """

    is_retriable = True

    def __init__(self, message: str, *, leader: int | None = None) -> None:
        super().__init__(message)
        self.leader = leader


class DeniedError(MilenaError, code="denied"):
    """The caller may not do this; nothing was done."""


class UnauthenticatedError(DeniedError, code="unauthenticated"):
    """The request has no credentials, or no valid ones."""


class ForbiddenError(DeniedError, code="forbidden"):
    """The caller is known, but has no permission for this. ``resource_type``: what it may not use; empty: unknown."""

    def __init__(self, message: str = "", *, resource_type: str = "") -> None:
        super().__init__(message)
        self.resource_type = resource_type


class UnavailableError(MilenaError, code="unavailable"):
    """The request cannot be served now; nothing was written."""

    is_retriable = True


class NoQuorumError(UnavailableError, code="no_quorum"):
    """The metadata quorum did not answer; the command was not applied."""


class NoLeaderError(UnavailableError, code="no_leader"):
    """The partition has no leader, or its leader is unreachable or cut off."""


class NotEnoughReplicasError(UnavailableError, code="not_enough_replicas"):
    """Fewer in-sync replicas than ``min.insync.replicas``; nothing was written."""


class DiskFullError(UnavailableError, code="disk_full"):
    """No space is left on the data directory's file system; nothing was written."""


class ReplicaDamagedError(UnavailableError, code="replica_damaged"):
    """Stored records fail a checksum: those to be read, or others below the recovery point of the replica."""


class DrainingError(UnavailableError, code="draining"):
    """The node is stopping."""


class NotReadyError(UnavailableError, code="not_ready"):
    """The node is still starting, or a new leader does not know its high watermark yet."""


class NotCoordinatorError(UnavailableError, code="not_coordinator"):
    """This node is not the group's coordinator, or has not loaded the group yet; nothing was done."""


class TransactionInProgressError(UnavailableError, code="transaction_in_progress"):
    """An earlier transaction with this idempotency key is not decided yet; nothing was written."""


class TransactionsPendingError(UnavailableError, code="transactions_pending"):
    """The topic has transactions without all their markers; the change must wait for them."""


class FateUnknownError(MilenaError, code="fate_unknown"):
    """The result is unknown: the request may have been applied, or may be applied later."""


class InternalError(FateUnknownError, code="internal_error"):
    """A node met an error that its code did not expect. The node continues, and its log has the traceback."""


class LimitReachedError(MilenaError, code="limit_reached"):
    """A limit on input was exceeded."""


class AccessLimitError(LimitReachedError, code="access_limit_reached"):
    """The limit of users, tokens or access control entries is reached."""


class GroupLimitError(LimitReachedError, code="group_limit_reached"):
    """The limit of consumer groups, members, consumers or committed offsets is reached."""


class RequestTooLargeError(LimitReachedError, code="request_too_large"):
    """A body, batch or header exceeds its limit."""


class TooManyRequestsError(LimitReachedError, code="too_many_requests"):
    """Too many requests, connections or bytes in flight; try again later."""

    is_retriable = True


class QuotaExceededError(LimitReachedError, code="quota_exceeded"):
    """The caller exceeded its quota; ``retry_after_s`` says when it may continue."""

    is_retriable = True

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TooManyProducersError(LimitReachedError, code="too_many_producers"):
    """The limit of named producers is reached."""


class TooManyTransactionsError(LimitReachedError, code="too_many_transactions"):
    """The limit of open, ending or aborted transactions is reached; try again later."""

    is_retriable = True


class TooManyReplicasError(LimitReachedError, code="too_many_replicas"):
    """A broker would exceed the limit of replicas per node."""


class CorruptLogError(MilenaError, code="corrupt_log"):
    """Stored bytes fail their checksum or contradict each other. ``offset``: near which offset a search met them."""

    offset: int | None = None


class CorruptBatchError(CorruptLogError, code="corrupt_batch"):
    """The bytes are not a whole, undamaged record batch."""


class DiskFailedError(MilenaError, code="disk_failed"):
    """A write or sync failed, and not because the disk is full.

    ``errno`` is the error number of the operating system, if known. It is an attribute, because the cause of an
    exception is lost when the exception passes through a C extension.
    """

    def __init__(self, message: str, *, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno


class StartupError(MilenaError, code="startup"):
    """The node refuses to start; the message names the file, value or peer at fault.

    ``is_temporary``: a later start with the same settings may succeed.
    """

    def __init__(self, message: str, *, is_temporary: bool = False) -> None:
        super().__init__(message)
        self.is_temporary = is_temporary
