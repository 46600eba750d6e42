"""What became of each guard's absence, as the table beside tells it."""

from dataclasses import dataclass
from pathlib import Path

from tests.sim.mutations.guards import MUTATIONS
from tests.sim.mutations.mutation import Mutation

TABLE = Path(__file__).with_name("mutations.md")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one guard's absence. ``seeds``: how many it took; None: nobody noticed."""

    mutation: Mutation
    seeds: int | None
    symptom: str
    seconds: float


def row(verdict: Verdict) -> str:
    """One line of the table."""
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
    """The table with this row anew, in the order of ``MUTATIONS``; rows of guards that are no more are left out."""
    rows = {line.split(" ", 2)[1]: line for line in kept.splitlines() if line.startswith("| ")}
    rows[verdict.mutation.name] = row(verdict)
    names = [mutation.name for mutation in MUTATIONS]
    return HEADER + "".join(f"{rows[name]}\n" for name in names if name in rows)
