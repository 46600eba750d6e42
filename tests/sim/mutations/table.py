"""The table with the result of each guard's removal."""

from dataclasses import dataclass
from pathlib import Path

from tests.sim.mutations.guards import MUTATIONS
from tests.sim.mutations.mutation import Mutation

TABLE = Path(__file__).with_name("mutations.md")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of one guard's removal. ``seeds`` is the number of seeds until a problem, or None."""

    mutation: Mutation
    seeds: int | None
    symptom: str
    seconds: float


def row(verdict: Verdict) -> str:
    """Return one line of the table."""
    mutation = verdict.mutation
    is_test = mutation.by.startswith("tests/")
    by = f"`{mutation.by}`" if is_test else mutation.by
    found = "fails" if is_test else str(verdict.seeds)
    if verdict.seeds is None:
        found = "**not found**"
    symptom = verdict.symptom.replace("|", "/")[:140]
    return f"| {mutation.name} | {mutation.guard} | {by} | {found} | {symptom} |"


HEADER = """# Guards taken out

Written by `python -m tests.sim.mutations` (`make mutations`). Each guard of the production code below was removed
alone, and the simulation (or, where another guard stands behind it, a directed test) had to notice. Seeds: how many
runs it took, the failing one included, beginning at seed 0. A row is from the last run of its guard.

| guard | what it says | noticed by | seeds | first symptom |
| --- | --- | --- | --- | --- |
"""


def table(kept: str, verdict: Verdict) -> str:
    """Return the table with this row replaced, in the order of ``MUTATIONS``, without rows of removed guards."""
    rows = {line.split(" ", 2)[1]: line for line in kept.splitlines() if line.startswith("| ")}
    rows[verdict.mutation.name] = row(verdict)
    names = [mutation.name for mutation in MUTATIONS]
    return HEADER + "".join(f"{rows[name]}\n" for name in names if name in rows)
