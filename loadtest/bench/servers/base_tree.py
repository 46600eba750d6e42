"""Check out the tree of another commit, and build it like the present one, so that nodes can run from it.

No module of that tree is imported here. Facts about it come from its own programs, which know its layout.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

TREES = Path("build") / "compare"
"""The folder with a tree per commit. The compiled copy of a tree is in its ``build/``, and is built once."""
_NOT_INHERITED = {"PYTHONPATH", "PYTHONSAFEPATH"}


class BaseTreeError(Exception):
    """The tree does not exist, or cannot be built in this way; the message says why."""


def check_out(commit: str) -> Path:
    """Check out a commit of the repository of the working directory; return its folder.

    Raises:
        BaseTreeError: git does not know the commit.
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
    """Return the environment variables with which nodes run from a tree; ``kind`` is ``compiled`` or ``pure``.

    Raises:
        BaseTreeError: the tree cannot be built in this kind.
    """
    places = [str(tree)]
    plain = {k: v for k, v in os.environ.items() if k not in _NOT_INHERITED}
    if kind == "compiled":
        build = [sys.executable, str(tree / "build_support.py")]
        refused = "the base cannot be compiled as this tree is; MILENA_PURE=1 compares the sources"
        places.insert(0, _done(build, refused, plain).splitlines()[-1])
    # As in build_support.py: without PYTHONSAFEPATH, Python would search the working directory first.
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
