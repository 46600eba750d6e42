"""Applies one committed command to the image: deduplicate, dispatch, respond.

Every node applies the same commands in the same order and must reach the same image, byte for byte. So all code here
depends only on its arguments. The clock is the proposer's. Applied time never goes back, except by ``CorrectTime``.

A refusal (InvalidRequest, NotFound, Conflict, Fenced, Unavailable, LimitReached, FateUnknown) is the same on every
node: it becomes the response, and the command has no other effect. Any other error means that this node must stop; it
propagates.
"""

from dataclasses import dataclass

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

GroupsCommand = (
    groups.GroupCommand
    | classic_groups.ClassicGroupCommand
    | offsets.OffsetCommand
    | consumers.ConsumerCommand
)
"""Commands about groups, offsets and REST consumers."""

ClientCommand = (
    c.AllocateProducer
    | c.ForgetProducers
    | GroupsCommand
    | transactions.TransactionCommand
    | transactional_ids.TransactionalIdCommand
    | access.AccessCommand
)
"""Commands about producers, groups, offsets, REST consumers, transactions and access."""


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
        outcome = _dispatch(image, index, now_ms, envelope.command)
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


def _dispatch(image: Image, index: int, now_ms: WallMs, command: c.Command) -> Outcome:
    _check_allowed(image, command)
    match command:
        case (
            c.InitCluster()
            | c.ClaimController()
            | c.CheckImage()
            | c.CorrectTime()
            | c.SetFeatureLevel()
            | c.ForgetAudited()
            | c.NoteAction()
        ):
            return cluster.apply(image, command)
        case (
            c.RegisterBroker()
            | c.UnfenceBroker()
            | c.FenceBroker()
            | c.DrainBroker()
            | c.UnregisterBroker()
            | c.SetKafkaAddresses()
        ):
            return brokers.apply(image, index, command)
        case c.CreateTopic() | c.DeleteTopic() | c.AddPartitions() | c.AlterConfigs():
            return topics.apply(image, index, now_ms, command)
        case c.ElectLeaders() | c.AlterIsr() | c.GiveUpReplicas():
            return partitions.apply(image, command)
        case c.ReassignPartitions() | c.StepReassignments():
            return reassignments.apply(image, command)
        case _:
            return _dispatch_clients(image, index, now_ms, command)


def _dispatch_clients(image: Image, index: int, now_ms: WallMs, command: ClientCommand) -> Outcome:
    match command:
        case c.AllocateProducer() | c.ForgetProducers():
            return producers.apply(image, now_ms, command)
        case c.EndTransactions() | c.FinishMarkers():
            return transactions.apply(image, index, now_ms, command)
        case c.InitTransactionalId() | c.EnlistInTransactions():
            return transactional_ids.apply(image, index, now_ms, command)
        case (
            c.InitAccess()
            | c.SetAccessMode()
            | c.PutUser()
            | c.DeleteUser()
            | c.CreateToken()
            | c.DeleteTokens()
            | c.AlterAcls()
            | c.AlterQuota()
        ):
            return access.apply(image, index, now_ms, command)
        case _:
            return _dispatch_groups(image, index, now_ms, command)


def _dispatch_groups(image: Image, index: int, now_ms: WallMs, command: GroupsCommand) -> Outcome:
    match command:
        case c.AlterGroup() | c.DeleteGroup():
            return groups.apply(image, index, now_ms, command)
        case c.PutClassicGroup():
            return classic_groups.apply(image, index, now_ms, command)
        case c.CommitOffsets() | c.ExpireOffsets() | c.DeleteOffsets():
            return offsets.apply(image, index, now_ms, command)
        case c.PutConsumer() | c.DeleteConsumers():
            return consumers.apply(image, index, now_ms, command)


def _check_allowed(image: Image, command: c.Command) -> None:
    level = LEVELS[type(command)]
    if level > image.feature_level:
        raise FeatureLevelError(
            f"{type(command).__name__} needs feature level {level}; the cluster is at"
            f" {image.feature_level}."
        )
    if not image.cluster_id and not isinstance(command, c.InitCluster | c.ClaimController):
        raise NotReadyError("The cluster has no id yet.")
