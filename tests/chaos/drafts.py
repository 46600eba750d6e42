"""The parts that all programs with transactions share: a transaction that is being written, names, and chance."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.chaos.adapter import Value
from tests.chaos.cluster import Node
from tests.chaos.history import ANY_NODE, History, Outcome, TransactionTried
from tests.chaos.reading import make_value
from tests.chaos.setup import PLACES, Setup

ABORTED_SHARE, LEFT_SHARE = 0.15, 0.04
OVERTAKEN_SHARE = 0.15
SESSION_TIMEOUT_MS, LEFT_TIMEOUT_MS = 10_000, 1_500
"""Timeouts in ms, shorter than the wait at the end of a run. A session left open holds up readers until then."""
PATIENCE_S = 10.0
"""The time in s for which a request without a response is repeated; all nodes may be down for a while."""
CONSUMED_MAX = 25


@dataclass(slots=True)
class Draft:
    """A transaction that is being written."""

    name: str
    at: Node | None
    """The node that responded last; None if the client chooses its nodes itself."""
    sent_s: float
    outcome: Outcome = Outcome.FAILED
    """The outcome; FAILED as long as no commit was requested."""
    writes: list[tuple[int, str, int | None]] = field(default_factory=list)
    consumed: tuple[tuple[int, int, str], ...] = ()
    moved: tuple[tuple[int, int, int], ...] = ()
    again: Outcome | None = None
    error: str | None = None

    @property
    def node(self) -> Node:
        """Return the node of a client that chooses one."""
        assert self.at is not None, f"{self.name} has no node"
        return self.at

    def tried(self, at_s: float) -> TransactionTried:
        """Return the transaction as an event."""
        return TransactionTried(
            at_s=at_s,
            sent_s=self.sent_s,
            name=self.name,
            node=self.at.node_id if self.at else ANY_NODE,
            outcome=self.outcome,
            writes=tuple(self.writes),
            consumed=self.consumed,
            moved=self.moved,
            again=self.again,
            error=self.error,
        )

    @property
    def extents(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Return the end offset and number of its records by topic and partition; all are acknowledged."""
        offsets: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        for place, _, offset in self.writes:
            assert offset is not None
            offsets[PLACES[place]].append(offset)
        return {place: (max(found) + 1, len(found)) for place, found in offsets.items()}


class Programs:
    """Programs that write transactions. They end soon after ``is_stopping`` is set."""

    def __init__(self, setup: Setup, nodes: Sequence[Node], history: History, kind: str) -> None:
        """Make programs of one kind, whose choices depend on the seed and the kind alone."""
        self.is_stopping = False
        self._setup = setup
        self._workload = setup.workload
        self._nodes = nodes
        self._history = history
        self._rng = random.Random(f"{setup.seed}/{kind}")
        self._counts: defaultdict[str, int] = defaultdict(int)

    def _is(self, share: float) -> bool:
        return self._rng.random() < share

    def _draft(self, program: str, *, has_node: bool = True) -> Draft:
        number = self._counts["#" + program]
        self._counts["#" + program] = number + 1
        node = self._rng.choice(list(self._nodes)) if has_node else None
        return Draft(f"{program}#{number}", node, self._history.now_s())

    def _records(self, program: str, count: int) -> list[str]:
        first = self._counts[program]
        self._counts[program] = first + count
        return [f"{program}:{first + i}" for i in range(count)]

    def _values(self, names: Sequence[str]) -> list[tuple[str, Value]]:
        padding = self._workload.padding_bytes
        return [(name.split(":")[0], make_value(name, padding)) for name in names]

    async def _rest(self) -> None:
        await asyncio.sleep(self._rng.expovariate(self._workload.transactions_per_s))
