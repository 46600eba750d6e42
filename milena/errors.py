"""Errors of the client: a small tree, each leaf with one meaning for the caller.

    ClientError
    ├── UnreachableError           no node answered: nothing is known to have been asked
    ├── UnexpectedAnswerError      an answer that is not ours: another server, another version
    ├── BadCredentialsError        a file with a secret or a certificate cannot be used: nothing was asked
    ├── UnreadableOffsetError      a reader's next offset was deleted, or is above the end
    ├── UndecodableRecordError     a record whose key or value its deserializer cannot read
    ├── AnswerError                a node refused, and said why
    │   ├── CredentialsRefusedError  the node does not know who asks
    │   ├── NotPermittedError      the node knows who asks, and does not let them
    │   ├── TargetNotFoundError    the thing named does not exist
    │   ├── TargetExistsError      the thing to create is already there
    │   ├── OutOfRangeError        an offset that the partition does not have
    │   ├── ConditionFailedError   the partition does not end at the offset that a record was to have
    │   ├── TooLargeError          a batch or record above its bound
    │   ├── NotNowError            nothing was done; the same may succeed later
    │   ├── ServerFailedError      a fault of the node or of something in front of it; says nothing about the result
    │   ├── SequenceRefusedError   the sequence of an idempotent batch is not the next one
    │   ├── ProducerFencedError    another producer took over the id
    │   ├── TransactionAbortedError  nothing of the transaction counts, nor ever will
    │   ├── MemberUnknownError     the group has no such member, or no longer
    │   ├── MemberFencedError      another process took over the member's instance id
    │   ├── StaleMemberError       the member's epoch is not the present one, or the partition is not its own
    │   ├── GroupNotEmptyError     the group has members, and the change is for groups without
    │   └── UnknownResultError     it may or may not have been done
    ├── ConsumerError              told by the consumer itself
    │   ├── CommitFailedError      partitions went to other members meanwhile: nothing was committed
    │   └── ConsumerFencedError    another process took over the instance id
    └── ProducerError              refused by the client itself: nothing was sent
        ├── RecordTooLargeError    one record above what a batch may hold
        ├── BadRecordError         a key, value, header, timestamp or partition that cannot be sent
        ├── BufferFullError        no room came free in time
        ├── DeliveryTimeoutError   time was up before any node took the record: it was not written
        └── ClientClosedError      the client or producer is closed

Every one of them carries a sentence for people; ``AnswerError`` adds the HTTP status and the API's error code.
``request_id`` is the id under which nodes log the request, where one answered it.
``is_retriable`` means that the same call may succeed later, unchanged, and that repeating it cannot do it twice.
"""

from milena.model.errors import MilenaError


class ClientError(MilenaError):
    """Root of the client's tree; only its leaves and ``AnswerError`` are raised."""

    code = "client"
    _request_id: str | None = None

    @property
    def request_id(self) -> str | None:
        """The id of the request that this error answers or comes from, as nodes log it; None: no node answered."""
        if self._request_id is None and isinstance(self.__cause__, ClientError):
            return self.__cause__.request_id
        return self._request_id


class UnreachableError(ClientError):
    """No connection, or none that lasted until the answer of a request that changes nothing."""

    code = "unreachable"
    is_retriable = True


class UnexpectedAnswerError(ClientError):
    """The answer does not have the shape that the API promises."""

    code = "unexpected_answer"


class BadCredentialsError(ClientError):
    """A file that the client's credentials name cannot be read, or is not what it should be; nothing was asked."""

    code = "bad_credentials"


class UnreadableOffsetError(ClientError):
    """The offset that a reader was to read is not there: deleted, or above the end.

    Readable are the offsets in [log_start_offset, high_watermark). ``is_made_again``: they are of another topic, which
    was made under the name of the one that was read.
    """

    code = "unreadable_offset"

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


class UndecodableRecordError(ClientError):
    """A record was read, and its key or value is not what the program's deserializer takes."""

    code = "undecodable_record"

    def __init__(self, message: str, *, topic: str, partition: int, offset: int) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset


