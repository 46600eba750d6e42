"""Applies one committed command to the image: deduplicate, dispatch, respond.

Every node applies the same commands in the same order and must reach the same image, byte for byte. So all code here
depends only on its arguments. The clock is the proposer's. Applied time never goes back, except by ``CorrectTime``.

A refusal (InvalidRequest, NotFound, Conflict, Fenced, Unavailable, LimitReached, FateUnknown) is the same on every
node: it becomes the response, and the command has no other effect. Any other error means that this node must stop; it
propagates.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

from milena.model.errors import (
    ConflictError,
    FateUnknownError,
    FeatureLevelError,
    FencedError,
    InvalidRequestError,
    LimitReachedError,
    MilenaError,
    NotFoundError,
    NotReadyError,
    UnavailableError,
)
from milena.model.types import WallMs
from raft_meta.machine import (
    brokers,
    cluster,
    producers,
    proposers,
    transactional_ids,
    transactions,
)
from raft_meta.machine import commands as c
from raft_meta.machine.access import access, audit
from raft_meta.machine.codec import (
    CODES_LEVEL,
    LEVELS,
    encode_code,
    encode_error,
    encode_response,
)
from raft_meta.machine.copies import replace
from raft_meta.machine.groups import classic_groups, consumers, groups, offsets
from raft_meta.machine.image import AuditEntry, Image
from raft_meta.machine.outcome import Outcome
from raft_meta.machine.topics import partitions, reassignments, topics

_REFUSALS = (
    InvalidRequestError,
    NotFoundError,
    ConflictError,
    FencedError,
    UnavailableError,
    LimitReachedError,
    FateUnknownError,
)

APPLY: dict[type, Callable[[Image, int, WallMs, Any], Outcome]] = {
    kind: apply_kind
    for kinds, apply_kind in (
        (access.AccessCommand, access.apply),
        (
            brokers.BrokerCommand,
            lambda image, index, _, command: brokers.apply(image, index, command),
        ),
        (classic_groups.ClassicGroupCommand, classic_groups.apply),
        (cluster.ClusterCommand, lambda image, _, __, command: cluster.apply(image, command)),
        (consumers.ConsumerCommand, consumers.apply),
        (groups.GroupCommand, groups.apply),
        (offsets.OffsetCommand, offsets.apply),
        (
            partitions.PartitionCommand,
            lambda image, _, __, command: partitions.apply(image, command),
        ),
        (
            c.AllocateProducer | c.ForgetProducers,
            lambda image, _, now_ms, command: producers.apply(image, now_ms, command),
        ),
        (
            reassignments.ReassignmentCommand,
            lambda image, _, __, command: reassignments.apply(image, command),
        ),
        (topics.TopicCommand, topics.apply),
        (transactional_ids.TransactionalIdCommand, transactional_ids.apply),
        (transactions.TransactionCommand, transactions.apply),
    )
    for kind in get_args(kinds) or (kinds,)
}
"""How to apply each type of command."""


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of one command. ``error``: the refusal, which ``response`` also holds, encoded.

    A recognised retry has the response that the image keeps, and no ``error``. ``change``: the audit entry of the
    command, if any.
    """

    image: Image
    response: bytes
    error: MilenaError | None = None
    change: AuditEntry | None = None


def apply(image: Image, index: int, envelope: c.Envelope) -> Applied:
    """Apply the command at ``index``, which must be above the image's index.

    Raises:
        CorruptLogError: the cluster has outgrown this release; the node must stop.
    """
    assert index > image.index, f"index {index} is not above {image.index}, the last applied"
    now_ms = WallMs(max(image.now_ms, envelope.now_ms))
    try:
        repeated = proposers.earlier_response(image, envelope)
    except _REFUSALS as error:
        return Applied(replace(image, index=index, now_ms=now_ms), encode_error(error), error)
    if repeated is not None:
        return Applied(replace(image, index=index, now_ms=now_ms), repeated)
    refusal: MilenaError | None = None
    try:
        _check_allowed(image, envelope.command)
        outcome = APPLY[type(envelope.command)](image, index, now_ms, envelope.command)
        response = kept = encode_response(outcome.response)
    except _REFUSALS as error:
        outcome, response, refusal = Outcome(image), encode_error(error), error
        kept = encode_code(error) if image.feature_level >= CODES_LEVEL else response
    if outcome.image.now_ms < image.now_ms:
        now_ms = outcome.image.now_ms
    after, change = outcome.image, None
    if refusal is None:
        after, change = audit.noted(image, after, envelope, index=index, now_ms=now_ms)
    after = replace(
        after,
        index=index,
        now_ms=now_ms,
        proposers=proposers.with_response(after, envelope, kept),
    )
    return Applied(after, response, refusal, change)


def _check_allowed(image: Image, command: c.Command) -> None:
    level = LEVELS[type(command)]
    if level > image.feature_level:
        raise FeatureLevelError(
            f"{type(command).__name__} needs feature level {level}; the cluster is at"
            f" {image.feature_level}."
        )
    if not image.cluster_id and not isinstance(command, c.InitCluster | c.ClaimController):
        raise NotReadyError("The cluster has no id yet.")
