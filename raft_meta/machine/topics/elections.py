"""Leader elections: plans for the controller. A plan is computed from one image, and a command applies it.

A plan is a tuple of changes, in order of partitions. Each change names a partition_epoch and is valid only for it.
Functions here change no image, and return the same plan for the same image.

A member of isr is *suspect* if its recovery cut records, *damaged* if its copy is lost or damaged, and *sound* if
neither. The candidates to lead a partition, best first:

1. A live, sound member of isr, in the order of replicas, draining brokers last. If the leader is lost and there is no
   such member: a live, sound eligible replica in the same order (see ``Partition.eligible``).
2. If every member is suspect: the *last known* one, with the greatest (last epoch, log end offset). While this member
   is dead, no other member leads. As long as one member is not suspect, the partition waits for it, even if it has not
   reported yet: it may be sound. Source: KIP-966.
3. If the topic allows unclean elections and no sound in-sync replica is alive: a live replica that is not damaged.
   Suspects in isr come before replicas that are out of sync. Records may be lost.

The new isr has only live, sound members. The other replicas must catch up with the leader before they join it.
"""

from dataclasses import dataclass
from operator import itemgetter

from raft_meta.machine.commands import LeaderChange
from raft_meta.machine.image import Image, Partition, PartitionKey, Suspect
from raft_meta.machine.topics import configs, partitions


@dataclass(frozen=True, slots=True)
class _Fleet:
    """The ids of live brokers, and of draining ones, for one plan."""

    live: frozenset[int]
    draining: frozenset[int]

    @classmethod
    def of(cls, image: Image, *, without: int | None = None) -> "_Fleet":
        """Return the image's live and draining brokers. ``without``: a broker that counts as dead."""
        live = frozenset(image.live_brokers()).difference(() if without is None else (without,))
        draining = (b.broker_id for b in image.brokers.values() if b.is_draining)
        return cls(live, frozenset(draining))


def plan_fence(image: Image, broker_id: int) -> tuple[LeaderChange, ...]:
    """Plan to move a broker's leaderships, and to remove it from every isr that another live member leads.

    The plan leaves out partitions that no other broker can lead. When the broker is fenced, these have no leader, and
    their isr stays.
    """
    return _plan_departure(image, broker_id, with_eligible=True)


def plan_drain(image: Image, broker_id: int) -> tuple[LeaderChange, ...]:
    """Plan to move the leaderships of a broker that is alive. It keeps partitions that no other isr member can lead.

    Eligible replicas are no candidates here. They may lack records that were acknowledged with acks=1. While the
    leader is alive, they can still catch up.
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
    """Plan to elect leaders for partitions without one, where possible.

    ``with_unclean``: False leaves out unclean elections. The controller waits a while before them.
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
    """Plan to remove fenced brokers from every isr that another member leads.

    Usually the command that fences a broker does this. It misses a partition if the partition_epoch has changed, or if
    the plan was too large for one command.
    """
    fleet = _Fleet.of(image)
    planned: list[LeaderChange] = []
    for key, partition in _in_order(image):
        isr = tuple(member for member in partition.isr if member in fleet.live)
        if partition.leader is not None and isr != partition.isr:
            planned.append(_change(key, partition, partition.leader, isr))
    return tuple(planned)


def plan_give_up(image: Image, broker_id: int, key: PartitionKey) -> LeaderChange | None:
    """Plan to remove this broker's damaged copy from isr.

    Returns:
        None if the copy is the last one in sync, or if the partition has no leader.
    """
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
    """Plan to move leadership back to the first replica, where that replica is in sync, live and not draining.

    If a reassignment is about to finish, its partition is left out: its present leader may be one of the targets.
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
    return sorted(image.partitions.items(), key=itemgetter(0))


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
    """Return the election of the first of the members that is live and sound, draining brokers last; else None."""
    sound = (fleet.live & frozenset(members)) - partitions.marked(partition)
    candidates = partitions.in_order(partition, sound)
    staying = tuple(member for member in candidates if member not in fleet.draining)
    isr = staying or candidates[:1]
    return _change(key, partition, isr[0], isr) if isr else None


def _last_known(key: PartitionKey, partition: Partition, fleet: _Fleet) -> LeaderChange | None:
    """Return the election of the suspect with the longest log; None if it is dead, or if a member is not suspect.

    A suspect counts even if its broker has died since it reported: without a leader no log grows, so its report is
    still true.
    """
    suspects = {suspect.broker_id: suspect for suspect in partition.suspects}
    if not suspects.keys() >= set(partition.isr):
        return None
    # ``max`` returns the first of equal members, and isr is in the order of replicas.
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
        # A replica that a reassignment is adding may be empty. Even an unclean election must not choose it.
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
