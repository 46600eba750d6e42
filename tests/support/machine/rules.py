"""A second implementation of the state machine's rules, without its code, for property tests."""

from collections.abc import Iterator

from raft_meta.machine import commands as c
from raft_meta.machine.image import Ending, Image, PartitionKey, PartitionSet, TransactionKey

Offsets = dict[tuple[str, PartitionKey], int]
Endings = dict[tuple[PartitionKey, TransactionKey], Ending]


def keys(partitions: PartitionSet) -> set[PartitionKey]:
    return {(topic_id, number) for topic_id, numbers in partitions for number in numbers}


def flat(image: Image) -> Offsets:
    """Return the committed offsets of every group."""
    return {
        (group_id, key): committed.offset
        for group_id, offsets in image.offsets.items()
        for key, committed in offsets.items()
    }


def may_commit(image: Image, commit: c.GroupCommit) -> bool:
    """Return whether a group accepts these offsets, from any coordinator."""
    group = image.groups.get(commit.group_id)
    members = group.members if group else ()
    wanted = {(o.topic_id, o.partition) for o in commit.offsets}
    if not wanted <= set(image.partitions) or min(o.offset for o in commit.offsets) < 0:
        return False
    if commit.member_id is None:
        return not members
    return any(
        member.member_id == commit.member_id
        and member.member_epoch == commit.member_epoch
        and wanted <= keys(member.held)
        for member in members
    )


class TransactionTwin:
    """Computes ends and markers of transactions independently, from the state of an image."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self.epochs = {
            found.producer_id: found.producer_epoch for found in image.producers.values()
        }
        self.last = {found.producer_id: found.last for found in image.producers.values()}
        self.offsets = flat(image)
        self.groups = set(image.groups)
        self.ending: Endings = {
            (key, transaction): ending
            for key, endings in image.ending.items()
            for transaction, ending in endings.items()
        }

    def end(self, end: c.TransactionEnd) -> bool:
        """Apply an end; return whether the transaction is now ended as requested."""
        epoch = self.epochs.get(end.producer_id)
        if epoch == end.producer_epoch + 1:
            # A transaction whose epoch was taken over has ended neither way: that epoch belongs to the new holder of
            # the id.
            return self.last[end.producer_id] == ("committed" if end.is_commit else "aborted")
        if epoch != end.producer_epoch or any(_nonsense(end)) or self._is_above_level(end):
            return False
        is_committed = end.is_commit and self._may(end)
        self.epochs[end.producer_id] += 1
        self.last[end.producer_id] = "committed" if is_committed else "aborted"
        if is_committed:
            self._commit(end)
        return is_committed == end.is_commit

    def _is_above_level(self, end: c.TransactionEnd) -> bool:
        return end.home_count > 1 and self.image.feature_level < 10

    def _may(self, end: c.TransactionEnd) -> bool:
        for extent in end.extents:
            if (extent.topic_id, extent.partition) not in self.image.partitions:
                return False
            configs = self.image.topics[extent.topic_id].configs
            if configs.get("flush.messages", "1") != "1":
                return False
            if configs.get("unclean.leader.election.enable") == "true":
                return False
        return all(may_commit(self.image, commit) for commit in end.offsets)

    def _commit(self, end: c.TransactionEnd) -> None:
        for commit in end.offsets:
            self.groups.add(commit.group_id)
            for o in commit.offsets:
                self.offsets[commit.group_id, (o.topic_id, o.partition)] = o.offset
        homes = [end.is_keyed and number < end.home_count for number in range(len(end.extents))]
        for extent, is_home in zip(end.extents, homes, strict=True):
            at = ((extent.topic_id, extent.partition), (end.producer_id, end.producer_epoch))
            kept = end.extents if is_home else ()
            self.ending[at] = Ending(end_offset=extent.end_offset, extents=kept)

    def finish(self, marker: c.FinishedMarker) -> bool:
        """Apply a marker; return whether the partition had such an ending."""
        transaction = (marker.producer_id, marker.producer_epoch)
        key = (marker.topic_id, marker.partition)
        return self.ending.pop((key, transaction), None) is not None

    def delete(self, topic_id: str) -> None:
        """Delete a topic."""
        self.ending = {at: ending for at, ending in self.ending.items() if at[0][0] != topic_id}


def _nonsense(end: c.TransactionEnd) -> Iterator[bool]:
    yield not end.is_commit and bool(end.extents or end.offsets)
    yield end.is_keyed and not 1 <= end.home_count <= len(end.extents)
    yield not end.is_keyed and end.home_count != 1
    yield len({(e.topic_id, e.partition) for e in end.extents}) != len(end.extents)
    yield any(e.end_offset < 1 or not -1 <= e.base_offset < e.end_offset for e in end.extents)
