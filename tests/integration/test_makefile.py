"""The installation by make: one at a time, once, and for wheels only what building needs."""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
OF_MAKE = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
FILES = ("Makefile", "pyproject.toml", "requirements.lock", "node/pyproject.toml")
PYTHON = """#!/bin/sh
# `python -m venv DIR` copies this script there; `python -m pip …` only notes what it was called with.
case "$*" in
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    "-m pip "*) echo "$*" >> calls ;;
esac
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    python = tmp_path / "fake-python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    return tmp_path


def making(tree: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["make", f"PYTHON={tree / 'fake-python'}", *words],
        cwd=tree,
        # These tests run under a make of their own, whose options this one would take.
        env={name: value for name, value in os.environ.items() if name not in OF_MAKE},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def calls(tree: Path) -> list[str]:
    path = tree / "calls"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("target", [".venv/.builder", ".venv", "environment"])
def test_an_installation_waits_for_another_one_and_says_so(tree: Path, target: str) -> None:
    with (tree / "pyproject.toml").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with making(tree, target) as process:
            assert process.stdout is not None
            assert (
                process.stdout.readline() == "Another make installs into .venv: waiting for it.\n"
            )
            assert calls(tree) == []
            fcntl.flock(other, fcntl.LOCK_UN)
            process.stdout.read()
            assert process.wait() == 0
    assert calls(tree)


def test_what_another_make_has_installed_meanwhile_is_not_installed_again(tree: Path) -> None:
    with (tree / "pyproject.toml").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with making(tree, ".venv/.builder") as process:
            assert process.stdout is not None
            process.stdout.readline()
            (tree / ".venv").mkdir()
            (tree / ".venv/.builder").touch()
            fcntl.flock(other, fcntl.LOCK_UN)
            process.stdout.read()
            assert process.wait() == 0
    assert calls(tree) == []


def test_wheels_need_only_what_builds_them(tree: Path) -> None:
    with making(tree, "wheels") as process:
        assert process.stdout is not None
        process.stdout.read()
        assert process.wait() == 0
    install, build = calls(tree)
    assert install.endswith("--constraint requirements.lock setuptools")
    assert " wheel " in build
