"""Rules of the judge by name, and the findings that break them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

RULES = {
    "J-alive": "No request ends a process. Only the judge kills nodes.",
    "J-contained": "No node counts an error that its code did not expect (`milena_contained_errors_total`).",
    "J-status": "A 5xx is 503 or 504 with a documented code. An error has the documented envelope.",
    "J-own-answer": "An answer belongs to its request: the request id comes back, in the order of a pipeline.",
    "J-value": "A key, a value, a header and a timestamp read exactly as they were written, by every path.",
    "J-phantom": "A reader sees only records that a client sent to this topic and partition.",
    "J-refused": "A write that was refused never appears. Only 504 leaves its fate open.",
    "J-once": "A record appears at one offset. A repeat under a key or a sequence returns the first offsets.",
    "J-order": "Offsets rise in the order in which acknowledged writes followed each other.",
    "J-stable": "One offset is one record, on every node and by every path, for ever.",
    "J-read-ack": "A read sees everything that was acknowledged or read before it began, on every node.",
    "J-gap": "No readable record is left out between two that are returned.",
    "J-end": "A reported end is never below an acknowledged record, and never falls.",
    "J-tail": "`offset=-N` returns the last N records that the reader may see.",
    "J-time": "A read by `timestamp` begins at the first record at or after that time.",
    "J-key": "Records of one key go to one partition, regardless of the path that wrote them.",
    "J-neighbour": "A bad record is refused alone where the documents say that its neighbours are accepted.",
    "J-body": "A body is read as its headers describe it, or refused. Its division into packets changes nothing.",
    "J-accept": "A documented `Accept` gets a documented type.",
    "J-if-match": "At most one writer of an offset is acknowledged. 412 reports a true end, and nothing was written.",
    "J-tx-atomic": "All records and offsets of a transaction take effect, or none.",
    "J-tx-isolation": "A record of an open or an aborted transaction is not read.",
    "J-tx-visible": "After an end that was answered with `visible: true`, every node reads past the transaction.",
    "J-tx-fence": "A former holder of a transactional id or a producer name can write nothing more.",
    "J-tx-time": "A transaction is not aborted before its timeout.",
    "J-known": "If one node's answer shows a change of topics, the next answer of every node shows it too.",
    "J-deleted": "A deleted record stays deleted. Nothing else is deleted with it.",
    "J-successor": "Nothing of a deleted topic applies to the topic that has its name now.",
    "J-commit": "A committed offset is the same on every node, until the next commit.",
    "J-lag": "A lag counts what is left to read: 0 when all is read, unknown where it is unknown.",
    "J-one-owner": "A partition has at most one owner in a group.",
    "J-epoch": "Epochs of a group rise, and a former epoch or process is told to stop.",
    "J-consumer": "A REST consumer skips nothing, and the same token returns the same records.",
    "J-access": "A caller can do and see what entries allow, and nothing more.",
    "J-trailer": "Bytes after a body never become a header of another request.",
    "J-token": "A token has no more rights, and lives no longer, than the credentials that made it.",
    "J-text": "A name or a note with control characters is refused.",
    "J-audit": "The audit topic has each change once, and deletions of records.",
    "J-available": "After every fault has ended, the cluster serves again.",
}


@dataclass(frozen=True)
class Finding:
    """A broken rule, the response that broke it, and how to reproduce it."""

    rule: str
    path: str
    expected: str
    got: str
    step: str = ""

    def line(self) -> str:
        """Return the finding as one line."""
        return (
            f"{self.rule} | {self.step} | {self.path} | expected {self.expected} | got {self.got}"
        )


@dataclass
class Verdicts:
    """The findings of a run; `tolerated` has (rule, part of the path or response) of known faults."""

    tolerated: tuple[tuple[str, str], ...] = ()
    findings: list[Finding] = field(default_factory=list)
    known: list[Finding] = field(default_factory=list)
    checks: dict[str, int] = field(default_factory=dict)
    told: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    local: threading.local = field(default_factory=threading.local)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def check(self, rule: str, is_kept: bool, path: str, expected: object, got: object) -> bool:
        """Count a check of a rule; add a finding if the rule is broken."""
        assert rule in RULES, rule
        with self.lock:
            self.checks[rule] = self.checks.get(rule, 0) + 1
        if not is_kept:
            step = getattr(self.local, "step", "")
            self.add(Finding(rule, path, _short(expected), _short(got), step))
        return is_kept

    def add(self, finding: Finding) -> None:
        """Add a finding, unless it is a repetition or the fourth of its rule; known faults are kept separately."""
        text = finding.line()
        with self.lock:
            told = self.told.setdefault((finding.rule, finding.step.split(" ")[0]), set())
            if finding.expected in told or len(told) > 2:
                return
            told.add(finding.expected)
        is_known = any(rule == finding.rule and part in text for rule, part in self.tolerated)
        with self.lock:
            (self.known if is_known else self.findings).append(finding)


def _short(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    text = " ".join(text.split())
    return text if len(text) <= 600 else text[:200] + " ... " + text[-400:]
