"""The table of time budgets is the only place for waits and pauses that several modules need."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import node
from node.config import budgets

ROOT = Path(node.__file__).parent
SHARED = re.compile(r"(RETRY|PROPOSE|BARRIER)(_TIMEOUT)?_MS(_MAX)?$|LEADER_WAIT_MS$|^_?ANSWER_MS$")


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(ROOT.rglob("*.py")):
        if path != Path(budgets.__file__):
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())


def test_no_module_declares_a_shared_budget_of_its_own():
    own = [
        f"{name}: {target.id}"
        for name, tree in modules()
        for statement in tree.body
        for target in (statement.targets if isinstance(statement, ast.Assign) else ())
        if isinstance(target, ast.Name) and SHARED.search(target.id)
    ]
    assert not own


def test_no_call_waits_for_a_number_without_a_reason():
    bare = [
        f"{name}:{call.lineno}"
        for name, tree in modules()
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        for value in [
            *(k.value for k in call.keywords if k.arg == "timeout_ms"),
            *(
                call.args
                if isinstance(call.func, ast.Attribute) and call.func.attr == "sleep"
                else ()
            ),
        ]
        if isinstance(value, ast.Constant) and value.value
    ]
    assert not bare


def test_every_budget_has_a_user():
    used = {
        alias.name
        for _, tree in modules()
        for statement in ast.walk(tree)
        if isinstance(statement, ast.ImportFrom) and statement.module == budgets.__name__
        for alias in statement.names
    }
    assert used == {name for name in vars(budgets) if name.isupper()}


def test_a_call_outlasts_the_proposal_of_its_coordinator():
    assert budgets.COORDINATOR_ANSWER_MS > budgets.PROPOSE_MS
