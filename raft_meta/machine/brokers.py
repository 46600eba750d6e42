"""Brokers: registration, the end of sessions, draining and leaving.

A broker registers (fenced, leading nothing, under a new epoch). It is unfenced once it has caught up with the image. It
may drain, and it is fenced when its session ends. After that it may be unfenced again under the same epoch (it was only
slow), or register again (it was restarted).

``partitions`` describes how a registration affects replicas.
"""

from milena.model.errors import (
    BrokerIdInUseError,
    BrokerInUseError,
    BrokerNotFoundError,
    ConflictError,
    FeatureLevelError,
    InvalidRequestError,
)
from raft_meta.machine import bounds
from raft_meta.machine.commands import (
    DrainBroker,
    FenceBroker,
    RegisterBroker,
    SetKafkaAddresses,
    UnfenceBroker,
    UnregisterBroker,
)
from raft_meta.machine.copies import replace
from raft_meta.machine.groups import coordinators
from raft_meta.machine.image import Broker, Image
from raft_meta.machine.outcome import Outcome
from raft_meta.machine.topics import partitions

KAFKA_LEVEL = 12
"""Feature level from which on brokers have addresses for Kafka clients."""
LISTENERS_MAX = 8
"""Addresses of one broker."""
HOST_LENGTH_MAX = 255

BrokerCommand = (
    RegisterBroker
    | UnfenceBroker
    | FenceBroker
    | DrainBroker
    | UnregisterBroker
    | SetKafkaAddresses
)


def apply(image: Image, index: int, command: BrokerCommand) -> Outcome:
    """Apply a broker command; ``index`` becomes the epoch of a broker that registers.

    Raises:
        StaleControllerEpochError, StaleBrokerEpochError, BrokerNotFoundError, BrokerIdInUseError,
        BrokerInUseError, FeatureLevelError, ConflictError, InvalidRequestError: refused.
    """
    applied = _apply(image, index, command)
    return Outcome(coordinators.with_version(image, applied.image), applied.response)


def _apply(image: Image, index: int, command: BrokerCommand) -> Outcome:
    match command:
        case RegisterBroker():
            return _register(image, index, command)
        case UnfenceBroker():
            return _unfence(image, command)
        case FenceBroker():
            return _fence(image, command)
        case DrainBroker():
            return _drain(image, command)
        case UnregisterBroker():
            return _unregister(image, command)
        case SetKafkaAddresses():
            return _set_kafka_addresses(image, command)


def _register(image: Image, index: int, command: RegisterBroker) -> Outcome:
    before = image.brokers.get(command.broker_id)
    _check_registration(image, before, command)
    after = Broker(
        broker_id=command.broker_id,
        broker_epoch=index,
        directory_id=command.directory_id,
        incarnation=command.incarnation,
        api_url=command.api_url,
        peer_host=command.peer_host,
        peer_port=command.peer_port,
        rack=command.rack,
        is_fenced=True,
        is_draining=False,
        feature_min=command.feature_min,
        feature_max=command.feature_max,
        stored_epoch=command.last_broker_epoch,
    )
    changed = partitions.rejoined(
        image,
        command.broker_id,
        is_same_directory=before is None or _is_same_directory(before, command),
        reports=command.reports,
    )
    return Outcome(_with_broker(partitions.with_partitions(image, changed), after), index)


def _check_registration(image: Image, before: Broker | None, command: RegisterBroker) -> None:
    if command.broker_id < 1 or not command.directory_id:
        raise InvalidRequestError("A broker needs an id of at least 1 and a directory id.")
    if before is not None and not before.is_fenced and before.directory_id != command.directory_id:
        raise BrokerIdInUseError(
            f"Node id {command.broker_id} belongs to a live node at {before.api_url} with another"
            f" data directory, {before.directory_id}. Give this node another id, or stop that one."
        )
    if not command.feature_min <= image.feature_level <= command.feature_max:
        raise FeatureLevelError(
            f"The cluster is at feature level {image.feature_level}; node {command.broker_id} supports"
            f" {command.feature_min}..{command.feature_max}. Install a release that supports it."
        )


def _is_same_directory(before: Broker, command: RegisterBroker) -> bool:
    is_epoch_known = before.stored_epoch <= command.last_broker_epoch <= before.broker_epoch
    return before.directory_id == command.directory_id and is_epoch_known


