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

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidRequestError(MilenaError):
    """The request is wrong; the message says what to change."""

    code = "invalid_request"


class MalformedRequestError(InvalidRequestError):
    """Invalid JSON, a wrong JSON type, bad base64, an unreadable number, an unknown parameter or condition."""

    code = "malformed_request"


class InvalidRecordError(InvalidRequestError):
    """A record or batch that is well-formed but may not be stored.

    ``records`` are the places of the refused records in their batch; none if the error concerns the batch. ``is_time``
    says whether the reason is a timestamp.
    """

    code = "invalid_record"

    def __init__(
        self, message: str, *, records: tuple[int, ...] = (), is_time: bool = False
    ) -> None:
        super().__init__(message)
        self.records = records
        self.is_time = is_time


class InvalidTopicNameError(InvalidRequestError):
    """A topic name outside ``[a-zA-Z0-9._-]{1,249}``, or ``.`` or ``..``."""

    code = "invalid_topic_name"


class InvalidConfigError(InvalidRequestError):
    """An unknown config name, or a value outside of its range."""

    code = "invalid_config"


class InvalidReplicationError(InvalidRequestError):
    """A partition count, replication factor or explicit assignment that cannot be met."""

    code = "invalid_replication"


class InvalidProducerError(InvalidRequestError):
    """A producer id that was never allocated, or a sequence that leaves a gap.

    ``is_unknown``: the producer is not known, so its sequence cannot be judged. ``is_repeated``: the sequence is one
    that the producer has passed.
    """

    code = "invalid_producer"

    def __init__(
        self, message: str, *, is_unknown: bool = False, is_repeated: bool = False
    ) -> None:
        super().__init__(message)
        self.is_unknown = is_unknown
        self.is_repeated = is_repeated


class InvalidConsumerError(InvalidRequestError):
    """A consumer's or member's settings are outside of their range or contradict each other."""

    code = "invalid_consumer"


class InvalidSessionTimeoutError(InvalidRequestError):
    """A session timeout of a member of a classic group is out of its range."""

    code = "invalid_session_timeout"


class TopicNotTransactionalError(InvalidRequestError):
    """The topic's settings allow acknowledged records to be lost, so it takes no transactions."""

    code = "topic_not_transactional"


class InvalidAccessError(InvalidRequestError):
    """An invalid user, token or access control entry."""

    code = "invalid_access"


class OffsetOutOfRangeError(InvalidRequestError):
    """An offset below the log start or above the log end."""

    code = "offset_out_of_range"


class UnsupportedMediaTypeError(InvalidRequestError):
    """A ``Content-Type`` that no decoder accepts."""

    code = "unsupported_media_type"


class NotAcceptableError(InvalidRequestError):
    """An ``Accept`` that no encoder supports, or records that the requested format cannot hold."""

    code = "not_acceptable"


class UnsupportedSchemaError(InvalidRequestError):
    """Avro, Protobuf or JSON Schema: these formats need a schema registry."""

    code = "unsupported_schema"


class NotFoundError(MilenaError):
    """The named resource does not exist, as far as a majority of the quorum knows."""

    code = "not_found"


class TopicNotFoundError(NotFoundError):
    """The topic does not exist."""

    code = "topic_not_found"


class PartitionNotFoundError(NotFoundError):
    """The topic has no partition of this number."""

    code = "partition_not_found"


class ClusterNotFoundError(NotFoundError):
    """The cluster id in the path is that of another cluster."""

    code = "cluster_not_found"


class BrokerNotFoundError(NotFoundError):
    """No broker with this id is registered."""

    code = "broker_not_found"


class ConfigNotFoundError(NotFoundError):
    """No config has this name."""

    code = "config_not_found"


class RouteNotFoundError(NotFoundError):
    """The API has no endpoint at this path."""

    code = "route_not_found"


class ReplicaNotFoundError(NotFoundError):
    """This node holds no copy of the partition."""

    code = "replica_not_found"


class GroupNotFoundError(NotFoundError):
    """No consumer group has this id."""

    code = "group_not_found"


class MemberNotFoundError(NotFoundError):
    """The group does not have this member, or has removed it; the client must join again."""

    code = "member_not_found"


class TransactionNotFoundError(NotFoundError):
    """No transaction is known for this producer id and epoch: it never started, or ended long ago."""

    code = "transaction_not_found"


class UserNotFoundError(NotFoundError):
    """No user has this name."""

    code = "user_not_found"


class TokenNotFoundError(NotFoundError):
    """The user has no token with this id."""

    code = "token_not_found"


class ConsumerNotFoundError(NotFoundError):
    """The group has no REST consumer with this name: it was never created, or was deleted, or has expired."""

    code = "consumer_not_found"


