"""The one table from typed errors to Kafka's error codes, for Kafka's clients and for ``kafka_error_code`` in receipts.

A code decides what a client does. An error that wrote nothing and may succeed later has a retriable code. An error with
an unknown fate is REQUEST_TIMED_OUT: an idempotent producer repeats the request, and its sequences tell whether the
records are there.

Source: the table of error codes in Kafka's protocol guide.
"""

from enum import IntEnum, unique

from http_api.protocol import errors as api
from milena.model import errors as e
from milena.model.access import ResourceType


@unique
class KafkaCode(IntEnum):
    """Kafka's error codes, as far as Milena sends them."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    NOT_ENOUGH_REPLICAS = 19
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    OPERATION_NOT_ATTEMPTED = 55
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    UNKNOWN_TOPIC_ID = 100
    BROKER_ID_NOT_REGISTERED = 102
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    TRANSACTION_ABORTABLE = 120
    INVALID_REGULAR_EXPRESSION = 128


_K = KafkaCode

KAFKA_TABLE: dict[type[e.MilenaError], KafkaCode] = {
    # The request must change.
    e.MalformedRequestError: _K.INVALID_REQUEST,
    e.InvalidTopicNameError: _K.INVALID_TOPIC_EXCEPTION,
    e.InvalidConfigError: _K.INVALID_CONFIG,
    e.InvalidReplicationError: _K.INVALID_REPLICATION_FACTOR,
    e.OffsetOutOfRangeError: _K.OFFSET_OUT_OF_RANGE,
    api.MethodNotAllowedError: _K.INVALID_REQUEST,
    e.NotAcceptableError: _K.INVALID_REQUEST,
    api.BodyTimeoutError: _K.INVALID_REQUEST,
    e.UnsupportedMediaTypeError: _K.INVALID_REQUEST,
    api.InvalidFieldError: _K.INVALID_REQUEST,
    e.UnsupportedSchemaError: _K.INVALID_RECORD,
    e.InvalidRecordError: _K.INVALID_RECORD,
    api.UnreadableRecordError: _K.INVALID_RECORD,
    e.InvalidConsumerError: _K.INVALID_REQUEST,
    e.InvalidProducerError: _K.OUT_OF_ORDER_SEQUENCE_NUMBER,
    e.IdempotencyKeyReusedError: _K.INVALID_REQUEST,
    e.TopicNotTransactionalError: _K.POLICY_VIOLATION,
    e.InvalidAccessError: _K.INVALID_REQUEST,
    # The caller may not.
    e.UnauthenticatedError: _K.SASL_AUTHENTICATION_FAILED,
    e.ForbiddenError: _K.TOPIC_AUTHORIZATION_FAILED,
    # Nothing of this name.
    e.RouteNotFoundError: _K.INVALID_REQUEST,
    e.TopicNotFoundError: _K.UNKNOWN_TOPIC_OR_PARTITION,
    e.PartitionNotFoundError: _K.UNKNOWN_TOPIC_OR_PARTITION,
    e.ConsumerNotFoundError: _K.UNKNOWN_MEMBER_ID,
    e.GroupNotFoundError: _K.GROUP_ID_NOT_FOUND,
    e.ClusterNotFoundError: _K.RESOURCE_NOT_FOUND,
    e.BrokerNotFoundError: _K.BROKER_ID_NOT_REGISTERED,
    e.ConfigNotFoundError: _K.INVALID_CONFIG,
    e.ReplicaNotFoundError: _K.REPLICA_NOT_AVAILABLE,
    api.ResourceNotFoundError: _K.RESOURCE_NOT_FOUND,
    e.MemberNotFoundError: _K.UNKNOWN_MEMBER_ID,
    e.TransactionNotFoundError: _K.INVALID_TXN_STATE,
    e.UserNotFoundError: _K.RESOURCE_NOT_FOUND,
    e.TokenNotFoundError: _K.RESOURCE_NOT_FOUND,
    # The state does not allow it.
    e.TopicExistsError: _K.TOPIC_ALREADY_EXISTS,
    e.ConsumerExistsError: _K.DUPLICATE_RESOURCE,
    e.SubscriptionConflictError: _K.INVALID_REQUEST,
    e.PreconditionFailedError: _K.INVALID_REQUEST,
    e.StaleVersionError: _K.INVALID_REQUEST,
    e.PartitionCountChangedError: _K.INVALID_REQUEST,
    e.FeatureLevelError: _K.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    e.BrokerIdInUseError: _K.INVALID_REQUEST,
    e.BrokerInUseError: _K.INVALID_REQUEST,
    e.TooManyProducersError: _K.POLICY_VIOLATION,
    e.TooManyReplicasError: _K.POLICY_VIOLATION,
    e.GroupNotEmptyError: _K.NON_EMPTY_GROUP,
    e.GroupChangedError: _K.NON_EMPTY_GROUP,
    e.GroupLimitError: _K.GROUP_MAX_SIZE_REACHED,
    e.GenerationError: _K.ILLEGAL_GENERATION,
    e.InconsistentGroupProtocolError: _K.INCONSISTENT_GROUP_PROTOCOL,
    e.InvalidSessionTimeoutError: _K.INVALID_SESSION_TIMEOUT,
    e.RebalanceInProgressError: _K.REBALANCE_IN_PROGRESS,
    e.MemberIdRequiredError: _K.MEMBER_ID_REQUIRED,
    e.InstanceHeldError: _K.UNRELEASED_INSTANCE_ID,
    e.GroupSubscribedError: _K.GROUP_SUBSCRIBED_TO_TOPIC,
    e.StaleLeaderEpochError: _K.FENCED_LEADER_EPOCH,
    e.StaleBrokerEpochError: _K.STALE_BROKER_EPOCH,
    e.StaleControllerEpochError: _K.NOT_CONTROLLER,
    e.StaleProducerEpochError: _K.INVALID_PRODUCER_EPOCH,
    e.StaleMemberEpochError: _K.FENCED_MEMBER_EPOCH,
    e.TransactionAbortedError: _K.INVALID_TXN_STATE,
    e.TransactionCommittedError: _K.INVALID_TXN_STATE,
    e.TransactionChangedError: _K.INVALID_TXN_STATE,
    e.LastSuperuserError: _K.POLICY_VIOLATION,
    e.AccessLimitError: _K.POLICY_VIOLATION,
    e.MemberFencedError: _K.FENCED_INSTANCE_ID,
    # A bound was reached.
    e.RequestTooLargeError: _K.MESSAGE_TOO_LARGE,
    e.TooManyRequestsError: _K.THROTTLING_QUOTA_EXCEEDED,
    e.TooManyTransactionsError: _K.THROTTLING_QUOTA_EXCEEDED,
    e.QuotaExceededError: _K.THROTTLING_QUOTA_EXCEEDED,
    # Not now, and nothing was written.
    e.NoLeaderError: _K.LEADER_NOT_AVAILABLE,
    e.NotEnoughReplicasError: _K.NOT_ENOUGH_REPLICAS,
    e.NotLeaderError: _K.NOT_LEADER_OR_FOLLOWER,
    e.NoQuorumError: _K.LEADER_NOT_AVAILABLE,
    e.DiskFullError: _K.KAFKA_STORAGE_ERROR,
    e.ReplicaDamagedError: _K.LEADER_NOT_AVAILABLE,
    e.DrainingError: _K.LEADER_NOT_AVAILABLE,
    e.NotReadyError: _K.LEADER_NOT_AVAILABLE,
    e.NotCoordinatorError: _K.NOT_COORDINATOR,
    e.TransactionInProgressError: _K.CONCURRENT_TRANSACTIONS,
    e.TransactionsPendingError: _K.CONCURRENT_TRANSACTIONS,
    # It may or may not have happened.
    e.FateUnknownError: _K.REQUEST_TIMED_OUT,
    # Our own fault.
    e.InternalError: _K.UNKNOWN_SERVER_ERROR,
    e.CorruptBatchError: _K.CORRUPT_MESSAGE,
    e.DiskFailedError: _K.KAFKA_STORAGE_ERROR,
    e.StartupError: _K.UNKNOWN_SERVER_ERROR,
}
"""Error class → code. A class between root and leaves has none."""


_FORBIDDEN = {
    ResourceType.GROUP: _K.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: _K.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: _K.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


def kafka_code_of(error: e.MilenaError) -> int:
    """Return Kafka's number for an error, by which its clients know whether to retry. Subclasses inherit it."""
    if isinstance(error, e.ForbiddenError) and error.resource_type in _FORBIDDEN:
        return int(_FORBIDDEN[ResourceType(error.resource_type)])
    if isinstance(error, e.InvalidProducerError) and (error.is_unknown or error.is_repeated):
        is_new = error.is_unknown
        return int(_K.UNKNOWN_PRODUCER_ID if is_new else _K.DUPLICATE_SEQUENCE_NUMBER)
    if isinstance(error, e.InvalidRecordError) and error.is_time:
        return int(_K.INVALID_TIMESTAMP)
    for kind in type(error).__mro__:
        code = KAFKA_TABLE.get(kind)
        if code is not None:
            return int(code)
    if isinstance(error, e.UnavailableError):
        return int(_K.LEADER_NOT_AVAILABLE)
    return int(_K.UNKNOWN_SERVER_ERROR)
