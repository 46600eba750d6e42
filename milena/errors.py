"""What a client can be told: a small tree, each leaf with one meaning for the caller.

    ClientError
    ├── UnreachableError         no node answered: nothing is known to have been asked
    ├── UnexpectedAnswerError    an answer that is not ours: another server, another version
    └── AnswerError              the node refused, and said why
        ├── TargetNotFoundError  the thing named does not exist
        ├── TargetExistsError    the thing to create is already there
        └── UnknownResultError   it may or may not have been done

Every one of them carries a sentence for people; ``AnswerError`` adds the HTTP status and the API's error code.
"""

from storage.errors import MilenaError


class ClientError(MilenaError):
    """Root of the client's tree; only its leaves and ``AnswerError`` are raised."""

    code = "client"


class UnreachableError(ClientError):
    """No connection, or none that lasted until the answer of a request that changes nothing."""

    code = "unreachable"
    is_retriable = True


class UnexpectedAnswerError(ClientError):
    """The answer does not have the shape that the API promises."""

    code = "unexpected_answer"


class AnswerError(ClientError):
    """The node answered with an error.

    ``status`` is HTTP's, ``error_code`` the API's (usually ``status * 100 + n``), or None.
    """

    code = "refused"

    def __init__(self, message: str, *, status: int, error_code: int | None) -> None:
        super().__init__(message)
        self.status = status
        self.error_code = error_code


class TargetNotFoundError(AnswerError):
    """404: no such topic, partition or cluster."""

    code = "target_not_found"


class TargetExistsError(AnswerError):
    """The topic to create is there already."""

    code = "target_exists"


class UnknownResultError(AnswerError):
    """504, or a connection lost after a change was sent: it may or may not have happened."""

    code = "unknown_result"
