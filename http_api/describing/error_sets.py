"""Sets of errors that several endpoints may raise, for the tables of endpoints."""

from http_api.protocol.errors import InvalidFieldError
from milena.model import errors as e

TOPIC_ERRORS = (e.TopicNotFoundError, e.NoQuorumError)
"""Errors of a topic's lookup. Before a node responds 404, it asks the quorum, which may not respond."""
PARTITION_ERRORS = (*TOPIC_ERRORS, e.PartitionNotFoundError)
LEADER_ERRORS = (e.NoLeaderError, e.NotLeaderError, e.NotReadyError, e.ReplicaDamagedError)
"""Errors of a request to the leader of a partition."""
CHANGE_ERRORS = (
    e.NoQuorumError,
    e.NotReadyError,
    e.FateUnknownError,
    e.FeatureLevelError,
    e.StaleBrokerEpochError,
)
"""Errors of a change of the replicated state."""
CREATE_TOPIC_ERRORS = (
    InvalidFieldError,
    e.InvalidTopicNameError,
    e.InvalidConfigError,
    e.InvalidReplicationError,
    e.TooManyReplicasError,
    e.TopicExistsError,
    *CHANGE_ERRORS,
)
WRITE_IN_TRANSACTION_ERRORS = (
    e.NoQuorumError,
    e.StaleProducerEpochError,
    e.TransactionNotFoundError,
    e.TransactionInProgressError,
    e.TopicNotTransactionalError,
    e.TooManyTransactionsError,
)
"""Errors of a write in a transaction."""
COORDINATOR_ERRORS = (
    e.NotCoordinatorError,
    e.NoQuorumError,
    e.NotReadyError,
    e.FateUnknownError,
    e.FeatureLevelError,
    e.GroupLimitError,
)
"""Errors of a request to a group's coordinator, which may need a change of the replicated state."""
GROUP_ERRORS = (e.InvalidConsumerError, e.GroupNotFoundError, e.NoQuorumError)
"""Errors of a group's lookup. The id may be invalid. Before a node responds 404, it asks the quorum."""
GROUP_CHANGE_ERRORS = (e.GroupNotEmptyError, e.GroupChangedError)
"""Errors of a change of a group that is in use or changes at the same time."""
RESET_ERRORS = (
    *PARTITION_ERRORS,
    *LEADER_ERRORS,
    *GROUP_CHANGE_ERRORS,
    *COORDINATOR_ERRORS,
    InvalidFieldError,
    e.InvalidConsumerError,
    e.OffsetOutOfRangeError,
    e.TooManyRequestsError,
)
CONSUMER_ERRORS = (e.ConsumerNotFoundError, *COORDINATOR_ERRORS)
"""Errors of any call of a REST consumer, which its group's coordinator serves."""
