"""Leader elections: plans for the controller, computed from one image and applied by a command.

A plan is a tuple of changes in order of partitions. Each change is valid only for one partition_epoch. Nothing here
changes an image, and the same image always gives the same plan.

A *sound* replica is neither suspect nor damaged. The candidates to lead a partition, best first:

1. a live, sound member of isr, in the order of replicas, draining brokers last. If the leader is lost, then a live,
   sound eligible replica in the same order (see ``Partition.eligible``);
2. if every member is suspect: the *last known* one, with the greatest (last epoch, log end offset). While it is away,
   no other member leads. Before all members are suspect it is better to wait, even for a member that has not reported
   yet: it may be sound. Source: KIP-966;
3. if the topic allows unclean elections and no sound in-sync replica is alive: a live replica that is not damaged,
   in-sync suspects before replicas that are out of sync. Records may be lost.

The new isr has the live, sound members: the others catch up with the leader first.
"""

from dataclasses import dataclass

from raft_meta.machine.commands import LeaderChange
from raft_meta.machine.image import Image, Partition, PartitionKey, Suspect
from raft_meta.machine.topics import configs, partitions


@dataclass(frozen=True, slots=True)
class _Fleet:
    """The live brokers, for one plan."""

    live: frozenset[int]
    draining: frozenset[int]

    @classmethod
    def of(cls, image: Image, *, without: int | None = None) -> "_Fleet":
        """Return the image's brokers, with ``without`` counted as dead."""
        live = frozenset(image.live_brokers()).difference(() if without is None else (without,))
        draining = (b.broker_id for b in image.brokers.values() if b.is_draining)
        return cls(live, frozenset(draining))


def plan_fence(image: Image, broker_id: int) -> tuple[LeaderChange, ...]:
    """Move a broker's leaderships, and remove it from every isr that another live member leads.

    The plan leaves out partitions that no other broker can lead. Fencing makes them leaderless, and their isr stays.
    """
    return _plan_departure(image, broker_id, with_eligible=True)


def plan_drain(image: Image, broker_id: int) -> tuple[LeaderChange, ...]:
    """Move the leaderships of a broker that is still alive. It keeps partitions that no other member of isr can lead.

    Eligible replicas are no candidates here: they may lack records that only acks=1 acknowledged, and can still catch
    up.
    """
    return _plan_departure(image, broker_id, with_eligible=False)


def _plan_departure(
    image: Image, broker_id: int, *, with_eligible: bool
) -> tuple[LeaderChange, ...]:
    fleet = _Fleet.of(image, without=broker_id)
    planned: list[LeaderChange] = []
    for key, partition in _in_order(image):
        change = None
        if partition.leader == broker_id:
            change = _clean_election(key, partition, fleet, partition.isr)
            if change is None and with_eligible:
                change = _clean_election(key, partition, fleet, partition.eligible)
        elif partition.leader is not None and broker_id in partition.isr:
            isr = tuple(member for member in partition.isr if member != broker_id)
            change = _change(key, partition, partition.leader, isr)
        if change is not None:
            planned.append(change)
    return tuple(planned)


def plan_elections(image: Image, *, with_unclean: bool = True) -> tuple[LeaderChange, ...]:
    """Elect leaders for leaderless partitions, if possible.

    ``with_unclean`` False leaves out unclean elections, for a controller that waits a while before them.
    """
    fleet = _Fleet.of(image)
    planned: list[LeaderChange] = []
    for key, partition in _in_order(image):
        if partition.leader is not None:
            continue
        change = _clean_election(key, partition, fleet, partition.isr)
        if change is None:
            change = _last_known(key, partition, fleet)
        if change is None and with_unclean and configs.allows_unclean(image.topics[key[0]]):
            change = _unclean_election(key, partition, fleet)
        if change is not None:
            planned.append(change)
    return tuple(planned)


def plan_shrinks(image: Image) -> tuple[LeaderChange, ...]:
    """Remove fenced brokers from every isr that another member leads.

    Fencing does that already. This plan is for partitions that fencing missed, because their partition_epoch had
    changed or the plan was too large for one command.
    """
    fleet = _Fleet.of(image)
    planned: list[LeaderChange] = []
    for key, partition in _in_order(image):
        isr = tuple(member for member in partition.isr if member in fleet.live)
        if partition.leader is not None and isr != partition.isr:
            planned.append(_change(key, partition, partition.leader, isr))
    return tuple(planned)