class ConflictError(MilenaError):
    """The current state does not allow the request."""

    code = "conflict"


class TopicExistsError(ConflictError):
    """A topic with this name already exists."""

    code = "topic_exists"


class StaleVersionError(ConflictError):
    """A compare-and-set failed: the state changed since the caller read it."""

    code = "stale_version"


class PreconditionFailedError(ConflictError):
    """The partition does not end at the offset that `If-Match` names; nothing was written.

    ``end_offset`` is the high watermark when the condition was checked; None if a node of an earlier release checked
    it.
    """

    code = "precondition_failed"

    def __init__(self, message: str, *, end_offset: int | None = None) -> None:
        super().__init__(message)
        self.end_offset = end_offset


class PartitionCountChangedError(ConflictError):
    """The idempotency key was first used when the topic had another number of partitions."""

    code = "partition_count_changed"


class IdempotencyKeyReusedError(ConflictError):
    """The idempotency key was used with another body."""

    code = "idempotency_key_reused"


class FeatureLevelError(ConflictError):
    """The command needs a higher feature level than the cluster has."""

    code = "feature_level"


class BrokerIdInUseError(ConflictError):
    """A live broker already uses this id with another directory."""

    code = "broker_id_in_use"


class BrokerInUseError(ConflictError):
    """The broker cannot be removed: it is alive, a voter, or holds replicas."""

    code = "broker_in_use"


class GroupNotEmptyError(ConflictError):
    """The group has members; the change is only for groups without members."""

    code = "group_not_empty"


class ConsumerExistsError(ConflictError):
    """The group already has a REST consumer with this name."""

    code = "consumer_exists"


class SubscriptionConflictError(ConflictError):
    """The consumer mixes a subscription with a manual assignment, or seeks in a partition that it does not have."""

    code = "subscription_conflict"


class GroupChangedError(ConflictError):
    """The group has changed since the change was computed from it; compute the change again."""

    code = "group_changed"


class InconsistentGroupProtocolError(ConflictError):
    """The group's members are of another kind, or no assignment protocol is common to all of them."""

    code = "inconsistent_group_protocol"


class RebalanceInProgressError(ConflictError):
    """The classic group is rebalancing: the member must join again."""

    code = "rebalance_in_progress"


class MemberIdRequiredError(ConflictError):
    """A new member of a classic group must join again, with the id that it got. Source: KIP-394.

    ``member_id`` is that id.
    """

    code = "member_id_required"

    def __init__(self, message: str, *, member_id: str = "") -> None:
        super().__init__(message)
        self.member_id = member_id


class InstanceHeldError(ConflictError):
    """Another member of the group has the instance id, and has not left. Source: KIP-848."""

    code = "instance_held"


class GroupSubscribedError(ConflictError):
    """A member of the group subscribes to the topic, so the group's offsets in it cannot be deleted."""

    code = "group_subscribed"


class LastSuperuserError(ConflictError):
    """The change would leave the cluster without an administrator."""

    code = "last_superuser"


class TransactionAbortedError(ConflictError):
    """The transaction was aborted; none of its writes takes effect."""

    code = "transaction_aborted"


class TransactionCommittedError(ConflictError):
    """The transaction was committed and cannot be aborted."""

    code = "transaction_committed"


class TransactionChangedError(ConflictError):
    """The commit does not name all that the transaction wrote. The transaction is still open."""

    code = "transaction_changed"


class FencedError(MilenaError):
    """The request was refused for a stale epoch."""

    code = "fenced"


class StaleLeaderEpochError(FencedError):
    """The leader epoch in the request is not the partition's current one."""

    code = "stale_leader_epoch"


class StaleBrokerEpochError(FencedError):
    """The broker epoch in the request is not the broker's current one."""

    code = "stale_broker_epoch"


class StaleControllerEpochError(FencedError):
    """The command comes from a controller that another one has replaced."""

    code = "stale_controller_epoch"


class StaleProducerEpochError(FencedError):
    """The producer epoch is stale, because another program has taken over the producer id."""

    code = "stale_producer_epoch"


class StaleMemberEpochError(FencedError):
    """The member's epoch is stale, or the member does not own the partition; it must send a heartbeat first."""

    code = "stale_member_epoch"


class GenerationError(FencedError):
    """The classic group is at another generation: the member must join again."""

    code = "generation"


class MemberFencedError(FencedError):
    """Another process has taken over the member's instance id; this process must stop and not join again."""

    code = "member_fenced"


class NotLeaderError(MilenaError):
    """This node does not lead the partition; nothing was appended.

    ``leader`` is the id of the leading broker as far as this node knows, or None.
    """

    code = "not_leader"
    is_retriable = True

    def __init__(self, message: str, *, leader: int | None = None) -> None:
        super().__init__(message)
        self.leader = leader