class AnswerError(ClientError):
    """The node answered with an error.

    ``status`` is HTTP's, ``error_code`` the API's (usually ``status * 100 + n``), or None.
    """

    code = "refused"

    def __init__(
        self, message: str, *, status: int, error_code: int | None, request_id: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error_code = error_code
        self._request_id = request_id


class CredentialsRefusedError(AnswerError):
    """401: no credentials, or those that the cluster does not know or no longer takes; nothing was done."""

    code = "credentials_refused"


class NotPermittedError(AnswerError):
    """403: whoever asked has no permission for it; nothing was done."""

    code = "not_permitted"


class TargetNotFoundError(AnswerError):
    """404: no such topic, partition or cluster."""

    code = "target_not_found"


class TargetExistsError(AnswerError):
    """The topic to create is there already."""

    code = "target_exists"


class OutOfRangeError(AnswerError):
    """An offset below the log start or above the log end."""

    code = "out_of_range"


class ConditionFailedError(AnswerError):
    """412: the partition does not end at the offset that `if_match` names; nothing was written.

    ``end_offset`` is where it ended; None: the answer does not say.
    """

    code = "condition_failed"
    end_offset: int | None = None


class TooLargeError(AnswerError):
    """413: the batch is larger than the topic or the node allows; nothing was written."""

    code = "too_large"


class NotNowError(AnswerError):
    """429 or 503: no leader, too few replicas in sync, a full disk, too much at once; nothing was written."""

    code = "not_now"
    is_retriable = True


class ServerFailedError(AnswerError):
    """500, or a 5xx that no node of ours sends: what became of the request is not said."""

    code = "server_failed"


class SequenceRefusedError(AnswerError):
    """An idempotent batch whose sequence leaves a gap, as the leader's log sees it; it was not written."""

    code = "sequence_refused"


class ProducerFencedError(AnswerError):
    """Another producer took over this producer's id; this one must stop."""

    code = "producer_fenced"


class TransactionAbortedError(AnswerError):
    """The transaction was aborted: nothing of it counts. Do its work again, in another one."""

    code = "transaction_aborted"


class MemberUnknownError(AnswerError):
    """The group has no member of this id, or no longer: it must join anew, owning nothing."""

    code = "member_unknown"


class MemberFencedError(AnswerError):
    """Another process took over the member's instance id: this one must stop; nothing was done."""

    code = "member_fenced"


class StaleMemberError(AnswerError):
    """The member's epoch is not the present one, or a partition is not its own; nothing was done."""

    code = "stale_member"


class GroupNotEmptyError(AnswerError):
    """The group has members; its offsets are theirs to commit, and it cannot be deleted."""

    code = "group_not_empty"


class UnknownResultError(AnswerError):
    """504, or a connection lost after a change was sent: it may or may not have happened."""

    code = "unknown_result"


class ConsumerError(ClientError):
    """A consumer's membership or commit failed; only the leaves are raised."""

    code = "consumer"


class CommitFailedError(ConsumerError):
    """The partitions are no longer this consumer's: nothing was committed, and others go on from the last commit."""

    code = "commit_failed"


class ConsumerFencedError(ConsumerError):
    """Another process speaks for this instance id since; this one must stop."""

    code = "consumer_fenced"


class ProducerError(ClientError):
    """Refused before anything was sent; only the leaves are raised."""

    code = "producer"


class RecordTooLargeError(ProducerError):
    """A record that no batch of the topic can hold."""

    code = "record_too_large"


class BadRecordError(ProducerError):
    """A key, value, header, timestamp or partition that cannot be sent; the message says what to change."""

    code = "bad_record"


class BufferFullError(ProducerError):
    """The buffer stayed full for as long as a send may wait: records come faster than the cluster takes them."""

    code = "buffer_full"
    is_retriable = True


class DeliveryTimeoutError(ProducerError):
    """The time for the delivery was up, and every attempt so far was known to have written nothing."""

    code = "delivery_timeout"
    is_retriable = True


class ClientClosedError(ProducerError):
    """The client or producer was closed before."""

    code = "closed"