def plan_give_up(image: Image, broker_id: int, key: PartitionKey) -> LeaderChange | None:
    """Remove this broker's damaged copy from isr; None if it is the last copy in sync, or there is no leader."""
    partition = image.partitions.get(key)
    if partition is None or partition.leader is None:
        return None
    if partition.leader != broker_id:
        isr = tuple(member for member in partition.isr if member != broker_id)
        return _change(key, partition, partition.leader, isr)
    fleet = _Fleet.of(image, without=broker_id)
    return _clean_election(key, partition, fleet, partition.isr) or _clean_election(
        key, partition, fleet, partition.eligible
    )


def plan_preferred(image: Image) -> tuple[LeaderChange, ...]:
    """Move leadership back to the first replica if it is in sync, live and not draining.

    A reassignment that is about to finish is not changed: its leader may be one of the target already.
    """
    fleet = _Fleet.of(image)
    ready = fleet.live - fleet.draining
    return tuple(
        _change(key, partition, partition.replicas[0], partition.isr)
        for key, partition in _in_order(image)
        if partition.leader not in {None, partition.replicas[0]}
        and partition.replicas[0] in partition.isr
        and partition.replicas[0] in ready
        and (partition.moving is None or not set(partition.moving.target) <= set(partition.isr))
    )


def _in_order(image: Image) -> list[tuple[PartitionKey, Partition]]:
    return sorted(image.partitions.items(), key=_key_of)


def _key_of(item: tuple[PartitionKey, Partition]) -> PartitionKey:
    return item[0]


def _change(
    key: PartitionKey, partition: Partition, leader: int, isr: tuple[int, ...]
) -> LeaderChange:
    return LeaderChange(
        topic_id=key[0],
        partition=key[1],
        partition_epoch=partition.partition_epoch,
        leader=leader,
        isr=isr,
    )


def _clean_election(
    key: PartitionKey, partition: Partition, fleet: _Fleet, members: tuple[int, ...]
) -> LeaderChange | None:
    """Elect the first of the members that is live and sound, draining ones last."""
    sound = (fleet.live & frozenset(members)) - partitions.marked(partition)
    candidates = partitions.in_order(partition, sound)
    staying = tuple(member for member in candidates if member not in fleet.draining)
    isr = staying or candidates[:1]
    return _change(key, partition, isr[0], isr) if isr else None


def _last_known(key: PartitionKey, partition: Partition, fleet: _Fleet) -> LeaderChange | None:
    """Elect the suspect with the longest log, if every member is suspect and this one is live.

    A suspect that is away again needs no waiting: without a leader no log grows, so its mark is still true.
    """
    suspects = {suspect.broker_id: suspect for suspect in partition.suspects}
    if not suspects.keys() >= set(partition.isr):
        return None
    # max returns the first of equals, and isr is in the order of replicas.
    leader = max(partition.isr, key=lambda member: _reach(suspects[member]))
    return _change(key, partition, leader, (leader,)) if leader in fleet.live else None


def _reach(suspect: Suspect) -> tuple[int, int]:
    return suspect.last_epoch, suspect.log_end_offset


def _unclean_election(
    key: PartitionKey, partition: Partition, fleet: _Fleet
) -> LeaderChange | None:
    suspects = {suspect.broker_id: suspect for suspect in partition.suspects}
    able = fleet.live - frozenset(partition.damaged)
    back = [member for member in partition.isr if member in able and member in suspects]
    if back:
        leader: int | None = max(back, key=lambda member: _reach(suspects[member]))
    else:
        # A replica that a move is adding may be empty, so even an unclean election must not choose it.
        ready = [replica for replica in partition.settled if replica in able]
        staying = [replica for replica in ready if replica not in fleet.draining]
        leader = next(iter(staying or ready), None)
    if leader is None:
        return None
    return LeaderChange(
        topic_id=key[0],
        partition=key[1],
        partition_epoch=partition.partition_epoch,
        leader=leader,
        isr=(leader,),
        is_unclean=True,
    )
