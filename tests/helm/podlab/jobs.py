"""What a Job's controller does next. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, unique


@unique
class JobStep(Enum):
    """What is to be done about a job now."""

    WAIT = "wait"
    START_POD = "start a pod"
    COMPLETE = "complete"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTally:
    """A job's pods by how they stand."""

    active: int
    succeeded: int
    failed: int


def tally(phases: Sequence[str]) -> JobTally:
    """Count pods by ``status.phase``; a pod that has none yet is active."""
    succeeded, failed = phases.count("Succeeded"), phases.count("Failed")
    return JobTally(active=len(phases) - succeeded - failed, succeeded=succeeded, failed=failed)


def next_step(pods: JobTally, *, completions: int, backoff_limit: int) -> JobStep:
    """One pod at a time until enough have succeeded or more than ``backoff_limit`` have failed."""
    if pods.succeeded >= completions:
        return JobStep.COMPLETE
    if pods.failed > backoff_limit:
        return JobStep.FAIL
    return JobStep.WAIT if pods.active else JobStep.START_POD
