"""The wheels of client and node: their files and metadata, and that they run where nothing else of the project is.

An environment gets the wheels, and the packages that the wheels declare, at any depth. The packages are links to those
of this environment, so that no test needs a package index.
"""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from build_support import BUILT_BY, PACKAGES
from loadtest.cluster.local_cluster import LocalNode, free_ports
from loadtest.cluster.node_process import NodeProcess
from tests.support.clusters.live_cluster import SECRET, call, eventually, ok

ROOT = Path(__file__).parents[2]
CLIENT = {"milena", "pyspark_milena", "spark_ext"}
SERVER = {"http_api", "node", "raft_meta", "storage"}
TIMEOUT_S = 600

pytestmark = pytest.mark.integration


def modules(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as packed:
        return {name for name in packed.namelist() if name.endswith(".py")}


def dist_info(wheel: Path, name: str) -> bytes:
    with zipfile.ZipFile(wheel) as packed:
        (found,) = (n for n in packed.namelist() if n.endswith(f".dist-info/{name}"))
        return packed.read(found)


def metadata(wheel: Path) -> Metadata:
    """The metadata; anything that a package index would refuse is an error."""
    return Metadata.from_email(dist_info(wheel, "METADATA"), validate=True)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Both wheels by their project's name, which ``make wheels`` makes in a copy of the sources."""
    source = tmp_path_factory.mktemp("source")
    for package in (*PACKAGES, "examples"):
        shutil.copytree(ROOT / package, source / package, symlinks=True)
    for name in (*BUILT_BY, "Makefile", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    # A file of an earlier build, which has been deleted since.
    for deleted in ("build/lib/milena/deleted.py", "node/build/lib/node/deleted.py"):
        (source / deleted).parent.mkdir(parents=True, exist_ok=True)
        (source / deleted).write_text('"""Nothing."""\n', encoding="utf-8")
    beside = Path(sys.executable).parent
    make = ["make", "wheels", f"BIN={beside}", "BUILDER=builder", "--old-file=builder"]
    subprocess.run(make, cwd=source, check=True, timeout=TIMEOUT_S)
    assert not (source / "build" / "lib").exists()
    assert not (source / "node" / "build").exists()
    return {path.name.partition("-")[0]: path for path in (source / "build/wheels").iterdir()}


# -- what is in them -------------------------------------------------------------------------------


def test_the_client_brings_no_package_of_the_server(wheels):
    assert {name.partition("/")[0] for name in modules(wheels["milena"])} == CLIENT


def test_the_server_brings_what_the_client_does_not(wheels):
    assert {name.partition("/")[0] for name in modules(wheels["milena_node"])} == SERVER


def test_every_module_is_there_and_no_deleted_one(wheels):
    sources = {
        path.relative_to(ROOT).as_posix()
        for package in CLIENT | SERVER
        for path in (ROOT / package).rglob("*.py")
        if not path.is_relative_to(ROOT / "node" / "build")
    }
    assert modules(wheels["milena"]) | modules(wheels["milena_node"]) == sources


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


@pytest.mark.parametrize(
    ("project", "terms"), [("milena", "Apache-2.0"), ("milena_node", "Apache-2.0 AND MIT")]
)
def test_a_wheel_is_pure_and_says_all_that_an_index_shows(wheels, project, terms):
    wheel = wheels[project]
    assert wheel.name.endswith("-py3-none-any.whl")
    told = metadata(wheel)
    assert told.summary
    assert told.author
    assert told.keywords
    assert told.classifiers
    assert told.license_expression == terms
    assert told.requires_python is not None
    assert told.description_content_type == "text/markdown"
    assert told.description is not None
    assert told.description.startswith("# ")
    assert dist_info(wheel, "licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()


def test_both_are_of_one_version_and_the_node_needs_that_client(wheels):
    versions = {metadata(wheel).version for wheel in wheels.values()}
    (version,) = versions
    needed = {str(one) for one in metadata(wheels["milena_node"]).requires_dist or []}
    assert needed == {f"milena[node]=={version}", f'milena[kafka]=={version}; extra == "kafka"'}


# -- what they need, and how they run --------------------------------------------------------------


def declared(wheels: Mapping[str, Path], wanted: Iterable[Requirement]) -> dict[str, Distribution]:
    """Every package that these requirements lead to, except the project's own."""
    found: dict[str, Distribution] = {}
    waiting, seen = [*wanted], set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if (name, frozenset(requirement.extras)) in seen:
            continue
        seen.add((name, frozenset(requirement.extras)))
        if name.replace("-", "_") in wheels:
            needed = metadata(wheels[name.replace("-", "_")]).requires_dist or []
        else:
            found[name] = distribution(name)
            needed = [Requirement(text) for text in found[name].requires or ()]
        extras = requirement.extras or {""}
        waiting += [
            each
            for each in needed
            if each.marker is None or any(each.marker.evaluate({"extra": e}) for e in extras)
        ]
    return found


class Installed:
    """An environment with a project that pip installed from the wheels."""

    def __init__(self, folder: Path, wheels: Mapping[str, Path], project: str) -> None:
        self.bin = folder / "bin"
        self._home = folder
        venv.create(folder, symlinks=True)
        (site,) = folder.glob("lib/python*/site-packages")
        for package in declared(wheels, [Requirement(project)]).values():
            for name in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
                if not (site / name).exists():
                    (site / name).symlink_to(Path(str(package.locate_file(name))))
        (made,) = {wheel.parent for wheel in wheels.values()}
        pip = (sys.executable, "-m", "pip", "--python", str(self.bin / "python"))
        # Without --no-deps: pip itself finds that nothing is missing.
        self._run(
            *pip,
            *("install", "--quiet", "--disable-pip-version-check", "--no-index"),
            *("--no-compile", "--find-links", str(made), project),
        )

    @property
    def variables(self) -> dict[str, str]:
        """Nothing that leads to this checkout."""
        return {"PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}", "HOME": str(self._home)}

    def __call__(self, name: str, *words: str, text: str = "") -> str:
        """The output of a program of this environment."""
        return self._run(str(self.bin / name), *words, text=text)

    def _run(self, *command: str, text: str = "") -> str:
        done = subprocess.run(
            command,
            input=text,
            cwd=self._home,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def client(wheels, tmp_path_factory):
    return Installed(tmp_path_factory.mktemp("client"), wheels, "milena")


@pytest.fixture(scope="module")
def node(wheels, tmp_path_factory) -> Iterator[LocalNode]:
    """A node that ``milena start`` runs in an environment with the wheel of the node."""
    folder = tmp_path_factory.mktemp("node")
    server = Installed(folder / "environment", wheels, "milena-node")
    api_port, peer_port = free_ports(2)
    started = LocalNode(1, folder, api_port=api_port, peer_port=peer_port)
    process = NodeProcess(
        (
            *(str(server.bin / "milena"), "start", "--data-dir", str(started.data_dir)),
            *("--listen", f"127.0.0.1:{api_port}", "--peer-listen", f"127.0.0.1:{peer_port}"),
        ),
        environment={**server.variables, "MILENA_CLUSTER_SECRET": SECRET},
        log_path=started.log_path,
    )
    process.start()
    try:
        eventually(lambda: process.is_running and ok(call(started, "GET /brokers"))["brokers"])
        yield started
        assert process.stop(), process.log_tail()
    finally:
        process.kill()


IMPORT_ALL = """
import importlib, pkgutil, sys, milena
for module in pkgutil.walk_packages(milena.__path__, "milena."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(milena.__file__)
"""

PRODUCE = """
import sys, milena.sync
with milena.sync.Client(sys.argv[1]) as client:
    with client.producer() as producer:
        print(producer.send("visits", b"/cup", key=b"u1").result().offset)
    with client.reader("visits", 0) as reader:
        print([record.value for record in reader])
"""


def test_every_module_of_the_client_needs_declared_packages_only(client):
    (place,) = client("python", "-c", IMPORT_ALL).splitlines()
    assert Path(place).is_relative_to(client.bin.parent)
    tried = "import importlib.util as u; print([n for n in ('node', 'aiohttp', 'pyspark') if u.find_spec(n)])"
    assert client("python", "-c", tried) == "[]\n"


def test_an_installed_client_writes_to_an_installed_node_and_reads_it(client, node):
    client("milena", "--url", node.url, "topics", "create", "visits", "--partitions", "1")
    client("milena", "--url", node.url, "produce", "visits", text="/tea\n/book\n")
    read = client("milena", "--url", node.url, "consume", "visits", "--from-beginning")
    assert read == "/tea\n/book\n"
    assert client("python", "-c", PRODUCE, node.url).splitlines() == [
        "2",
        "[b'/tea', b'/book', b'/cup']",
    ]


def test_an_installed_node_serves_its_console(node):
    assert b"<script" in call(node, "GET /console/").body


def test_the_data_source_of_spark_needs_declared_packages_only(wheels, tmp_path):
    spark = Installed(tmp_path / "environment", wheels, "milena[spark]")
    program = (
        "from pyspark_milena import DefaultSource; print(DefaultSource.name());"
        "import spark_ext.jobs.archive, spark_ext.jobs.audit, spark_ext.jobs.replay"
    )
    assert spark("python", "-c", program) == "milena\n"
