"""A node's data directory through its life: made, joined, replicas added and removed, stopped in order, started."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from milena.model.batch.header import decode_header
from milena.model.types import ReplicaHealth
from storage.log.partition_log import PartitionLog
from storage.replica.data_directory import DataDirectory, ReplicaKey
from tests.crash.log_scenarios import verdict_of
from tests.crash.search import Promise, Scenario, Verdict
from tests.support.disk.log_model import NOW_MS, SMALL, make_batch, read_all
from tests.support.disk.memory_files import MemoryFiles

Announce = Callable[[Promise], None]

ROOT = "/data"
TOPIC_ID = "0123456789abcdef0123456789abcdef"
RESERVE_BYTES = 3000


def open_directory(files: MemoryFiles, directory_id: str) -> DataDirectory:
    """As a node does at its start."""
    return DataDirectory.open(
        files, ROOT, node_id=1, directory_id=directory_id, reserve_bytes=RESERVE_BYTES
    )


def open_replica(
    files: MemoryFiles, directory: DataDirectory, partition: int, *, was_clean: bool = False
) -> PartitionLog:
    """The log of a replica, made when the manifest does not list it."""
    return PartitionLog.open(
        files,
        directory.partition_directory(TOPIC_ID, partition),
        config=SMALL,
        topic_id=TOPIC_ID,
        topic_name="orders",
        partition=partition,
        is_listed=directory.is_listed(TOPIC_ID, partition),
        was_clean=was_clean,
        now_ms=NOW_MS,
    )


@dataclass(frozen=True, slots=True)
class DirectoryPromise:
    """What the directory may not forget.

    Attributes:
        directory_id: None until it was told to anybody.
        cluster_id: None until it was told to anybody; ``joining`` is on its way.
        joining: what may stand there, too.
        broker_epoch: at least this.
        listed: replicas that are surely listed, with the log end that was synced.
        unsure: replicas that may be listed or not.
    """

    directory_id: str | None = None
    cluster_id: str | None = None
    joining: str | None = None
    broker_epoch: int = -1
    listed: tuple[tuple[ReplicaKey, int], ...] = ()
    unsure: tuple[ReplicaKey, ...] = ()
    is_quiet: bool = False

    @property
    def key(self) -> object:
        return self

    def recover(self, files: MemoryFiles) -> Verdict:
        directory = open_directory(files, "fresh")
        was_clean = directory.consume_clean_marker()
        logs = []
        health = []
        for topic_id, partition in sorted(directory.replicas()):
            log = open_replica(files, directory, partition, was_clean=was_clean)
            found = verdict_of(log)
            logs.append(((topic_id, partition), found.state))
            health.append((found.is_trusted, found.has_cut))
        return Verdict(
            (directory.directory_id, directory.cluster_id, directory.broker_epoch, tuple(logs)),
            is_trusted=all(is_trusted for is_trusted, _ in health),
            has_cut=any(has_cut for _, has_cut in health),
        )

    def judge(self, verdict: Verdict) -> None:
        directory_id, cluster_id, broker_epoch, logs = verdict.state
        assert self.directory_id in (None, directory_id), "another directory"
        assert cluster_id in (self.cluster_id, self.joining), f"joined {cluster_id}"
        assert broker_epoch >= self.broker_epoch, f"epoch {self.broker_epoch} is forgotten"
        found = dict(logs)
        for replica, end in self.listed:
            assert replica in found, f"{replica} is not listed any more"
            assert found[replica][1] >= end, f"{replica} lost what was synced below {end}"
            for number, batch in enumerate(found[replica][2]):
                assert decode_header(batch).base_offset == 2 * number, "another batch"
        allowed = {replica for replica, _ in self.listed}.union(self.unsure)
        assert set(found) <= allowed, f"listed {sorted(found)}, expected some of {sorted(allowed)}"
        assert verdict.is_trusted or not self.is_quiet, "nothing was unsynced, yet it is suspect"
        assert not (verdict.has_cut and verdict.is_trusted), "trusted, though something was cut"

    def judge_killed(self, verdict: Verdict) -> None:
        self.judge(verdict)
        assert verdict.is_trusted, "only the process died, yet a replica is suspect"

    def live_on(self, files: MemoryFiles) -> None:
        directory = open_directory(files, "fresh")
        directory.consume_clean_marker()
        for topic_id, partition in directory.unlisted_replicas():
            files.remove_tree(directory.partition_directory(topic_id, partition))
            log = open_replica(files, directory, partition)
            assert log.log_end_offset == 0, "a replica that nobody counts on has records"
            log.delete()
        log = open_replica(files, directory, 9)
        directory.add_replicas([(TOPIC_ID, 9)])
        log.append_as_leader([make_batch(2)], leader_epoch=0, now_ms=NOW_MS)
        log.flushing.sync_all()
        kept = read_all(log)
        files.crash()
        directory = open_directory(files, "fresh")
        log = open_replica(files, directory, 9, was_clean=directory.consume_clean_marker())
        assert log.health is ReplicaHealth.SOUND
        is_kept = read_all(log) == kept
        assert is_kept, "a replica made after recovery lost its records"


class Node:
    """The directory, and what it promises as it goes."""

    def __init__(self, files: MemoryFiles, announce: Announce) -> None:
        self._files = files
        self._announce = announce
        self.promise = DirectoryPromise()
        self.logs: dict[int, PartitionLog] = {}
        announce(self.promise)

    def say(self, **changes: object) -> None:
        """From now on this holds."""
        self.promise = replace(self.promise, **changes)
        self._announce(self.promise)

    def boot(self, directory_id: str) -> None:
        """Open it and what it lists."""
        self.directory = open_directory(self._files, directory_id)
        was_clean = self.directory.consume_clean_marker()
        self.say(directory_id=self.directory.directory_id)
        self.logs = {
            partition: open_replica(self._files, self.directory, partition, was_clean=was_clean)
            for _, partition in sorted(self.directory.replicas())
        }

    def join(self, cluster_id: str, broker_epoch: int) -> None:
        """Belong to a cluster, and register."""
        self.say(joining=cluster_id)
        self.directory.set_cluster_id(cluster_id)
        self.say(cluster_id=cluster_id, joining=cluster_id)
        self.directory.set_broker_epoch(broker_epoch)
        self.say(broker_epoch=broker_epoch)

    def create(self, *partitions: int) -> None:
        """Make replicas, then list them."""
        self.say(unsure=tuple((TOPIC_ID, partition) for partition in partitions), is_quiet=False)
        for partition in partitions:
            self.logs[partition] = open_replica(self._files, self.directory, partition)
        self.directory.add_replicas([(TOPIC_ID, partition) for partition in partitions])
        added = tuple(((TOPIC_ID, partition), 0) for partition in partitions)
        self.say(listed=(*self.promise.listed, *added), unsure=(), is_quiet=True)

    def write(self, partition: int, *sizes: int) -> None:
        """Append, and sync."""
        log = self.logs[partition]
        self.say(is_quiet=False)
        for size in sizes:
            batch = make_batch(2, value_bytes=size)
            log.append_as_leader([batch], leader_epoch=0, now_ms=NOW_MS)
        log.flushing.sync_all()
        ends = dict(self.promise.listed)
        ends[TOPIC_ID, partition] = log.log_end_offset
        self.say(listed=tuple(ends.items()), is_quiet=True)

    def remove(self, partition: int) -> None:
        """Take a replica off the list, then remove its files."""
        replica = (TOPIC_ID, partition)
        rest = tuple(item for item in self.promise.listed if item[0] != replica)
        self.say(listed=rest, unsure=(replica,))
        self.directory.remove_replicas([replica])
        self.say(unsure=())
        self.logs.pop(partition).delete()

    def stop(self) -> None:
        """In order."""
        self.say(is_quiet=False)
        for log in self.logs.values():
            log.checkpointing.run(log.log_end_offset)
            log.close(is_clean=True)
        self.directory.mark_clean_stop()
        self.directory.close()
        self.say(is_quiet=True)


def directory_made(files: MemoryFiles, announce: Announce) -> None:
    """The first boot, up to the registration."""
    node = Node(files, announce)
    node.boot("first")
    node.join("cluster", 7)


def directory_replicas(files: MemoryFiles, announce: Announce) -> None:
    """Replicas are made, written, and removed; one of them is made again."""
    node = Node(files, announce)
    node.boot("first")
    node.join("cluster", 7)
    node.create(0, 1)
    node.write(0, 300, 20)
    node.write(1, 700, 900, 900)
    node.remove(0)
    node.create(0)
    node.write(0, 33)
    node.remove(1)


def directory_clean_stop(files: MemoryFiles, announce: Announce) -> None:
    """Two orderly stops, and what is written between them; the marker must never outlive an append."""
    node = Node(files, announce)
    node.boot("first")
    node.join("cluster", 7)
    node.create(0, 1)
    node.write(0, 300, 900, 900)
    node.stop()
    node.boot("second")
    node.directory.set_broker_epoch(8)
    node.say(broker_epoch=8)
    node.write(0, 20)
    node.write(1, 55)
    node.stop()
    node.boot("third")
    node.write(1, 700)


def _scenario(run: Callable[[MemoryFiles, Announce], None]) -> Scenario:
    return Scenario(run.__name__.replace("_", "-"), run)


DIRECTORY_SCENARIOS = (
    _scenario(directory_made),
    _scenario(directory_replicas),
    _scenario(directory_clean_stop),
)
