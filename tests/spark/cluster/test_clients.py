"""No client of the data source or a job is made without the credentials that it was given."""

import ast
from pathlib import Path

import spark_ext


def clients_in(path):
    """Calls that make a client, by their lines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name in {"Client", "AdminClient"}:
                yield node


def test_every_client_has_credentials():
    found = 0
    for path in sorted(Path(spark_ext.__file__).parent.rglob("*.py")):
        for made in clients_in(path):
            found += 1
            where = f"{path}:{made.lineno}"
            assert "credentials" in {keyword.arg for keyword in made.keywords}, where
    assert found > 8
