"""The cluster itself: its id, voters, controller, feature level and time, and the commands about its audit log."""

from milena.model.errors import CorruptLogError, FeatureLevelError, InvalidRequestError
from raft_meta.machine import applied_time
from raft_meta.machine.access import audit
from raft_meta.machine.codec import FEATURE_LEVEL_MAX
from raft_meta.machine.commands import (
    CheckImage,
    ClaimController,
    CorrectTime,
    ForgetAudited,
    InitCluster,
    NoteAction,
    SetFeatureLevel,
)
from raft_meta.machine.copies import replace
from raft_meta.machine.image import Image
from raft_meta.machine.outcome import Outcome

ClusterCommand = (
    InitCluster
    | ClaimController
    | CheckImage
    | CorrectTime
    | SetFeatureLevel
    | ForgetAudited
    | NoteAction
)


def apply(image: Image, command: ClusterCommand) -> Outcome:
    """Apply a cluster command.

    Raises:
        InvalidRequestError, FeatureLevelError, StaleControllerEpochError: the command is refused.
        CorruptLogError: this node's release does not know the cluster's feature level; the node must stop.
    """
    match command:
        case ForgetAudited() | NoteAction():
            return audit.apply(image, command)
        case InitCluster():
            return _init(image, command)
        case ClaimController():
            return _claim_controller(image, command)
        case CheckImage():
            return Outcome(image)  # a mark in the log: see ``marks``
        case CorrectTime():
            return applied_time.correct(image, command)
        case SetFeatureLevel():
            return _set_feature_level(image, command)


def _init(image: Image, command: InitCluster) -> Outcome:
    if image.cluster_id:
        return Outcome(image, image.cluster_id)
    if not command.cluster_id or not command.voters or command.feature_level < 1:
        raise InvalidRequestError(
            "A cluster needs an id, voters and a feature level of at least 1."
        )
    _check_known(command.feature_level)
    after = replace(
        image,
        cluster_id=command.cluster_id,
        voters=tuple(sorted(set(command.voters))),
        feature_level=command.feature_level,
    )
    return Outcome(after, command.cluster_id)


def _claim_controller(image: Image, command: ClaimController) -> Outcome:
    epoch = image.controller_epoch + 1
    after = replace(image, controller_id=command.broker_id, controller_epoch=epoch)
    return Outcome(after, epoch)


def _set_feature_level(image: Image, command: SetFeatureLevel) -> Outcome:
    level = command.feature_level
    if level == image.feature_level:
        return Outcome(image)
    if level < image.feature_level:
        raise FeatureLevelError(
            f"The feature level is {image.feature_level} and never falls; {level} was asked for."
        )
    for broker_id in sorted(image.brokers):
        broker = image.brokers[broker_id]
        if not broker.feature_min <= level <= broker.feature_max:
            raise FeatureLevelError(
                f"Node {broker_id} supports feature levels {broker.feature_min}..{broker.feature_max},"
                f" not {level}. Upgrade it first, or unregister it if it is gone for good."
            )
    _check_known(level)
    return Outcome(replace(image, feature_level=level))


def supported_level(image: Image) -> int:
    """Return the highest feature level that every broker supports.

    While a voter is not registered as a broker, return the present level. That voter may run an older release. If the
    level rose, the voter would have to be upgraded before it could take part.
    """
    if not all(voter in image.brokers for voter in image.voters):
        return image.feature_level
    common = min((broker.feature_max for broker in image.brokers.values()), default=1)
    least = max((broker.feature_min for broker in image.brokers.values()), default=1)
    level = min(common, FEATURE_LEVEL_MAX)
    return max(level, image.feature_level) if level >= least else image.feature_level


def _check_known(level: int) -> None:
    """Raise CorruptLogError, which stops the node, if this release does not know the feature level.

    If the node went on, it would refuse commands that the other nodes apply, and its image would differ from theirs.
    """
    if level > FEATURE_LEVEL_MAX:
        raise CorruptLogError(
            f"The cluster is at feature level {level}; this release knows up to {FEATURE_LEVEL_MAX}."
            " Upgrade this node."
        )
