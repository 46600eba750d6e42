"""The one table from typed errors to what clients are told: HTTP's status, ``error_code``, and Kafka's code.

An ``error_code`` is one of two things. It is the status itself, if HTTP alone can express the error: 400, 404, 405,
412, 413, 415, 422, 500. Otherwise it has five digits that start with the status.

Numbers of Confluent's REST proxy keep their meaning. 40002 means "Kafka refused the request", and several of our
classes share it. 40401 to 40403 mean that a topic or partition does not exist. The number for a missing topic depends
on the endpoint (``Route.topic_missing_code``). The other numbers are Milena's own. A client that needs the class itself
reads the ``Milena-Error`` header: the class's stable ``code``.

Kafka's code is for Kafka's clients, and for ``kafka_error_code`` in receipts. It decides what a client does. An error
that wrote nothing and may succeed later has a retriable code. An error with an unknown fate is REQUEST_TIMED_OUT: an
idempotent producer repeats the request, and its sequences tell whether the records are there.
"""

import math
from dataclasses import dataclass

from http_api.protocol.kafka_codes import KafkaCode
from milena.model import errors as e
from milena.model.access import ResourceType


class InvalidFieldError(e.InvalidRequestError, code="invalid_field"):
    """A JSON body is well-formed, but lacks a field, or has an unknown field or a value out of range."""


class MethodNotAllowedError(e.InvalidRequestError, code="method_not_allowed"):
    """The path exists, but not for this method. ``allowed`` lists the methods that do."""

    def __init__(self, message: str, *, allowed: str) -> None:
        super().__init__(message)
        self.allowed = allowed


class UnreadableRecordError(e.InvalidRequestError, code="unreadable_record"):
    """A record was requested as JSON or text, and has another format."""


class BodyTimeoutError(e.InvalidRequestError, code="body_timeout"):
    """The body did not arrive in time."""


class UrlTooLongError(e.InvalidRequestError, code="url_too_long"):
    """The URL is longer than the HTTP parser allows."""


class HeadersTooLargeError(e.InvalidRequestError, code="headers_too_large"):
    """A header is longer than the HTTP parser allows, or there are too many."""


class HttpVersionError(e.InvalidRequestError, code="unsupported_http_version"):
    """The request line names a version of HTTP that the server does not speak."""


class ResourceNotFoundError(e.NotFoundError, code="resource_not_found"):
    """A resource does not have the named part."""


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """The status, the ``error_code`` and Kafka's code of one class of errors."""

    status: int
    error_code: int
    kafka_code: KafkaCode


_K = KafkaCode

