"""The search: every boundary of a scenario, every state that a cut may leave there, and recovery, cut again.

A *scenario* does things to something on a disk and says at any moment what it has promised by then. A *boundary* is
the moment before an operation that a crash can fall before (write, sync, truncate, allocate, create, rename, remove,
sync of a folder), and the moment after the last. At each of them the disk is photographed; each state that the
photograph may turn into is recovered with the production classes, and judged:

    kept         what was promised is there, unchanged, and nothing is there that nobody wrote
    stable       what recovery shows is durable: a power cut right after it, and a second recovery, show the same
    repeatable   cut again at any boundary of recovery, and again in that one, the end is the same
    alive        the thing can be used: what is done after recovery survives, too

Equal states under equal promises are recovered once. The process may also die alone (kill -9): then recovery sees
what no disk has yet, and a power cut while it runs may take it back.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, Protocol, TypeVar

from tests.crash.disk import Outcome, outcomes
from tests.support.disk.memory_files import MemoryFiles, Photograph

T = TypeVar("T")


class Verdict(NamedTuple):
    """What recovery made of a disk.

    Attributes:
        state: all that a user sees; equal states compare equal.
        is_trusted: it says of itself that nothing is missing.
        has_cut: it took something away for good.
    """

    state: object
    is_trusted: bool = True
    has_cut: bool = False


class Promise(Protocol):
    """What holds at one moment, and how to tell. Immutable."""

    @property
    def key(self) -> object:
        """Equal for promises that mean the same; hashable."""

    def recover(self, files: MemoryFiles) -> Verdict:
        """Open what is there, as a node does at its start; an error is a failure of the search."""

    def judge(self, verdict: Verdict) -> None:
        """Raise AssertionError unless ``verdict`` keeps the promise."""

    def judge_killed(self, verdict: Verdict) -> None:
        """The same when only the process died: nothing that was written may be missing."""

    def live_on(self, files: MemoryFiles) -> None:
        """Recover, use what is there, cut the power, and raise AssertionError unless that was kept."""


class Scenario(NamedTuple):
    """``run`` does it all on ``files``, and calls ``promised`` with each new promise."""

    name: str
    run: Callable[[MemoryFiles, Callable[[Promise], None]], None]


@dataclass(slots=True)
class Counts:
    """How far the search went."""

    scenarios: int = 0
    boundaries: int = 0
    outcomes: int = 0
    states: int = 0
    nested_boundaries: int = 0
    nested_states: int = 0
    untrusted: int = 0
    overcautious: int = 0

    def __str__(self) -> str:
        return (
            f"scenarios {self.scenarios}, boundaries {self.boundaries}, outcomes {self.outcomes:,}, "
            f"states recovered {self.states:,}; in recovery: boundaries {self.nested_boundaries:,}, "
            f"states {self.nested_states:,}; found untrustworthy {self.untrusted:,}, "
            f"of these without a cut {self.overcautious:,}"
        )

    def add(self, other: "Counts") -> None:
        """Sum up."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How thorough to be.

    Attributes:
        depth: how many recoveries in a row are cut short.
        mixtures: random mixtures at each boundary.
        nested_mixtures: the same inside recovery.
        stride: every how many-th boundary of the scenario is searched (1: all).
        nested_share: of the states, how many are searched inside; 1.0 = all.
        killed_share: of the boundaries, at how many the process alone dies.
    """

    depth: int = 2
    mixtures: int = 12
    nested_mixtures: int = 4
    stride: int = 1
    nested_share: float = 1.0
    killed_share: float = 1.0


FULL = Budget()
SHORT = Budget(
    depth=1, mixtures=1, nested_mixtures=0, stride=8, nested_share=0.05, killed_share=0.06
)


class CrashSearchError(AssertionError):
    """A promise was broken; says where, and how to see it again."""


class Boundary(NamedTuple):
    """A moment of a run."""

    number: int
    words: str
    photograph: Photograph


class Recorder:
    """Photographs a file system before each operation."""

    def __init__(self, files: MemoryFiles) -> None:
        self._files = files
        self.boundaries: list[Boundary] = []
        files.on_operation = self._note

    def _note(self, kind: str, path: str) -> None:
        self._add(f"before {kind} of {path}")

    def finish(self) -> None:
        """The moment after the last operation."""
        self._files.on_operation = None
        self._add("at the end")

    def _add(self, words: str) -> None:
        number = len(self.boundaries)
        self.boundaries.append(Boundary(number, words, self._files.photograph()))


@dataclass(slots=True)
class Search:
    """One scenario's search."""

    scenario: Scenario
    budget: Budget
    seed: int = 0
    counts: Counts = field(default_factory=Counts)
    _known: dict[tuple[bytes, object], tuple[int, Verdict]] = field(default_factory=dict)
    _rng: Random = field(default_factory=Random)

    def run(self) -> Counts:
        """Search it all.

        Raises:
            CrashSearchError: a promise was broken.
        """
        self._rng = Random(f"{self.scenario.name} {self.seed}")
        self.counts.scenarios = 1
        for number, (boundary, promise) in enumerate(self._record()):
            if number % self.budget.stride == 0:
                self._search(boundary, promise)
        return self.counts

    def _record(self) -> list[tuple[Boundary, Promise]]:
        """Each boundary, and what was promised then."""
        files = MemoryFiles()
        recorder = Recorder(files)
        promises: list[tuple[int, Promise]] = []
        self.scenario.run(
            files, lambda promise: promises.append((len(recorder.boundaries), promise))
        )
        recorder.finish()
        found = []
        for boundary in recorder.boundaries:
            current = [promise for number, promise in promises if number <= boundary.number]
            if current:
                found.append((boundary, current[-1]))
        return found

    def _search(self, boundary: Boundary, promise: Promise) -> None:
        self.counts.boundaries += 1
        where = f"boundary {boundary.number}, {boundary.words}"
        if self._rng.random() < self.budget.killed_share:
            self._search_killed(boundary.photograph, promise, f"{where}: killed")
        for outcome in outcomes(boundary.photograph, self._rng, mixtures=self.budget.mixtures):
            self.counts.outcomes += 1
            path = f"{where}: {outcome.label}"
            if (outcome.digest, promise.key) in self._known:
                continue
            is_nested = self._rng.random() < self.budget.nested_share
            depth = self.budget.depth if is_nested else 0
            verdict = self._examine(outcome, promise, depth, path)
            self._guard(path, promise.judge, verdict)
            self._guard(f"{path}; used then", promise.live_on, outcome.files())

    def _search_killed(self, photograph: Photograph, promise: Promise, path: str) -> None:
        """The process dies and the machine goes on; the power may be cut while the next one recovers."""
        files = MemoryFiles.developed(photograph)
        recorder, verdict = self._recover(files, promise, path)
        self._guard(path, promise.judge_killed, verdict)
        final = recorder.boundaries[-1].photograph
        for boundary in recorder.boundaries:
            for outcome in outcomes(boundary.photograph, self._rng, mixtures=1):
                again = f"{path}; then {boundary.words}: {outcome.label}"
                is_new = (outcome.digest, promise.key) not in self._known
                found = self._examine(outcome, promise, 0, again)
                if is_new:
                    self._guard(again, promise.judge, found)
                if boundary.photograph is final:
                    self._require_same(again, verdict, found)

    def _examine(self, outcome: Outcome, promise: Promise, depth: int, path: str) -> Verdict:
        """Recover a state, and the states that cutting its recovery short may leave."""
        key = (outcome.digest, promise.key)
        known = self._known.get(key)
        if known is not None and known[0] >= depth:
            return known[1]
        self.counts.states += 1
        recorder, verdict = self._recover(outcome.files(), promise, path)
        self._known[key] = (depth, verdict)
        self.counts.untrusted += not verdict.is_trusted
        self.counts.overcautious += not verdict.is_trusted and not verdict.has_cut
        self._require_stable(recorder.boundaries[-1], promise, verdict, path)
        if depth:
            for boundary in recorder.boundaries[:-1]:
                self._search_nested(boundary, promise, verdict, depth - 1, path)
        return verdict

    def _search_nested(
        self, boundary: Boundary, promise: Promise, verdict: Verdict, depth: int, path: str
    ) -> None:
        self.counts.nested_boundaries += 1
        mixtures = self.budget.nested_mixtures
        for outcome in outcomes(boundary.photograph, self._rng, mixtures=mixtures):
            again = f"{path}; in recovery {boundary.words}: {outcome.label}"
            self.counts.nested_states += (outcome.digest, promise.key) not in self._known
            found = self._examine(outcome, promise, depth, again)
            self._require_same(again, verdict, found)

    def _require_stable(self, end: Boundary, promise: Promise, verdict: Verdict, path: str) -> None:
        """What recovery left unsynced must not matter."""
        for outcome in outcomes(end.photograph, self._rng, mixtures=0):
            key = (outcome.digest, promise.key)
            again = f"{path}; recovered, and cut again: {outcome.label}"
            if key in self._known:
                self._require_same(again, verdict, self._known[key][1])
                continue
            _, found = self._recover(outcome.files(), promise, again)
            self._require_same(again, verdict, found)

    def _require_same(self, path: str, first: Verdict, second: Verdict) -> None:
        def compare() -> None:
            assert second.state == first.state, f"recovered {first}, and then {second}"
            assert first.is_trusted or not first.has_cut or not second.is_trusted, (
                f"what was cut is forgotten: {first}, and then {second}"
            )

        self._guard(path, compare)

    def _recover(self, files: MemoryFiles, promise: Promise, path: str) -> tuple[Recorder, Verdict]:
        recorder = Recorder(files)
        verdict = self._guard(path, promise.recover, files)
        recorder.finish()
        return recorder, verdict

    def _guard(self, path: str, call: Callable[..., T], *arguments: object) -> T:
        try:
            return call(*arguments)
        except CrashSearchError:
            raise
        except Exception as error:
            raise CrashSearchError(
                f"{self.scenario.name}: {path}\n  {type(error).__name__}: {error}\n"
                f"  replay: python -m tests.crash --scenario {self.scenario.name} --seed {self.seed}"
            ) from error
