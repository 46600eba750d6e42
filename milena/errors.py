"""Errors of the client: a small tree, in which each leaf has one meaning for the caller.

    ClientError
    ├── UnreachableError           no node could be reached, or none responded to a repeatable request
    │   └── NeverReachedError      no node has ever responded to this client: the addresses may be wrong
    ├── UnexpectedAnswerError      a response of another form: another server, another version
    ├── BadCredentialsError        a file with a secret or a certificate cannot be used: nothing was sent
    ├── UnreadableOffsetError      a reader's next offset was deleted, or is above the end
    ├── UndecodableRecordError     a record whose key or value its deserializer cannot read
    ├── AnswerError                a node refused, and said why
    │   ├── CredentialsRefusedError  the node does not know the caller
    │   ├── NotPermittedError      the node knows the caller, and does not permit the call
    │   ├── TargetNotFoundError    the named thing does not exist
    │   ├── TargetExistsError      the thing to create exists already
    │   ├── OutOfRangeError        an offset that the partition does not have
    │   ├── ConditionFailedError   ``if_match`` is not the partition's next offset
    │   ├── TooLargeError          a batch or record above its limit
    │   ├── NotNowError            nothing was done; the same call may succeed later
    │   ├── ServerFailedError      a fault of the node or of a proxy; the result is unknown
    │   ├── SequenceRefusedError   the sequence of an idempotent batch is not the next one
    │   ├── ProducerFencedError    another producer took over the id
    │   ├── TransactionAbortedError  none of the transaction's writes takes effect
    │   ├── MemberUnknownError     the group has no such member (any more)
    │   ├── MemberFencedError      another process took over the member's instance id
    │   ├── StaleMemberError       the member's epoch is stale, or it does not have the partition
    │   ├── GroupNotEmptyError     the group has members, and the change is for groups without
    │   └── UnknownResultError     the change may or may not have been made
    ├── ConsumerError              raised by the consumer itself
    │   ├── CommitFailedError      the consumer has lost the partitions: nothing was committed
    │   └── ConsumerFencedError    another process took over the instance id
    └── ProducerError              refused by the client itself: nothing was sent
        ├── RecordTooLargeError    one record above what a batch may hold
        ├── BadRecordError         a key, value, header, timestamp or partition that cannot be sent
        ├── BufferFullError        the buffer stayed full for too long
        ├── DeliveryTimeoutError   the delivery timeout passed: the record was not written
        └── ClientClosedError      the client or producer is closed

Each error has a message for people. ``AnswerError`` adds the HTTP status and the API's error code. ``request_id`` is
the id under which nodes log the request, if a node responded. ``is_retriable`` means that the same call may succeed
later, unchanged, and that a repeat cannot have its effect twice.
"""

from typing import Self

from milena.model.errors import MilenaError


class ClientError(MilenaError, code="client"):
    """The root of the client's errors. Only its leaves and ``AnswerError`` are raised."""

    _request_id: str | None = None

    @property
    def request_id(self) -> str | None:
        """The id of the failed request, as nodes log it; None if no node responded."""
        if self._request_id is None and isinstance(self.__cause__, ClientError):
            return self.__cause__.request_id
        return self._request_id


class UnreachableError(ClientError, code="unreachable"):
    """No node could be reached, or the connection broke before the response to a request that changes nothing."""

    is_retriable = True


class NeverReachedError(UnreachableError, code="never_reached"):
    """No node has responded to this client within its ``connect_timeout_ms``; the message names what was tried.

    The client does not retry by itself. You may: the same call works as soon as a node responds.
    """

    is_retriable = False


class UnexpectedAnswerError(ClientError, code="unexpected_answer"):
    """The response does not have the shape that the API promises."""


class BadCredentialsError(ClientError, code="bad_credentials"):
    """A file of the client's credentials cannot be read, or has other content than it should. Nothing was sent."""


class UnreadableOffsetError(ClientError, code="unreadable_offset"):
    """The reader's next offset does not exist: it was deleted, or is above the end.

    The readable offsets are [log_start_offset, high_watermark). ``is_made_again`` is True if the topic was deleted and
    another one was created under its name.
    """

    def __init__(
        self,
        *,
        topic: str,
        partition: int,
        offset: int,
        log_start_offset: int,
        high_watermark: int,
        is_made_again: bool = False,
    ) -> None:
        what = "was deleted" if offset < log_start_offset else "is above the end"
        if is_made_again:
            what = "was in a topic that was deleted and made again"
        super().__init__(
            f"{topic}-{partition}: offset {offset} {what}; readable are the offsets from {log_start_offset} "
            f"up to, and without, {high_watermark}"
        )
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.high_watermark = high_watermark
        self.is_made_again = is_made_again


