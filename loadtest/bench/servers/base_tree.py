"""The tree of another commit, built as the present one is, for nodes to run from.

Nothing of it is imported here: what it says of itself, its own programs are asked, which have its layout.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

TREES = Path("build") / "compare"
"""One for each commit. A compiled copy of it is in its own ``build/``, so that it is made once."""
_NOT_INHERITED = {"PYTHONPATH", "PYTHONSAFEPATH"}


class BaseTreeError(Exception):
    """There is no such tree, or it is not of this tree's kind; the message says why."""


def check_out(commit: str) -> Path:
    """The files of a commit of the repository around the working directory.

    Raises:
        BaseTreeError: git knows no such commit.
    """
    name = _done(["git", "rev-parse", "--verify", f"{commit}^{{commit}}"], f"no commit {commit}")
    tree = TREES.resolve() / name[:12]
    if not tree.exists():
        new = tree.with_suffix(".new")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        archive = str(new / "archive.tar")
        _done(["git", "archive", "--output", archive, name], "git could not archive it")
        _done(["tar", "-x", "-f", archive, "-C", str(new)], "tar could not unpack it")
        new.rename(tree)
    return tree


def environment_of(tree: Path, kind: str) -> dict[str, str]:
    """Variables under which nodes run from a checked-out tree of this kind, ``compiled`` or ``pure``.

    Raises:
        BaseTreeError: it cannot be had in this kind.
    """
    places = [str(tree)]
    plain = {k: v for k, v in os.environ.items() if k not in _NOT_INHERITED}
    if kind == "compiled":
        build = [sys.executable, str(tree / "build_support.py")]
        refused = "the base cannot be compiled as this tree is; MILENA_PURE=1 compares the sources"
        places.insert(0, _done(build, refused, plain).splitlines()[-1])
    # As build_support.py has it: without PYTHONSAFEPATH the working directory would come first.
    environment = {"PYTHONPATH": os.pathsep.join(places), "PYTHONSAFEPATH": "1"}
    ask = [sys.executable, "-m", "milena", "--version"]
    told = _done(ask, "the base does not start", plain | environment)
    if f"({kind})" not in told:
        raise BaseTreeError(f"this tree is {kind}, and the base says: {told}")
    return environment


def _done(
    command: Sequence[str], failure: str, environment: Mapping[str, str] | None = None
) -> str:
    """Run a program and return its output.

    Raises:
        BaseTreeError: the program failed; the message has its output.
    """
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BaseTreeError(f"{failure}: {done.stderr.strip()}")
    return done.stdout.strip()