ERROR_TABLE: dict[type[e.MilenaError], ErrorRow] = {
    # The request must change.
    e.MalformedRequestError: ErrorRow(400, 400, _K.INVALID_REQUEST),
    e.InvalidTopicNameError: ErrorRow(400, 40002, _K.INVALID_TOPIC_EXCEPTION),
    e.InvalidConfigError: ErrorRow(400, 40002, _K.INVALID_CONFIG),
    e.InvalidReplicationError: ErrorRow(400, 40002, _K.INVALID_REPLICATION_FACTOR),
    e.OffsetOutOfRangeError: ErrorRow(400, 40002, _K.OFFSET_OUT_OF_RANGE),
    MethodNotAllowedError: ErrorRow(405, 405, _K.INVALID_REQUEST),
    e.NotAcceptableError: ErrorRow(406, 40601, _K.INVALID_REQUEST),
    BodyTimeoutError: ErrorRow(408, 408, _K.INVALID_REQUEST),
    e.UnsupportedMediaTypeError: ErrorRow(415, 415, _K.INVALID_REQUEST),
    InvalidFieldError: ErrorRow(422, 422, _K.INVALID_REQUEST),
    e.UnsupportedSchemaError: ErrorRow(422, 42202, _K.INVALID_RECORD),
    e.InvalidRecordError: ErrorRow(422, 42208, _K.INVALID_RECORD),
    UnreadableRecordError: ErrorRow(422, 42203, _K.INVALID_RECORD),
    e.InvalidConsumerError: ErrorRow(422, 42204, _K.INVALID_REQUEST),
    e.InvalidProducerError: ErrorRow(422, 42210, _K.OUT_OF_ORDER_SEQUENCE_NUMBER),
    e.IdempotencyKeyReusedError: ErrorRow(422, 42211, _K.INVALID_REQUEST),
    e.TopicNotTransactionalError: ErrorRow(422, 42212, _K.POLICY_VIOLATION),
    e.InvalidAccessError: ErrorRow(422, 42213, _K.INVALID_REQUEST),
    e.InvalidSessionTimeoutError: ErrorRow(422, 42214, _K.INVALID_SESSION_TIMEOUT),
    # The caller may not.
    e.UnauthenticatedError: ErrorRow(401, 40101, _K.SASL_AUTHENTICATION_FAILED),
    e.ForbiddenError: ErrorRow(403, 40301, _K.TOPIC_AUTHORIZATION_FAILED),
    # Nothing of this name.
    e.RouteNotFoundError: ErrorRow(404, 404, _K.INVALID_REQUEST),
    e.TopicNotFoundError: ErrorRow(404, 40401, _K.UNKNOWN_TOPIC_OR_PARTITION),
    e.PartitionNotFoundError: ErrorRow(404, 40402, _K.UNKNOWN_TOPIC_OR_PARTITION),
    e.ConsumerNotFoundError: ErrorRow(404, 40403, _K.UNKNOWN_MEMBER_ID),
    e.GroupNotFoundError: ErrorRow(404, 40405, _K.GROUP_ID_NOT_FOUND),
    e.ClusterNotFoundError: ErrorRow(404, 40406, _K.RESOURCE_NOT_FOUND),
    e.BrokerNotFoundError: ErrorRow(404, 40407, _K.BROKER_ID_NOT_REGISTERED),
    e.ConfigNotFoundError: ErrorRow(404, 40408, _K.INVALID_CONFIG),
    e.ReplicaNotFoundError: ErrorRow(404, 40409, _K.REPLICA_NOT_AVAILABLE),
    ResourceNotFoundError: ErrorRow(404, 40410, _K.RESOURCE_NOT_FOUND),
    e.MemberNotFoundError: ErrorRow(404, 40411, _K.UNKNOWN_MEMBER_ID),
    e.TransactionNotFoundError: ErrorRow(404, 40412, _K.INVALID_TXN_STATE),
    e.UserNotFoundError: ErrorRow(404, 40413, _K.RESOURCE_NOT_FOUND),
    e.TokenNotFoundError: ErrorRow(404, 40414, _K.RESOURCE_NOT_FOUND),
    # The state does not allow it.
    e.TopicExistsError: ErrorRow(400, 40002, _K.TOPIC_ALREADY_EXISTS),
    e.ConsumerExistsError: ErrorRow(409, 40902, _K.DUPLICATE_RESOURCE),
    e.SubscriptionConflictError: ErrorRow(409, 40903, _K.INVALID_REQUEST),
    e.PreconditionFailedError: ErrorRow(412, 412, _K.INVALID_REQUEST),
    e.StaleVersionError: ErrorRow(409, 40911, _K.INVALID_REQUEST),
    e.PartitionCountChangedError: ErrorRow(409, 40912, _K.INVALID_REQUEST),
    e.FeatureLevelError: ErrorRow(409, 40913, _K.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    e.BrokerIdInUseError: ErrorRow(409, 40914, _K.INVALID_REQUEST),
    e.BrokerInUseError: ErrorRow(409, 40915, _K.INVALID_REQUEST),
    e.TooManyProducersError: ErrorRow(409, 40916, _K.POLICY_VIOLATION),
    e.TooManyReplicasError: ErrorRow(409, 40917, _K.POLICY_VIOLATION),
    e.GroupNotEmptyError: ErrorRow(409, 40918, _K.NON_EMPTY_GROUP),
    e.GroupChangedError: ErrorRow(409, 40919, _K.NON_EMPTY_GROUP),
    e.GroupLimitError: ErrorRow(409, 40920, _K.GROUP_MAX_SIZE_REACHED),
    e.StaleLeaderEpochError: ErrorRow(409, 40921, _K.FENCED_LEADER_EPOCH),
    e.StaleBrokerEpochError: ErrorRow(409, 40922, _K.STALE_BROKER_EPOCH),
    e.StaleControllerEpochError: ErrorRow(409, 40923, _K.NOT_CONTROLLER),
    e.StaleProducerEpochError: ErrorRow(409, 40924, _K.INVALID_PRODUCER_EPOCH),
    e.StaleMemberEpochError: ErrorRow(409, 40925, _K.FENCED_MEMBER_EPOCH),
    e.TransactionAbortedError: ErrorRow(409, 40926, _K.INVALID_TXN_STATE),
    e.TransactionCommittedError: ErrorRow(409, 40927, _K.INVALID_TXN_STATE),
    e.TransactionChangedError: ErrorRow(409, 40928, _K.INVALID_TXN_STATE),
    e.LastSuperuserError: ErrorRow(409, 40929, _K.POLICY_VIOLATION),
    e.AccessLimitError: ErrorRow(409, 40930, _K.POLICY_VIOLATION),
    e.MemberFencedError: ErrorRow(409, 40935, _K.FENCED_INSTANCE_ID),
    e.InconsistentGroupProtocolError: ErrorRow(409, 40936, _K.INCONSISTENT_GROUP_PROTOCOL),
    e.RebalanceInProgressError: ErrorRow(409, 40937, _K.REBALANCE_IN_PROGRESS),
    e.GenerationError: ErrorRow(409, 40938, _K.ILLEGAL_GENERATION),
    e.MemberIdRequiredError: ErrorRow(409, 40939, _K.MEMBER_ID_REQUIRED),
    e.GroupSubscribedError: ErrorRow(409, 40940, _K.GROUP_SUBSCRIBED_TO_TOPIC),
    e.InstanceHeldError: ErrorRow(409, 40941, _K.UNRELEASED_INSTANCE_ID),
    # A bound was reached.
    e.RequestTooLargeError: ErrorRow(413, 413, _K.MESSAGE_TOO_LARGE),
    e.TooManyRequestsError: ErrorRow(429, 42901, _K.THROTTLING_QUOTA_EXCEEDED),
    e.TooManyTransactionsError: ErrorRow(429, 42902, _K.THROTTLING_QUOTA_EXCEEDED),
    e.QuotaExceededError: ErrorRow(429, 42903, _K.THROTTLING_QUOTA_EXCEEDED),
    UrlTooLongError: ErrorRow(414, 414, _K.INVALID_REQUEST),
    HeadersTooLargeError: ErrorRow(431, 431, _K.INVALID_REQUEST),
    HttpVersionError: ErrorRow(505, 505, _K.INVALID_REQUEST),
    # Not now, and nothing was written.
    e.NoLeaderError: ErrorRow(503, 50302, _K.LEADER_NOT_AVAILABLE),
    e.NotEnoughReplicasError: ErrorRow(503, 50303, _K.NOT_ENOUGH_REPLICAS),
    e.NotLeaderError: ErrorRow(503, 50304, _K.NOT_LEADER_OR_FOLLOWER),
    e.NoQuorumError: ErrorRow(503, 50305, _K.LEADER_NOT_AVAILABLE),
    e.DiskFullError: ErrorRow(503, 50306, _K.KAFKA_STORAGE_ERROR),
    e.ReplicaDamagedError: ErrorRow(503, 50307, _K.LEADER_NOT_AVAILABLE),
    e.DrainingError: ErrorRow(503, 50308, _K.LEADER_NOT_AVAILABLE),
    e.NotReadyError: ErrorRow(503, 50309, _K.LEADER_NOT_AVAILABLE),
    e.NotCoordinatorError: ErrorRow(503, 50310, _K.NOT_COORDINATOR),
    e.TransactionInProgressError: ErrorRow(503, 50311, _K.CONCURRENT_TRANSACTIONS),
    e.TransactionsPendingError: ErrorRow(503, 50312, _K.CONCURRENT_TRANSACTIONS),
    # It may or may not have happened.
    e.FateUnknownError: ErrorRow(504, 50401, _K.REQUEST_TIMED_OUT),
    # Our own fault.
    e.InternalError: ErrorRow(500, 500, _K.UNKNOWN_SERVER_ERROR),
    e.CorruptBatchError: ErrorRow(500, 50004, _K.CORRUPT_MESSAGE),
    e.DiskFailedError: ErrorRow(500, 50005, _K.KAFKA_STORAGE_ERROR),
    e.StartupError: ErrorRow(500, 50006, _K.UNKNOWN_SERVER_ERROR),
}

UNLISTED_ERROR = ErrorRow(500, 50002, _K.UNKNOWN_SERVER_ERROR)
"""The row of a class between root and leaves, if it is raised by mistake: Confluent's "Kafka error"."""

_PARENT_ROWS: dict[type[e.MilenaError], ErrorRow] = {
    e.UnavailableError: ERROR_TABLE[e.NotReadyError],
    e.ConflictError: ERROR_TABLE[e.StaleVersionError],
}
"""Rows of parents that the state machine raises: responses of commands never change, so it cannot raise a leaf."""

_ROWS: dict[type, ErrorRow] = {**ERROR_TABLE, **_PARENT_ROWS}

RETRY_AFTER_S = "1"
"""Sent with 429 and 503 (seconds). Elections and the end of a burst both take about a second."""

_RETRY_STATUSES = frozenset({429, 503})

_UNAUTHENTICATED = 401
CHALLENGE = 'Bearer realm="milena", Basic realm="milena", charset="UTF-8"'
"""Sent with 401: the supported kinds of credentials. Source: RFC 7235, RFC 6750, RFC 7617."""
SCRIPT_CHALLENGE = 'Bearer realm="milena"'
"""Sent with 401 to a script in a browser.

For Basic the browser would open its own dialog over the page that asks for credentials.
"""


def row_of(error: e.MilenaError) -> ErrorRow:
    """Return the error's row. A subclass without a row has its parent's."""
    for kind in type(error).__mro__:
        row = _ROWS.get(kind)
        if row is not None:
            return row
    return UNLISTED_ERROR


def _retry_after(error: e.MilenaError) -> str:
    if isinstance(error, e.QuotaExceededError):
        # Whole seconds, rounded up: a client that waits this long is accepted.
        return str(math.ceil(error.retry_after_s))
    return RETRY_AFTER_S


def error_headers(error: e.MilenaError, status: int) -> list[tuple[str, str]]:
    """Return the headers of this error's response, without its content type."""
    headers = [("Milena-Error", error.code)]
    if status in _RETRY_STATUSES:
        headers.append(("Retry-After", _retry_after(error)))
    if status == _UNAUTHENTICATED:
        headers.append(("WWW-Authenticate", CHALLENGE))
    if isinstance(error, MethodNotAllowedError):
        headers.append(("Allow", error.allowed))
    return headers


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
        if kind in ERROR_TABLE:
            return int(ERROR_TABLE[kind].kafka_code)
    if isinstance(error, e.UnavailableError):
        return int(_K.LEADER_NOT_AVAILABLE)
    return int(_K.UNKNOWN_SERVER_ERROR)
