"""The partitions that this node follows at one leader's node, and what that node knows of each. Pure.

``node.replication.fetcher`` uses this module and decides when positions are sent.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from milena.model.types import NO_OFFSET
from node.replica.group_commit import SHORT_SYNC_BYTES
from node.replica.runner import PartitionRunner


@dataclass(slots=True, eq=False)
class Followed:
    """One followed partition. ``index``: the number by which the fetch sessions with the leader name it."""

    index: int
    runner: PartitionRunner
    leader_epoch: int
    told_start: int = NO_OFFSET
    """The log start that was sent last; ``NO_OFFSET`` if the leader does not know the log start."""
    is_syncing: bool = False
    """Whether a callback will be called when everything written is stored."""
    syncing_bytes: int = 0
    """The number of bytes of the last response that wait for this sync."""
    is_resting: bool = False
    """Whether its position is held back for a moment, so that the leader sends no more and others can use the disk."""

    @property
    def is_stored(self) -> bool:
        """Whether everything written is stored. Only then may the position be sent: it acknowledges these records."""
        log = self.runner.log
        return log.stored_end_offset >= log.log_end_offset


class FollowedPartitions:
    """The partitions that this node follows at one leader's node.

    Invariants:
        - Each partition in ``changed``, and each that syncs, is followed. No number in ``forgotten`` is followed.
        - ``syncing_bytes`` and ``short_syncs`` are sums over the partitions that sync.
    """

    def __init__(self) -> None:
        self.changed: dict[int, Followed] = {}
        """Partitions whose present position the leader does not know."""
        self.forgotten: list[int] = []
        """Numbers of partitions that are not followed any more, which the leader does not know yet."""
        self.refused: list[int] = []
        """Numbers of partitions whose records arrived damaged, which the leader does not know yet."""
        self.syncing_bytes = 0
        self.short_syncs = 0
        self._by_index: dict[int, Followed] = {}
        self._by_runner: dict[PartitionRunner, Followed] = {}
        self._next_index = 0

    @property
    def is_empty(self) -> bool:
        """Whether no partition is followed."""
        return not self._by_index

    def get(self, index: int) -> Followed | None:
        """Return the partition with this number; None if it is not followed any more."""
        return self._by_index.get(index)

    def add(self, runner: PartitionRunner) -> bool:
        """Follow a partition in its present leader epoch; return False if it is followed in that epoch already."""
        followed = self._by_runner.get(runner)
        if followed is None:
            followed = Followed(self._next_index, runner, runner.leader_epoch)
            self._next_index += 1
            self._by_index[followed.index] = self._by_runner[runner] = followed
        elif followed.leader_epoch == runner.leader_epoch:
            return False
        followed.leader_epoch = runner.leader_epoch
        followed.told_start = NO_OFFSET
        self.changed[followed.index] = followed
        return True

    def remove(self, runner: PartitionRunner) -> bool:
        """Stop following a partition; return False if it was not followed."""
        followed = self._by_runner.pop(runner, None)
        if followed is None:
            return False
        del self._by_index[followed.index]
        self.changed.pop(followed.index, None)
        self.end_sync(followed)
        self.forgotten.append(followed.index)
        return True

    def has(self, followed: Followed) -> bool:
        """Return whether the partition is still followed."""
        return self._by_index.get(followed.index) is followed

    # -- syncs -----------------------------------------------------------------------------------

    def begin_sync(self, followed: Followed, data_bytes: int) -> None:
        """Note that the partition waits for a sync of ``data_bytes`` from a response."""
        followed.is_syncing, followed.syncing_bytes = True, data_bytes
        self.syncing_bytes += data_bytes
        self.short_syncs += data_bytes <= SHORT_SYNC_BYTES

    def end_sync(self, followed: Followed) -> None:
        """Note that the partition does not wait for a sync any more."""
        if followed.is_syncing:
            followed.is_syncing = False
            self.syncing_bytes -= followed.syncing_bytes
            self.short_syncs -= followed.syncing_bytes <= SHORT_SYNC_BYTES

    # -- the next request ------------------------------------------------------------------------

    def begin_session(self) -> None:
        """Note that the leader knows nothing, because a new session starts."""
        self.changed = dict(self._by_index)
        self.forgotten.clear()
        for followed in self._by_index.values():
            followed.told_start = NO_OFFSET

    def take_forgotten(self) -> list[int]:
        """Return the numbers of partitions that are not followed any more, and clear the list: the caller sends it."""
        forgotten, self.forgotten = self.forgotten, []
        return forgotten

    def take_refused(self) -> list[int]:
        """Return the numbers of partitions whose records arrived damaged: the caller sends it, after the positions.

        A partition is left for later while the leader does not know its position: damage is reported for the place to
        which the position points.
        """
        found = [index for index in self.refused if index in self._by_index]
        self.refused = [index for index in found if index in self.changed]
        return [index for index in found if index not in self.changed]

    def tell_position(self, followed: Followed) -> list[object]:
        """Return the position to send, ``[index, topic_id, partition, leader_epoch, offset, last_epoch]``.

        The leader then counts as knowing it, so the caller must send it or start a new session.
        """
        del self.changed[followed.index]
        runner = followed.runner
        log = runner.log
        return [
            followed.index,
            runner.topic_id,
            runner.partition,
            followed.leader_epoch,
            log.log_end_offset,
            log.state.epochs.last_epoch,
        ]

    @staticmethod
    def tell_log_starts(those: Iterable[Followed]) -> list[list[int]]:
        """Return pairs ``[index, log_start]`` for the log starts that the leader does not know.

        The leader then counts as knowing them, so the caller must send them or start a new session.
        """
        moved = []
        for followed in those:
            start = followed.runner.log.log_start_offset
            if followed.told_start != start:
                followed.told_start = start
                moved.append([followed.index, start])
        return moved
