"""Partitions that this node follows at one leader's node: by number, with what the leader has been told of each. Pure.

``node.replication.fetcher`` drives it, and says when something is told.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from milena.model.types import NO_OFFSET
from node.replica.group_commit import SHORT_SYNC_BYTES
from node.replica.runner import PartitionRunner


@dataclass(slots=True, eq=False)
class Followed:
    """One partition. ``index``: our number for it in the sessions with this leader."""

    index: int
    runner: PartitionRunner
    leader_epoch: int
    told_start: int = NO_OFFSET
    """Where the leader believes our log to start."""
    is_syncing: bool = False
    """Somebody waits until all that is written is stored."""
    syncing_bytes: int = 0
    """How much of that the last answer brought."""
    is_resting: bool = False
    """Nothing of it is told for a moment, so that no more of it comes: the disk is for others."""

    @property
    def is_stored(self) -> bool:
        """Whether its position may be told: that acknowledges everything below it."""
        log = self.runner.log
        return log.stored_end_offset >= log.log_end_offset


class FollowedPartitions:
    """All that is followed there.

    Invariants:
        - ``changed`` and those that sync are followed, and so is nothing under ``forgotten``;
        - ``syncing_bytes`` and ``short_syncs`` are sums over those that sync.
    """

    def __init__(self) -> None:
        self.changed: dict[int, Followed] = {}
        """Those whose position the leader does not know."""
        self.forgotten: list[int] = []
        """Numbers that the leader may forget."""
        self.refused: list[int] = []
        """Numbers of those whose records came damaged, which the leader does not know."""
        self.syncing_bytes = 0
        self.short_syncs = 0
        self._by_index: dict[int, Followed] = {}
        self._by_runner: dict[PartitionRunner, Followed] = {}
        self._next_index = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is followed."""
        return not self._by_index

    def get(self, index: int) -> Followed | None:
        """The partition of a number; None: it is not followed any more."""
        return self._by_index.get(index)

    def add(self, runner: PartitionRunner) -> bool:
        """Follow a partition, in its present leader epoch; False: that was so before."""
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
        """Follow it no more; False: it was not followed."""
        followed = self._by_runner.pop(runner, None)
        if followed is None:
            return False
        del self._by_index[followed.index]
        self.changed.pop(followed.index, None)
        self.end_sync(followed)
        self.forgotten.append(followed.index)
        return True

    def has(self, followed: Followed) -> bool:
        """Whether it is followed still."""
        return self._by_index.get(followed.index) is followed

    # -- syncs -----------------------------------------------------------------------------------

    def begin_sync(self, followed: Followed, data_bytes: int) -> None:
        """Note that it waits for a sync of what an answer brought."""
        followed.is_syncing, followed.syncing_bytes = True, data_bytes
        self.syncing_bytes += data_bytes
        self.short_syncs += data_bytes <= SHORT_SYNC_BYTES

    def end_sync(self, followed: Followed) -> None:
        """Note that it waits for no sync any more."""
        if followed.is_syncing:
            followed.is_syncing = False
            self.syncing_bytes -= followed.syncing_bytes
            self.short_syncs -= followed.syncing_bytes <= SHORT_SYNC_BYTES

    # -- what is told ----------------------------------------------------------------------------

    def begin_session(self) -> None:
        """The leader knows nothing of us."""
        self.changed = dict(self._by_index)
        self.forgotten.clear()
        for followed in self._by_index.values():
            followed.told_start = NO_OFFSET

    def take_forgotten(self) -> list[int]:
        """Numbers that the leader may forget; it is told with this."""
        forgotten, self.forgotten = self.forgotten, []
        return forgotten

    def take_refused(self) -> list[int]:
        """Of what is still followed, where the records came damaged; it is told with this."""
        refused, self.refused = self.refused, []
        return [index for index in refused if index in self._by_index]

    def tell_position(self, followed: Followed) -> list[object]:
        """Where we are in it; the leader knows that from here on."""
        del self.changed[followed.index]
        runner = followed.runner
        log = runner.log
        return [
            followed.index,
            runner.topic_id,
            runner.partition,
            followed.leader_epoch,
            log.log_end_offset,
            log.last_epoch,
        ]

    @staticmethod
    def tell_log_starts(those: Iterable[Followed]) -> list[list[int]]:
        """Pairs for those that the leader does not know; it knows them from here on."""
        moved = []
        for followed in those:
            start = followed.runner.log.log_start_offset
            if followed.told_start != start:
                followed.told_start = start
                moved.append([followed.index, start])
        return moved
