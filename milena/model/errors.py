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
    ├── FateUnknownError         it may or may not have happened; InternalError: because of a bug
    ├── LimitReachedError        RequestTooLargeError, TooManyRequestsError, TooManyProducersError, ...
    ├── CorruptLogError          CorruptBatchError
    ├── DiskFailedError          the page cache is not to be trusted again: the process must stop
    └── StartupError             the node refuses to start, and says why

``code`` is a stable word: it travels between nodes and in logs. What HTTP makes of it is one table in
``http_api.protocol.errors``. ``is_retriable`` means that the same request may succeed later, unchanged.
"""

from typing import ClassVar


class MilenaError(Exception):
    """Root of the tree; only its leaves are raised, and ``FateUnknownError``."""

    code: ClassVar[str] = "error"
    is_retriable: ClassVar[bool] = False

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidRequestError(MilenaError):
    """The request itself is wrong; the message says what to change."""

    code = "invalid_request"


class MalformedRequestError(InvalidRequestError):
    """Not JSON, a wrong JSON type, bad base64, an unreadable number, an unknown parameter or condition."""

    code = "malformed_request"


class InvalidRecordError(InvalidRequestError):
    """A record or batch that is well-formed as a request but may not be stored."""

    code = "invalid_record"


class InvalidTopicNameError(InvalidRequestError):
    """A topic name outside ``[a-zA-Z0-9._-]{1,249}``, or ``.`` or ``..``."""

    code = "invalid_topic_name"


class InvalidConfigError(InvalidRequestError):
    """An unknown config name, or a value out of its range."""

    code = "invalid_config"


class InvalidReplicationError(InvalidRequestError):
    """A partition count, replication factor or explicit assignment that cannot be met."""

    code = "invalid_replication"


class InvalidProducerError(InvalidRequestError):
    """A producer id that was never allocated, or a sequence that leaves a gap."""

    code = "invalid_producer"


class InvalidConsumerError(InvalidRequestError):
    """A consumer's or member's settings are out of their range or contradict each other."""

    code = "invalid_consumer"


class TopicNotTransactionalError(InvalidRequestError):
    """A topic whose records may be lost after they were acknowledged: it takes no transactions."""

    code = "topic_not_transactional"


class InvalidAccessError(InvalidRequestError):
    """A user, token or access control entry that makes no sense."""

    code = "invalid_access"


class OffsetOutOfRangeError(InvalidRequestError):
    """An offset below the log start or above the log end."""

    code = "offset_out_of_range"


class UnsupportedMediaTypeError(InvalidRequestError):
    """A ``Content-Type`` that no decoder takes."""

    code = "unsupported_media_type"


class NotAcceptableError(InvalidRequestError):
    """An ``Accept`` that no encoder makes, or records that the wanted format cannot hold."""

    code = "not_acceptable"


class UnsupportedSchemaError(InvalidRequestError):
    """Avro, Protobuf or JSON Schema: formats that need a registry."""

    code = "unsupported_schema"


class NotFoundError(MilenaError):
    """The thing named does not exist, as far as a majority knows."""

    code = "not_found"


class TopicNotFoundError(NotFoundError):
    """No such topic."""

    code = "topic_not_found"


class PartitionNotFoundError(NotFoundError):
    """The topic has no partition of this number."""

    code = "partition_not_found"


class ClusterNotFoundError(NotFoundError):
    """The cluster id in the path is not ours."""

    code = "cluster_not_found"


class BrokerNotFoundError(NotFoundError):
    """No broker of this id is registered."""

    code = "broker_not_found"


class ConfigNotFoundError(NotFoundError):
    """No config of this name."""

    code = "config_not_found"


class RouteNotFoundError(NotFoundError):
    """No endpoint at this path."""

    code = "route_not_found"


class ReplicaNotFoundError(NotFoundError):
    """This node holds no copy of the partition."""

    code = "replica_not_found"


class GroupNotFoundError(NotFoundError):
    """No consumer group of this id."""

    code = "group_not_found"


class MemberNotFoundError(NotFoundError):
    """The group has no member of this id, or no longer: it must join anew."""

    code = "member_not_found"


class TransactionNotFoundError(NotFoundError):
    """No producer of this id and epoch has a transaction: never begun, or forgotten."""

    code = "transaction_not_found"


class UserNotFoundError(NotFoundError):
    """There is no user of this name."""

    code = "user_not_found"


class TokenNotFoundError(NotFoundError):
    """The user has no token of this id."""

    code = "token_not_found"


class ConsumerNotFoundError(NotFoundError):
    """No REST consumer of this name in the group: never made, deleted, or expired."""

    code = "consumer_not_found"


class ConflictError(MilenaError):
    """The state does not allow it now."""

    code = "conflict"


class TopicExistsError(ConflictError):
    """A topic of this name already exists."""

    code = "topic_exists"


class StaleVersionError(ConflictError):
    """A compare-and-set lost: the state moved on since the caller looked."""

    code = "stale_version"


class PreconditionFailedError(ConflictError):
    """The partition does not end at the offset that `If-Match` names; nothing was written.

    ``end_offset`` is where it ended when that was judged, and is committed; None: a peer did not say.
    """

    code = "precondition_failed"

    def __init__(self, message: str, *, end_offset: int | None = None) -> None:
        super().__init__(message)
        self.end_offset = end_offset


class PartitionCountChangedError(ConflictError):
    """An idempotency key was first used when the topic had another number of partitions."""

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
    """The group has members; the change is for groups without."""

    code = "group_not_empty"


class ConsumerExistsError(ConflictError):
    """The group has a REST consumer of this name already."""

    code = "consumer_exists"


class SubscriptionConflictError(ConflictError):
    """Subscription and manual assignment exclude each other, and only what is assigned has a position."""

    code = "subscription_conflict"


class GroupChangedError(ConflictError):
    """The group is no longer at the version that the change was worked out from."""

    code = "group_changed"


class LastSuperuserError(ConflictError):
    """Nobody could administer the cluster any more."""

    code = "last_superuser"


class TransactionAbortedError(ConflictError):
    """The transaction was aborted: nothing of it took effect, nor ever will."""

    code = "transaction_aborted"


class TransactionCommittedError(ConflictError):
    """The transaction cannot be aborted: it was committed."""

    code = "transaction_committed"


class TransactionChangedError(ConflictError):
    """What a transaction wrote is not what its commit names: nothing was decided, it is still open."""

    code = "transaction_changed"


class FencedError(MilenaError):
    """Refused for a stale epoch."""

    code = "fenced"


class StaleLeaderEpochError(FencedError):
    """The leader epoch named is not the current one."""

    code = "stale_leader_epoch"


class StaleBrokerEpochError(FencedError):
    """The broker epoch named is not the live one."""

    code = "stale_broker_epoch"


class StaleControllerEpochError(FencedError):
    """A deposed controller's command."""

    code = "stale_controller_epoch"


