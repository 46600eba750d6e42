"""The findings of a run, its verdict, and its report."""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum, unique


@unique
class Verdict(IntEnum):
    """The exit code of a run."""

    GOOD = 0
    UNSAFE = 1
    NOT_LIVE = 2
    INCONCLUSIVE = 3


VERDICTS = {
    Verdict.GOOD: "OK",
    Verdict.UNSAFE: "SAFETY VIOLATED",
    Verdict.NOT_LIVE: "LIVENESS FAILED",
    Verdict.INCONCLUSIVE: "INCONCLUSIVE (nothing acknowledged, or nothing read back)",
}

VIOLATIONS = {
    "lost-write": "acknowledged (acks=all) but absent from the final log",
    "read-then-lost": "a reader saw it, the final log does not have it",
    "inconsistent-offset": "two observations disagree about the value at one offset",
    "replica-divergence": "two nodes' final logs disagree",
    "reordered": "final order contradicts key order or real-time order of acknowledged writes",
    "poll-skip": "a poll skipped a record that exists in the final log",
    "nonmonotonic-poll": "a poll returned offsets out of order or below the requested one",
    "damaged-record": "a record nobody wrote, or with damaged contents",
    "wrong-partition": "a record read from a partition it was not written to",
    "doubled-record": "an idempotent producer's record stands at several offsets",
    "aborted-read": "a reader of committed records saw one of an aborted transaction (G1a)",
    "torn-transaction": "some of a transaction's records are there, and others are not",
    "doubled-transaction": "a transaction's record stands twice in its partition",
    "circular-flow": "transactions saw or followed each other in a circle (G1c)",
    "not-exactly-once": "a group's offsets disagree with what was made of its records",
    "two-answers": "a transaction was said to be committed and to be aborted",
    "hanging-transaction": "after healing one holds up readers of committed records",
}
NOTES = {
    "duplicate": "one value at several offsets (a violation when writers are idempotent)",
    "aborted-visible": "reported as failed, yet in the log (a violation when strict)",
    "lost-acks01": "acknowledged with acks 0 or 1 and lost (allowed)",
    "late-write": "a write of unknown outcome that appeared after later writes of its key",
    "write-cycle": "transactions side by side, written in different orders in two places (G0, allowed)",
    "offset-gap": "unused offsets inside the final log (a violation when contiguous)",
}
EXAMPLES_SHOWN = 3
EXAMPLE_CHARACTERS = 150


@dataclass(slots=True)
class Report:
    """The findings by name, the figures, and the missed goals."""

    found: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    promoted: set[str] = field(default_factory=set)
    """Names of findings that count as violations in this run."""
    figures: list[tuple[str, str]] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    """The missed liveness goals."""
    acknowledged: int = 0
    is_read_back: bool = True
    """Whether every partition was read to its end from at least one node."""

    @property
    def violations(self) -> set[str]:
        """Return the names of findings that are violations."""
        return {
            name for name, texts in self.found.items() if texts and name in VIOLATIONS | self._grave
        }

    @property
    def notes(self) -> set[str]:
        """Return the names of findings that are no violations."""
        return {name for name, texts in self.found.items() if texts} - self.violations

    @property
    def verdict(self) -> Verdict:
        """Return the verdict: a violation comes first; a run that proves nothing is not good."""
        if self.violations:
            return Verdict.UNSAFE
        if self.missed:
            return Verdict.NOT_LIVE
        return Verdict.GOOD if self.acknowledged and self.is_read_back else Verdict.INCONCLUSIVE

    @property
    def _grave(self) -> dict[str, str]:
        return {name: NOTES[name] for name in self.promoted}

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report for people."""
        for name, text in {**VIOLATIONS, **NOTES}.items():
            found = self.found.get(name, [])
            if not found and name in NOTES:
                continue
            state = "VIOLATED" if name in self.violations else "note" if found else "ok"
            yield f"{name:22} {state:9} {len(found):6}  {text}"
            for example in found[:EXAMPLES_SHOWN]:
                yield f"{'':32}e.g. {example[:EXAMPLE_CHARACTERS]}"
        for name, text in self.figures:
            yield f"{name:32} {text}"
        for text in self.missed:
            yield f"LIVENESS: {text}"
        yield f"verdict: {VERDICTS[self.verdict]} ({self.acknowledged} acknowledged writes)"

    def as_json(self) -> str:
        """Return the report for programs."""
        return json.dumps(
            {
                "verdict": int(self.verdict),
                "found": {name: len(texts) for name, texts in self.found.items() if texts},
                "violations": sorted(self.violations),
                "missed": self.missed,
                "acknowledged": self.acknowledged,
                "figures": dict(self.figures),
            },
            indent=1,
        )
