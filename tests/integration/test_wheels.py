"""What an installation brings: the client no package of the server's general names, both together all that runs."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from build_support import BUILT_BY, PACKAGES

ROOT = Path(__file__).parents[2]
CLIENT = {"milena", "pyspark_milena", "spark_ext"}
SERVER = {"http_api", "node", "raft_meta", "storage"}

pytestmark = pytest.mark.integration


def modules(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as packed:
        return {name for name in packed.namelist() if name.endswith(".py")}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Both wheels by their project's name, made of a copy of the sources."""
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheels")
    for package in (*PACKAGES, "examples"):
        shutil.copytree(ROOT / package, source / package)
    for name in (*BUILT_BY, "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"),
            *("--no-build-isolation", "--no-deps", "--wheel-dir", made, ".", "./node"),
        ],
        cwd=source,
        check=True,
    )
    return {wheel.name.partition("-")[0]: wheel for wheel in made.iterdir()}


def test_the_client_brings_no_package_of_the_server(wheels):
    assert {name.partition("/")[0] for name in modules(wheels["milena"])} == CLIENT


def test_the_server_brings_what_the_client_does_not(wheels):
    assert {name.partition("/")[0] for name in modules(wheels["milena_node"])} == SERVER


def test_no_module_is_forgotten(wheels):
    sources = {
        path.relative_to(ROOT).as_posix()
        for package in CLIENT | SERVER
        for path in (ROOT / package).rglob("*.py")
    }
    assert modules(wheels["milena"]) | modules(wheels["milena_node"]) == sources


def test_both_are_of_one_version(wheels):
    assert len({wheel.name.split("-")[1] for wheel in wheels.values()}) == 1


def test_a_node_brings_every_file_of_its_console(wheels):
    static = Path("http_api/console/static")
    with zipfile.ZipFile(wheels["milena_node"]) as packed:
        brought = {name for name in packed.namelist() if name.startswith(f"{static}/")}
    assert brought == {
        path.relative_to(ROOT).as_posix() for path in (ROOT / static).rglob("*") if path.is_file()
    }


def test_no_installation_has_the_examples(wheels):
    # A file of an example may not lie in another folder of a wheel, either.
    examples = {path.read_bytes() for path in (ROOT / "examples").rglob("*.py")}
    installed: list[bytes] = []
    for wheel in wheels.values():
        with zipfile.ZipFile(wheel) as packed:
            installed += [packed.read(name) for name in packed.namelist()]
    assert len(examples) > 10
    assert not examples.intersection(installed)
