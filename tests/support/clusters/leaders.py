"""Builders for the replication cores: brokers, partitions and a leader in a given situation."""

from milena.model.types import MonotonicMs
from node.replica.leader import PartitionLeader
from raft_meta.machine.image import Broker, Partition


def broker(
    broker_id: int, epoch: int | None = None, *, fenced: bool = False, draining: bool = False
) -> Broker:
    return Broker(
        broker_id=broker_id,
        broker_epoch=broker_id * 10 if epoch is None else epoch,
        directory_id=f"dir{broker_id}",
        incarnation=1,
        api_url=f"http://broker{broker_id}",
        peer_host="127.0.0.1",
        peer_port=7000 + broker_id,
        rack=None,
        is_fenced=fenced,
        is_draining=draining,
        feature_min=1,
        feature_max=1,
    )


def brokers(*ids: int) -> dict[int, Broker]:
    return {i: broker(i) for i in ids}


def partition(
    isr: tuple[int, ...] = (1, 2, 3),
    *,
    replicas: tuple[int, ...] = (1, 2, 3),
    leader: int | None = 1,
    leader_epoch: int = 5,
    partition_epoch: int = 7,
    unclean_epoch: int = -1,
) -> Partition:
    return Partition(
        replicas=replicas,
        isr=isr,
        leader=leader,
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
        unclean_epoch=unclean_epoch,
    )


def leader(
    isr: tuple[int, ...] = (1, 2, 3),
    *,
    log_end: int = 10,
    high_watermark: int = 10,
    min_insync: int = 2,
    stored_end: int | None = None,
) -> PartitionLeader:
    """Return a leader in epoch 5 on broker 1 (broker epoch 10) with replicas 1, 2 and 3, and partition epoch 7.

    Its log ends at ``log_end``; a follower may lag for 10 s.
    """
    return PartitionLeader(
        broker_id=1,
        broker_epoch=10,
        leader_epoch=5,
        partition_epoch=7,
        replicas=(1, 2, 3),
        isr=frozenset(isr),
        min_insync=min_insync,
        lag_ms_max=10_000,
        epoch_start_offset=log_end,
        log_end=log_end,
        stored_end=log_end if stored_end is None else stored_end,
        high_watermark=high_watermark,
        started_ms=MonotonicMs(0),
    )
