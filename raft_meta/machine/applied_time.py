"""The correction of the applied time after a wrong clock has advanced it.

The applied time never goes back: it is the latest time that any proposer put into a command. If the clock of one
proposer was ahead, the applied time stays ahead even after that clock is corrected, until the other clocks reach it.
Until then, tokens count as expired too early, and offsets are kept too long. So the controller, which knows the
cluster's time, proposes a correction.
"""

from collections.abc import Callable
from typing import TypeVar

from immutables import Map

from milena.model.types import WallMs
from raft_meta.machine.commands import CorrectTime
from raft_meta.machine.copies import replace
from raft_meta.machine.image import (
    AllocatedProducer,
    CommittedOffset,
    Group,
    Image,
    KafkaTransactionalId,
    PartitionKey,
    Token,
    Topic,
)
from raft_meta.machine.outcome import Outcome
from raft_meta.machine.topics.partitions import check_controller

K = TypeVar("K")
V = TypeVar("V")


def correct(image: Image, command: CorrectTime) -> Outcome:
    """Set the applied time, and all stored times after it, back to the command's time; never forward.

    Raises:
        StaleControllerEpochError: another broker has become the controller.
    """
    check_controller(image, command.controller_epoch)
    now_ms = command.now_ms
    if now_ms >= image.now_ms:
        return Outcome(image)

    def topic(of: Topic) -> Topic:
        growths = tuple((count, min(at_ms, now_ms)) for count, at_ms in of.growths)
        if of.created_ms <= now_ms and growths == of.growths:
            return of
        return replace(of, created_ms=min(of.created_ms, now_ms), growths=growths)

    def producer(of: AllocatedProducer) -> AllocatedProducer:
        return of if of.used_ms <= now_ms else replace(of, used_ms=now_ms)

    def transactional_id(of: KafkaTransactionalId) -> KafkaTransactionalId:
        # 0 would mean that no transaction is open.
        began_ms = min(of.began_ms, WallMs(max(1, now_ms)))
        return of if of.began_ms == began_ms else replace(of, began_ms=began_ms)

    def group(of: Group) -> Group:
        return of if of.emptied_ms <= now_ms else replace(of, emptied_ms=now_ms)

    def offset(of: CommittedOffset) -> CommittedOffset:
        return of if of.commit_ms <= now_ms else replace(of, commit_ms=now_ms)

    def offsets(of: Map[PartitionKey, CommittedOffset]) -> Map[PartitionKey, CommittedOffset]:
        return _changed(of, offset)

    def token(of: Token) -> Token:
        return of if of.created_ms <= now_ms else replace(of, created_ms=now_ms)

    after = replace(
        image,
        now_ms=now_ms,
        topics=_changed(image.topics, topic),
        producers=_changed(image.producers, producer),
        transactional_ids=_changed(image.transactional_ids, transactional_id),
        groups=_changed(image.groups, group),
        offsets=_changed(image.offsets, offsets),
        tokens=_changed(image.tokens, token),
    )
    return Outcome(after)


def _changed(values: Map[K, V], change: Callable[[V], V]) -> Map[K, V]:
    """Return ``values`` with ``change`` applied to each value; the same object if no value changes."""
    changed = {key: after for key, value in values.items() if (after := change(value)) is not value}
    return values.update(changed) if changed else values
