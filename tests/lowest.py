"""Prints what `make test-lowest` installs: the lowest versions that ``pyproject.toml`` allows, and tools of tests.

A lower bound is a promise to users whose environment holds other packages back. So each one has to be a version that
was tried. This covers the client, the node and Arrow. What only Spark, the load test, the demo and developers need has
the version of ``requirements.lock`` as its lower bound, which all other targets try.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = ("node", "arrow")
TOOLS = (
    "hypothesis",
    "jsonschema",
    "openapi-spec-validator",
    "pytest",
    "pytest-asyncio",
    "pytest-xdist",
    "pyyaml",
    "setuptools",
)
_BOUND = re.compile(r"([A-Za-z0-9_.-]+)(?:>=|==)([0-9][0-9.]*)(?:,.*)?")


def requirements() -> Iterator[str]:
    """Lines for pip.

    Raises:
        ValueError: a dependency has no lower bound.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for dependency in (*project["dependencies"], *(one for name in EXTRAS for one in extras[name])):
        found = _BOUND.fullmatch(dependency)
        if found is None:
            raise ValueError(f"'{dependency}' has no lower bound: write NAME>=VERSION")
        yield f"{found[1]}=={found[2]}"
    for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines():
        if line.partition("==")[0].lower() in TOOLS:
            yield line


if __name__ == "__main__":
    print("\n".join(requirements()))
