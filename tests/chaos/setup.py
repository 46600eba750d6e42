"""The parameters of a run: the cluster, the workload, disks, network and goals (values only)."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum, unique

from tests.chaos.history import Goals, View

NO_GOALS = Goals()
PADDING_BYTES = 64
TRANSACTIONS_PER_S = 5.0
PLACES = (("left", 0), ("left", 1), ("right", 0), ("right", 1))
"""The topics and partitions of transactions. Programs copy from each topic to the other one."""


@unique
class DiskKind(StrEnum):
    """The kind of disk of a node."""

    DIR = "dir"
    TMPFS = "tmpfs"
    """A small disk that can be full."""
    LOOP = "loop"
    """ext4 on a loop device, which can be full, and lose its power."""


@unique
class Client(StrEnum):
    """The interface that a writer, a reader or a program with transactions uses."""

    HTTP = "http"
    KAFKA = "kafka"


@unique
class NetworkKind(StrEnum):
    """The kind of network between nodes and clients."""

    NONE = "none"
    """Loopback."""
    NETNS = "netns"
    """A network namespace per node, connected by the switch of this package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The writers and readers, and their rates; times are in s."""

    acks: tuple[str, ...] = ("all",)
    """The values of ``acks``; each request draws one of them."""
    writers: int = 6
    keys_per_writer: int = 3
    requests_per_s: float = 40.0
    """The most requests per second of a writer, which waits for each response."""
    records_per_request_max: int = 4
    padding_bytes: int = PADDING_BYTES
    readers: int = 4
    write_timeout_s: float = 2.0
    read_timeout_s: float = 2.0
    retries: int = 0
    """The attempts for the same records while the outcome is not success."""
    is_idempotent: bool = False
    clients: tuple[Client, ...] = (Client.HTTP,)
    """The interfaces; writers, readers and programs take turns."""
    transactions_per_s: float = 0.0
    """The most transactions per second of each program; 0 means no transactions."""


SESSIONS = 2
COMMITTED_READERS, UNCOMMITTED_READERS = 3, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The programs with transactions that clients of one interface run, by number."""

    sessions: tuple[int, ...]
    topics: tuple[str, ...]
    """The topics that their flows consume."""
    committed_readers: tuple[int, ...]
    uncommitted_readers: tuple[int, ...]


def roles_of(client: Client, clients: Sequence[Client]) -> Roles:
    """Share out the programs: each interface has every n-th one."""

    def own(count: int, first: int = 0) -> tuple[int, ...]:
        return tuple(n for n in range(count) if clients[(n + first) % len(clients)] is client)

    topics = sorted({topic for topic, _ in PLACES})
    return Roles(
        sessions=own(SESSIONS),
        topics=tuple(topics[n] for n in own(len(topics))),
        committed_readers=own(COMMITTED_READERS),
        uncommitted_readers=own(UNCOMMITTED_READERS, first=1),
    )


def places_of(topic: str) -> list[int]:
    """Return the places of a topic of transactions."""
    return [place for place, (name, _) in enumerate(PLACES) if name == topic]


def kafka_group(topic: str) -> str:
    """Return the group of the Kafka clients that consume a topic of transactions."""
    return f"flows-of-{topic}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The parameters of one run."""

    scenario: str
    seconds: float
    seed: int
    target: str = "milena"
    """``milena`` or ``fake:BUG``; see ``fake``."""
    node_count: int = 3
    topic: str = "chaos"
    partitions: int = 3
    replication_factor: int = 3
    configs: dict[str, str] = field(default_factory=dict)
    disk: DiskKind = DiskKind.DIR
    disk_mb: int = 512
    network: NetworkKind = NetworkKind.NONE
    workload: Workload = Workload()
    start_timeout_s: float = 90.0
    final_timeout_s: float = 60.0
    goals: Goals = NO_GOALS

    @property
    def topics(self) -> dict[str, int]:
        """Return the number of partitions of each topic."""
        parts = [name for name, _ in PLACES] if self.workload.transactions_per_s else []
        return {self.topic: self.partitions, **{name: parts.count(name) for name in parts}}

    def located(self, view: View, partition: int) -> tuple[str, int]:
        """Return the topic and partition of a partition of this view in the history."""
        return (self.topic, partition) if view is View.PLAIN else PLACES[partition]


MILENA_CONFIGS = {"min.insync.replicas": "2", "segment.bytes": "1048576"}
"""The configs of topics. Segments have a megabyte, so that a run rolls some."""
BULKY_BYTES = 4096
"""The size of a value that uses up preallocated space within seconds, so that a full disk has an effect."""
AFTER_HEAL_S = 10.0
RECOVERY_S = 3.0
RECOVERY_S_OF = {
    "kill-leader": 2.0,
    "stop-leader": 0.5,
    "rolling-restart": 0.5,
    "kill-follower": 1.0,
    "power-leader": 2.0,
    "torn-tail": 2.0,
    "bit-flip": 2.0,
    "emptied-directory": 2.0,
}


def milena_setup(scenario: str, seconds: float, seed: int) -> Setup:
    """Return a run of three Milena nodes with the project's goals."""
    goals = Goals(
        recovery_s=RECOVERY_S_OF.get(scenario, RECOVERY_S),
        after_heal_s=AFTER_HEAL_S,
        is_contiguous=True,
        is_strict=True,
    )
    workload = Workload(
        padding_bytes=BULKY_BYTES if scenario == "disk-full" else PADDING_BYTES,
        transactions_per_s=TRANSACTIONS_PER_S,
        clients=(Client.HTTP, Client.KAFKA),
    )
    return Setup(
        scenario=scenario,
        seconds=seconds,
        seed=seed,
        configs=MILENA_CONFIGS,
        workload=workload,
        goals=goals,
    )


def fake_setup(
    bug: str,
    scenario: str,
    seconds: float,
    seed: int,
    *,
    node_count: int = 3,
    has_transactions: bool = False,
) -> Setup:
    """Return a run of the fake cluster with one of its bugs, without goals."""
    workload = replace(
        Workload(),
        write_timeout_s=1.0,
        transactions_per_s=TRANSACTIONS_PER_S if has_transactions else 0.0,
    )
    return Setup(
        scenario=scenario,
        seconds=seconds,
        seed=seed,
        target=f"fake:{bug}",
        node_count=node_count,
        partitions=1 if node_count == 1 else 2,
        disk_mb=32,
        workload=workload,
        final_timeout_s=20.0,
    )