def _unfence(image: Image, command: UnfenceBroker) -> Outcome:
    partitions.check_controller(image, command.controller_epoch)
    broker = partitions.current_broker(image, command.broker_id, command.broker_epoch)
    unfenced = replace(broker, is_fenced=False, stored_epoch=broker.broker_epoch)
    return Outcome(_with_broker(image, unfenced))


def _fence(image: Image, command: FenceBroker) -> Outcome:
    partitions.check_controller(image, command.controller_epoch)
    broker = partitions.current_broker(image, command.broker_id, command.broker_epoch)
    fenced = _with_broker(image, replace(broker, is_fenced=True))
    moved = partitions.apply_changes(fenced, command.changes)
    lost = partitions.lose_leader(moved.image, command.broker_id)
    return Outcome(partitions.with_partitions(moved.image, lost), moved.response)


def _drain(image: Image, command: DrainBroker) -> Outcome:
    partitions.check_controller(image, command.controller_epoch)
    broker = partitions.current_broker(image, command.broker_id, command.broker_epoch)
    draining = _with_broker(image, replace(broker, is_draining=True))
    return partitions.apply_changes(draining, command.changes)


def _set_kafka_addresses(image: Image, command: SetKafkaAddresses) -> Outcome:
    broker = partitions.current_broker(image, command.broker_id, command.broker_epoch)
    names = [name for name, _, _ in command.addresses]
    is_ordered = names == sorted(set(names)) and len(names) <= LISTENERS_MAX
    if not is_ordered or not all(_is_address(*address) for address in command.addresses):
        raise InvalidRequestError(
            f"A broker has at most {LISTENERS_MAX} listeners of different names, each with a host of up to "
            f"{HOST_LENGTH_MAX} characters and a port."
        )
    return Outcome(_with_broker(image, replace(broker, kafka_addresses=command.addresses)))


def _is_address(name: str, host: str, port: int) -> bool:
    is_named = 1 <= len(name) <= HOST_LENGTH_MAX and 1 <= len(host) <= HOST_LENGTH_MAX
    return is_named and 1 <= port <= 65_535


def check_removable(image: Image, broker_id: int) -> None:
    """Refuse to forget a broker that is still part of the cluster. Proposers also call it before the command.

    Raises:
        BrokerNotFoundError: no broker has this id.
        BrokerInUseError: the broker is alive, holds replicas, or is a voter; the message says what to do first.
    """
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise BrokerNotFoundError(f"Node {broker_id} is not registered.")
    if not broker.is_fenced:
        raise BrokerInUseError(f"Node {broker_id} is alive: stop it first, then remove it.")
    held = sum(part.names(broker_id) for part in image.partitions.values())
    if held:
        raise BrokerInUseError(
            f"Node {broker_id} still holds {held} replicas: move them to other nodes, or delete their"
            " topics, then remove it."
        )
    if broker_id in image.voters:
        raise voter_stays(broker_id)


def voter_stays(broker_id: int) -> BrokerInUseError:
    """Return the error for the removal of a voter."""
    return BrokerInUseError(
        f"Node {broker_id} is a voter of the metadata quorum, which it cannot leave: start it again."
    )


def _unregister(image: Image, command: UnregisterBroker) -> Outcome:
    if bounds.are_in_force(image):
        check_removable(image, command.broker_id)
    else:
        _check_removable_as_before(image, command)
    return Outcome(replace(image, brokers=image.brokers.delete(command.broker_id)))


def _check_removable_as_before(image: Image, command: UnregisterBroker) -> None:
    """Refuse with exactly the messages of nodes of the first level: responses are part of the image."""
    broker = image.brokers.get(command.broker_id)
    if broker is None:
        raise BrokerNotFoundError(f"Broker {command.broker_id} is not registered.")
    if not broker.is_fenced:
        raise ConflictError(f"Broker {command.broker_id} is alive: stop it first.")
    held = sum(command.broker_id in part.replicas for part in image.partitions.values())
    if held:
        raise ConflictError(f"Broker {command.broker_id} still holds {held} replicas.")


def _with_broker(image: Image, broker: Broker) -> Image:
    """Return the image with this broker; the same object if nothing changes."""
    if image.brokers.get(broker.broker_id) == broker:
        return image
    return replace(image, brokers=image.brokers.set(broker.broker_id, broker))
