"""What the source of a compiled module must not do, though Python lets it."""

import ast

import pytest

import build_support

WAITS = (ast.Await, ast.Yield, ast.YieldFrom, ast.AsyncFor, ast.AsyncWith)


def waits(source):
    """Lines on which a coroutine or a generator stops while it handles an exception or leaves a ``try``."""
    return _waits(ast.parse(source), is_handling=False)


def _waits(node, *, is_handling):
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        is_handling = False
    handling = [*node.handlers, *node.finalbody] if isinstance(node, ast.Try) else []
    found = [node.lineno] if is_handling and isinstance(node, WAITS) else []
    for child in ast.iter_child_nodes(node):
        found += _waits(child, is_handling=is_handling or child in handling)
    return found


@pytest.mark.parametrize("module", build_support.compiled_modules())
def test_nothing_waits_while_it_handles_an_exception(module):
    """A coroutine of Python's has an exception of its own; one of mypyc's sets the thread's, and whoever runs
    while it waits takes that for theirs, puts an old one back, and the process ends in a segmentation fault.
    """
    source = (build_support.ROOT / module).read_text(encoding="utf-8")
    assert not waits(source), f"{module}: wait behind the except or finally, not in it"


@pytest.mark.parametrize(
    ("body", "is_wrong"),
    [
        ("try:\n  await f()\n except E:\n  pass", False),
        ("try:\n  pass\n except E:\n  await f()", True),
        ("try:\n  pass\n except E:\n  if a:\n   g(await f())", True),
        ("try:\n  pass\n except E:\n  async with f(): pass", True),
        ("try:\n  pass\n finally:\n  await f()", True),
        ("try:\n  pass\n except E:\n  async def g():\n   await f()", False),
        (
            "try:\n  try:\n   pass\n  finally:\n   pass\n except E:\n  pass\n else:\n  await f()",
            False,
        ),
    ],
)
def test_the_rule_sees_it_wherever_it_stands(body, is_wrong):
    assert bool(waits(f"async def outer():\n {body}\n")) is is_wrong


COMPILED = frozenset(build_support.compiled_modules())
INTERPRETED = sorted(
    str(path.relative_to(build_support.ROOT))
    for package in (*build_support.PACKAGES, "loadtest")
    for path in (build_support.ROOT / package).rglob("*.py")
    if str(path.relative_to(build_support.ROOT)) not in COMPILED
)


def children_of_compiled(source):
    """Classes of an interpreted module whose parent comes from a compiled one."""
    tree = ast.parse(source)
    compiled = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and f"{(node.module or '').replace('.', '/')}.py" in COMPILED
        for alias in node.names
    }
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id in compiled for base in node.bases)
    ]


def test_no_interpreted_class_has_a_compiled_parent():
    """It can be imported, and fails when the first of it is made: interpreted classes cannot inherit from compiled."""
    found = {
        module: children
        for module in INTERPRETED
        if (
            children := children_of_compiled(
                (build_support.ROOT / module).read_text(encoding="utf-8")
            )
        )
    }
    assert not found


def test_a_child_of_a_compiled_class_is_seen():
    source = "from milena.model.clock import SystemClock as C\nclass A(C): pass\nclass B: c = C()"
    assert children_of_compiled(source) == ["A"]