class StaleProducerEpochError(FencedError):
    """Another producer took over this producer id."""

    code = "stale_producer_epoch"


class StaleMemberEpochError(FencedError):
    """The member's epoch is not the present one, or the partition is not its own: it must heartbeat first."""

    code = "stale_member_epoch"


class MemberFencedError(FencedError):
    """Another process has taken over the member's instance id: this one must stop, and not join again."""

    code = "member_fenced"


class NotLeaderError(MilenaError):
    """This node does not lead the partition; nothing was appended.

    ``leader`` is the broker id that does as far as this node knows, or None.
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
    """There are no credentials, or none that are good."""

    code = "unauthenticated"


class ForbiddenError(DeniedError):
    """The caller is known, and nothing allows it to do this."""

    code = "forbidden"


class UnavailableError(MilenaError):
    """Not now; nothing was written."""

    code = "unavailable"
    is_retriable = True


class NoQuorumError(UnavailableError):
    """The metadata quorum did not answer; the command was not applied."""

    code = "no_quorum"


class NoLeaderError(UnavailableError):
    """The partition has no leader, or it cannot be reached, or it is cut off."""

    code = "no_leader"


class NotEnoughReplicasError(UnavailableError):
    """Fewer in-sync replicas than ``min.insync.replicas``; nothing was written."""

    code = "not_enough_replicas"


class DiskFullError(UnavailableError):
    """No space is left on the data directory's file system; nothing was written."""

    code = "disk_full"


class ReplicaDamagedError(UnavailableError):
    """A replica failed a checksum: below its recovery point, and it serves nothing; or in what was to be read."""

    code = "replica_damaged"


class DrainingError(UnavailableError):
    """The node is stopping."""

    code = "draining"


class NotReadyError(UnavailableError):
    """The node has not finished starting, or a leader has not established its high watermark."""

    code = "not_ready"


class NotCoordinatorError(UnavailableError):
    """This node does not coordinate the group, or not yet; nothing was done."""

    code = "not_coordinator"


class TransactionInProgressError(UnavailableError):
    """Another request with this idempotency key is a transaction that is not decided yet; nothing was written."""

    code = "transaction_in_progress"


class TransactionsPendingError(UnavailableError):
    """The topic has transactions that are just being ended; the change has to wait for them."""

    code = "transactions_pending"


class FateUnknownError(MilenaError):
    """The result is not known: it may have been, or may yet be, applied."""

    code = "fate_unknown"


class InternalError(FateUnknownError):
    """A node met an error that its code did not expect; the node goes on, and its log has the traceback."""

    code = "internal_error"


class LimitReachedError(MilenaError):
    """A bound on something that comes from outside."""

    code = "limit_reached"


class AccessLimitError(LimitReachedError):
    """As many users, tokens or access control entries as there may be."""

    code = "access_limit_reached"


class GroupLimitError(LimitReachedError):
    """As many consumer groups, members, consumers or committed offsets as there may be."""

    code = "group_limit_reached"


class RequestTooLargeError(LimitReachedError):
    """A body, batch or header above its bound."""

    code = "request_too_large"


class TooManyRequestsError(LimitReachedError):
    """Too many requests, connections or bytes in flight; try again later."""

    code = "too_many_requests"
    is_retriable = True


class QuotaExceededError(LimitReachedError):
    """The caller took more than it may for now; ``retry_after_s``: when it may take more."""

    code = "quota_exceeded"
    is_retriable = True

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TooManyProducersError(LimitReachedError):
    """No further producer gets a name."""

    code = "too_many_producers"


class TooManyTransactionsError(LimitReachedError):
    """As many open, ending or aborted transactions as there may be; try again later."""

    code = "too_many_transactions"
    is_retriable = True


class TooManyReplicasError(LimitReachedError):
    """A broker would hold more replicas than one node carries."""

    code = "too_many_replicas"


class CorruptLogError(MilenaError):
    """Stored bytes fail their checksum or contradict each other."""

    code = "corrupt_log"


class CorruptBatchError(CorruptLogError):
    """The bytes are not a whole, unharmed record batch."""

    code = "corrupt_batch"


class DiskFailedError(MilenaError):
    """A write or sync failed for another reason than a full disk; ``errno``: the operating system's, if it said one.

    It is kept here, since extensions in C forget what an error was raised from.
    """

    code = "disk_failed"

    def __init__(self, message: str, *, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno


class StartupError(MilenaError):
    """The node refuses to start; the message names the file, value or peer at fault."""

    code = "startup"
