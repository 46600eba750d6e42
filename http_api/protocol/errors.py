"""The one table from typed errors to HTTP: status and ``error_code`` of each concrete class.

An ``error_code`` is one of two things. It is the status itself, if HTTP alone can express the error: 400, 404, 405,
412, 413, 415, 422, 500. Otherwise it has five digits that start with the status.

Numbers of Confluent's REST proxy keep their meaning. 40002 means "Kafka refused the request", and several of our
classes share it. 40401 to 40403 mean that a topic or partition does not exist. The number for a missing topic depends
on the endpoint (``Route.topic_missing_code``). The other numbers are Milena's own. A client that needs the class itself
reads the ``Milena-Error`` header: the class's stable ``code``.
"""

import math
from dataclasses import dataclass

from milena.model import errors as e


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


class ResourceNotFoundError(e.NotFoundError, code="resource_not_found"):
    """A resource does not have the named part."""


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """The status and ``error_code`` of one class of errors."""

    status: int
    error_code: int


ERROR_TABLE: dict[type[e.MilenaError], ErrorRow] = {
    # The request must change.
    e.MalformedRequestError: ErrorRow(400, 400),
    e.InvalidTopicNameError: ErrorRow(400, 40002),
    e.InvalidConfigError: ErrorRow(400, 40002),
    e.InvalidReplicationError: ErrorRow(400, 40002),
    e.OffsetOutOfRangeError: ErrorRow(400, 40002),
    MethodNotAllowedError: ErrorRow(405, 405),
    e.NotAcceptableError: ErrorRow(406, 40601),
    BodyTimeoutError: ErrorRow(408, 408),
    e.UnsupportedMediaTypeError: ErrorRow(415, 415),
    InvalidFieldError: ErrorRow(422, 422),
    e.UnsupportedSchemaError: ErrorRow(422, 42202),
    e.InvalidRecordError: ErrorRow(422, 42208),
    UnreadableRecordError: ErrorRow(422, 42203),
    e.InvalidConsumerError: ErrorRow(422, 42204),
    e.InvalidProducerError: ErrorRow(422, 42210),
    e.IdempotencyKeyReusedError: ErrorRow(422, 42211),
    e.TopicNotTransactionalError: ErrorRow(422, 42212),
    e.InvalidAccessError: ErrorRow(422, 42213),
    e.InvalidSessionTimeoutError: ErrorRow(422, 42214),
    # The caller may not.
    e.UnauthenticatedError: ErrorRow(401, 40101),
    e.ForbiddenError: ErrorRow(403, 40301),
    # Nothing of this name.
    e.RouteNotFoundError: ErrorRow(404, 404),
    e.TopicNotFoundError: ErrorRow(404, 40401),
    e.PartitionNotFoundError: ErrorRow(404, 40402),
    e.ConsumerNotFoundError: ErrorRow(404, 40403),
    e.GroupNotFoundError: ErrorRow(404, 40405),
    e.ClusterNotFoundError: ErrorRow(404, 40406),
    e.BrokerNotFoundError: ErrorRow(404, 40407),
    e.ConfigNotFoundError: ErrorRow(404, 40408),
    e.ReplicaNotFoundError: ErrorRow(404, 40409),
    ResourceNotFoundError: ErrorRow(404, 40410),
    e.MemberNotFoundError: ErrorRow(404, 40411),
    e.TransactionNotFoundError: ErrorRow(404, 40412),
    e.UserNotFoundError: ErrorRow(404, 40413),
    e.TokenNotFoundError: ErrorRow(404, 40414),
    # The state does not allow it.
    e.TopicExistsError: ErrorRow(400, 40002),
    e.ConsumerExistsError: ErrorRow(409, 40902),
    e.SubscriptionConflictError: ErrorRow(409, 40903),
    e.PreconditionFailedError: ErrorRow(412, 412),
    e.StaleVersionError: ErrorRow(409, 40911),
    e.PartitionCountChangedError: ErrorRow(409, 40912),
    e.FeatureLevelError: ErrorRow(409, 40913),
    e.BrokerIdInUseError: ErrorRow(409, 40914),
    e.BrokerInUseError: ErrorRow(409, 40915),
    e.TooManyProducersError: ErrorRow(409, 40916),
    e.TooManyReplicasError: ErrorRow(409, 40917),
    e.GroupNotEmptyError: ErrorRow(409, 40918),
    e.GroupChangedError: ErrorRow(409, 40919),
    e.GroupLimitError: ErrorRow(409, 40920),
    e.StaleLeaderEpochError: ErrorRow(409, 40921),
    e.StaleBrokerEpochError: ErrorRow(409, 40922),
    e.StaleControllerEpochError: ErrorRow(409, 40923),
    e.StaleProducerEpochError: ErrorRow(409, 40924),
    e.StaleMemberEpochError: ErrorRow(409, 40925),
    e.TransactionAbortedError: ErrorRow(409, 40926),
    e.TransactionCommittedError: ErrorRow(409, 40927),
    e.TransactionChangedError: ErrorRow(409, 40928),
    e.LastSuperuserError: ErrorRow(409, 40929),
    e.AccessLimitError: ErrorRow(409, 40930),
    e.MemberFencedError: ErrorRow(409, 40935),
    e.InconsistentGroupProtocolError: ErrorRow(409, 40936),
    e.RebalanceInProgressError: ErrorRow(409, 40937),
    e.GenerationError: ErrorRow(409, 40938),
    e.MemberIdRequiredError: ErrorRow(409, 40939),
    e.GroupSubscribedError: ErrorRow(409, 40940),
    e.InstanceHeldError: ErrorRow(409, 40941),
    # A bound was reached.
    e.RequestTooLargeError: ErrorRow(413, 413),
    e.TooManyRequestsError: ErrorRow(429, 42901),
    e.TooManyTransactionsError: ErrorRow(429, 42902),
    e.QuotaExceededError: ErrorRow(429, 42903),
    # Not now, and nothing was written.
    e.NoLeaderError: ErrorRow(503, 50302),
    e.NotEnoughReplicasError: ErrorRow(503, 50303),
    e.NotLeaderError: ErrorRow(503, 50304),
    e.NoQuorumError: ErrorRow(503, 50305),
    e.DiskFullError: ErrorRow(503, 50306),
    e.ReplicaDamagedError: ErrorRow(503, 50307),
    e.DrainingError: ErrorRow(503, 50308),
    e.NotReadyError: ErrorRow(503, 50309),
    e.NotCoordinatorError: ErrorRow(503, 50310),
    e.TransactionInProgressError: ErrorRow(503, 50311),
    e.TransactionsPendingError: ErrorRow(503, 50312),
    # It may or may not have happened.
    e.FateUnknownError: ErrorRow(504, 50401),
    # Our own fault.
    e.InternalError: ErrorRow(500, 500),
    e.CorruptBatchError: ErrorRow(500, 50004),
    e.DiskFailedError: ErrorRow(500, 50005),
    e.StartupError: ErrorRow(500, 50006),
}

UNLISTED_ERROR = ErrorRow(500, 50002)
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
