"""One compiled tree for all tests of this folder, made when the sources have changed since the last."""

import os
import subprocess
import sys

import pytest

import build_support


class Tree:
    """Runs Python on the compiled tree."""

    def __init__(self, path):
        self.path = path

    def run(self, *arguments, timeout_s=300):
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=build_support.ROOT,
            env={**inherited, **build_support.environment_of(self.path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )


@pytest.fixture(scope="session")
def tree():
    reason = build_support.obstacle()
    if reason is not None:
        pytest.skip(f"nothing can be compiled here: {reason}")
    return Tree(build_support.ensure_tree())
