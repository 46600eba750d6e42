"""Compare the list of guards with the code: a guard whose text has changed must be reviewed."""

from pathlib import Path

import pytest

from tests.sim.mutations.guards import MUTATIONS
from tests.sim.mutations.mutation import SIMULATIONS, Mutation, mutated
from tests.sim.mutations.table import HEADER, TABLE, Verdict, row, table

ROOT = Path(__file__).parents[3]
GUARDS_MIN = 20


def _names() -> list[str]:
    return [mutation.name for mutation in MUTATIONS]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=_names())
def test_each_guard_stands_once_in_the_code(mutation: Mutation) -> None:
    for module in {module for module, _, _ in mutation.cuts}:
        source = (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
        changed = mutated(source, mutation, module)
        assert changed != source
        compile(changed, module, "exec")


@pytest.mark.parametrize("mutation", MUTATIONS, ids=_names())
def test_each_guard_has_a_judge(mutation: Mutation) -> None:
    path = Path(mutation.by.partition("::")[0])
    assert mutation.by in SIMULATIONS or (ROOT / path).exists()


def test_there_are_enough_and_none_twice() -> None:
    assert len(MUTATIONS) >= GUARDS_MIN
    assert len(set(_names())) == len(MUTATIONS)


def test_a_text_that_is_not_there_is_an_error() -> None:
    with pytest.raises(LookupError, match="found 0 times"):
        mutated("", MUTATIONS[0], MUTATIONS[0].module)


def test_the_table_names_every_guard_and_none_was_missed() -> None:
    rows = [
        line for line in TABLE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")
    ]
    assert [line.split("|")[1].strip() for line in rows[2:]] == _names()
    assert "not found" not in TABLE.read_text(encoding="utf-8")


def test_a_row_says_who_noticed() -> None:
    mutation = next(mutation for mutation in MUTATIONS if mutation.by not in SIMULATIONS)
    found = Verdict(mutation=mutation, seeds=3, symptom="a|b", seconds=1.0)
    assert row(found).endswith("| fails | a/b |")
    missed = Verdict(mutation=mutation, seeds=None, symptom="", seconds=1.0)
    assert "**not found**" in row(missed)


def test_a_run_of_some_keeps_the_rows_of_the_others() -> None:
    first, second, third = MUTATIONS[:3]
    kept = HEADER + f"| {first.name} | old |\n| gone | old |\n| {third.name} | old |\n"
    found = Verdict(mutation=second, seeds=3, symptom="", seconds=1.0)
    rows = [f"| {first.name} | old |", row(found), f"| {third.name} | old |"]
    assert table(kept, found) == HEADER + "\n".join(rows) + "\n"
    again = Verdict(mutation=first, seeds=None, symptom="", seconds=1.0)
    assert row(again) in table(kept, again)
    assert f"| {first.name} | old |" not in table(kept, again)