class UndecodableRecordError(ClientError, code="undecodable_record"):
    """The program's deserializer failed on the key or value of a record."""

    def __init__(self, message: str, *, topic: str, partition: int, offset: int) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset


class AnswerError(ClientError, code="refused"):
    """The node responded with an error.

    ``status`` is the HTTP status. ``error_code`` is the API's code (usually ``status * 100 + n``), or None.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        error_code: int | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error_code = error_code
        self._request_id = request_id

    def reworded(self, message: str) -> Self:
        """Return the same error with another message."""
        return type(self)(
            message, status=self.status, error_code=self.error_code, request_id=self._request_id
        )


class CredentialsRefusedError(AnswerError, code="credentials_refused"):
    """401: the call has no credentials, or the cluster does not know them or no longer accepts them.

    Nothing was done.
    """


class NotPermittedError(AnswerError, code="not_permitted"):
    """403: the caller has no permission for the call. Nothing was done."""


class TargetNotFoundError(AnswerError, code="target_not_found"):
    """404: no such topic, partition or cluster."""


class TargetExistsError(AnswerError, code="target_exists"):
    """The topic to create exists already."""


class OutOfRangeError(AnswerError, code="out_of_range"):
    """An offset below the log start or above the log end."""


class ConditionFailedError(AnswerError, code="condition_failed"):
    """412: the partition does not end at the offset that `if_match` names. Nothing was written.

    ``end_offset`` is the offset at which it ended; None if the response does not say.
    """

    end_offset: int | None = None


class TooLargeError(AnswerError, code="too_large"):
    """413: the batch is larger than the topic or the node allows. Nothing was written."""


class NotNowError(AnswerError, code="not_now"):
    """429 or 503: no leader, too few replicas in sync, a full disk, or too many requests. Nothing was written."""

    is_retriable = True


class ServerFailedError(AnswerError, code="server_failed"):
    """500, or a 5xx status that no Milena node sends. The result of the request is unknown."""


class SequenceRefusedError(AnswerError, code="sequence_refused"):
    """The sequence of an idempotent batch leaves a gap in the leader's log. The batch was not written."""


class ProducerFencedError(AnswerError, code="producer_fenced"):
    """Another program has taken over the producer id. This producer must stop."""


class TransactionAbortedError(AnswerError, code="transaction_aborted"):
    """The transaction was aborted; none of its writes takes effect. Do its work again in another transaction."""


class MemberUnknownError(AnswerError, code="member_unknown"):
    """The group has no member with this id (any more). The client must join again, without partitions."""


class MemberFencedError(AnswerError, code="member_fenced"):
    """Another process took over the member's instance id. This process must stop. Nothing was done."""


class StaleMemberError(AnswerError, code="stale_member"):
    """The member's epoch is stale, or the member does not have one of the partitions. Nothing was done."""


class GroupNotEmptyError(AnswerError, code="group_not_empty"):
    """The group has members. Only members may commit its offsets, and it cannot be deleted."""


class UnknownResultError(AnswerError, code="unknown_result"):
    """504, or the connection was lost after a change was sent. The change may or may not have been made."""


class ConsumerError(ClientError, code="consumer"):
    """A consumer's membership or commit failed; only the leaves are raised."""


class CommitFailedError(ConsumerError, code="commit_failed"):
    """The consumer has lost the partitions. Nothing was committed; other members continue from the last commit."""


class ConsumerFencedError(ConsumerError, code="consumer_fenced"):
    """Another process has taken over this instance id. This consumer must stop."""


class ProducerError(ClientError, code="producer"):
    """The client refused the record before anything was sent. Only the leaves are raised."""


class RecordTooLargeError(ProducerError, code="record_too_large"):
    """No batch of the topic can hold the record."""


class BadRecordError(ProducerError, code="bad_record"):
    """A key, value, header, timestamp or partition cannot be sent. The message says what to change."""


class BufferFullError(ProducerError, code="buffer_full"):
    """The buffer stayed full for as long as a send may wait: records arrive faster than the cluster takes them."""

    is_retriable = True


class DeliveryTimeoutError(ProducerError, code="delivery_timeout"):
    """``delivery_timeout_ms`` passed, and every attempt is known to have written nothing."""

    is_retriable = True


class ClientClosedError(ProducerError, code="closed"):
    """The client or producer is already closed."""


def is_worth_another_try(error: ClientError) -> bool:
    """Return whether a repeatable call should be retried after this error, because it may be temporary."""
    return error.is_retriable or isinstance(error, UnknownResultError | ServerFailedError)