class DeniedError(MilenaError):
    """The caller may not do this; nothing was done."""

    code = "denied"


class UnauthenticatedError(DeniedError):
    """The request has no credentials, or no valid ones."""

    code = "unauthenticated"


class ForbiddenError(DeniedError):
    """The caller is known, but has no permission for this. ``resource_type``: what it may not use; empty: unknown."""

    code = "forbidden"

    def __init__(self, message: str = "", *, resource_type: str = "") -> None:
        super().__init__(message)
        self.resource_type = resource_type


class UnavailableError(MilenaError):
    """The request cannot be served now; nothing was written."""

    code = "unavailable"
    is_retriable = True


class NoQuorumError(UnavailableError):
    """The metadata quorum did not answer; the command was not applied."""

    code = "no_quorum"


class NoLeaderError(UnavailableError):
    """The partition has no leader, or its leader is unreachable or cut off."""

    code = "no_leader"


class NotEnoughReplicasError(UnavailableError):
    """Fewer in-sync replicas than ``min.insync.replicas``; nothing was written."""

    code = "not_enough_replicas"


class DiskFullError(UnavailableError):
    """No space is left on the data directory's file system; nothing was written."""

    code = "disk_full"


class ReplicaDamagedError(UnavailableError):
    """Stored records fail a checksum: those to be read, or others below the recovery point of the replica."""

    code = "replica_damaged"


class DrainingError(UnavailableError):
    """The node is stopping."""

    code = "draining"


class NotReadyError(UnavailableError):
    """The node is still starting, or a new leader does not know its high watermark yet."""

    code = "not_ready"


class NotCoordinatorError(UnavailableError):
    """This node is not the group's coordinator, or has not loaded the group yet; nothing was done."""

    code = "not_coordinator"


class TransactionInProgressError(UnavailableError):
    """An earlier transaction with this idempotency key is not decided yet; nothing was written."""

    code = "transaction_in_progress"


class TransactionsPendingError(UnavailableError):
    """The topic has transactions without all their markers; the change must wait for them."""

    code = "transactions_pending"


class FateUnknownError(MilenaError):
    """The result is unknown: the request may have been applied, or may be applied later."""

    code = "fate_unknown"


class InternalError(FateUnknownError):
    """A node met an error that its code did not expect. The node continues, and its log has the traceback."""

    code = "internal_error"


class LimitReachedError(MilenaError):
    """A limit on input was exceeded."""

    code = "limit_reached"


class AccessLimitError(LimitReachedError):
    """The limit of users, tokens or access control entries is reached."""

    code = "access_limit_reached"


class GroupLimitError(LimitReachedError):
    """The limit of consumer groups, members, consumers or committed offsets is reached."""

    code = "group_limit_reached"


class RequestTooLargeError(LimitReachedError):
    """A body, batch or header exceeds its limit."""

    code = "request_too_large"


class TooManyRequestsError(LimitReachedError):
    """Too many requests, connections or bytes in flight; try again later."""

    code = "too_many_requests"
    is_retriable = True


class QuotaExceededError(LimitReachedError):
    """The caller exceeded its quota; ``retry_after_s`` says when it may continue."""

    code = "quota_exceeded"
    is_retriable = True

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TooManyProducersError(LimitReachedError):
    """The limit of named producers is reached."""

    code = "too_many_producers"


class TooManyTransactionsError(LimitReachedError):
    """The limit of open, ending or aborted transactions is reached; try again later."""

    code = "too_many_transactions"
    is_retriable = True


class TooManyReplicasError(LimitReachedError):
    """A broker would exceed the limit of replicas per node."""

    code = "too_many_replicas"


class CorruptLogError(MilenaError):
    """Stored bytes fail their checksum or contradict each other."""

    code = "corrupt_log"


class CorruptBatchError(CorruptLogError):
    """The bytes are not a whole, undamaged record batch."""

    code = "corrupt_batch"


class DiskFailedError(MilenaError):
    """A write or sync failed, and not because the disk is full.

    ``errno`` is the error number of the operating system, if known. It is an attribute, because the cause of an
    exception is lost when the exception passes through a C extension.
    """

    code = "disk_failed"

    def __init__(self, message: str, *, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno


class StartupError(MilenaError):
    """The node refuses to start; the message names the file, value or peer at fault.

    ``is_temporary``: a later start with the same settings may succeed.
    """

    code = "startup"

    def __init__(self, message: str, *, is_temporary: bool = False) -> None:
        super().__init__(message)
        self.is_temporary = is_temporary
