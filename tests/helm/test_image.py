"""The image: built for real, unpacked, and run read-only without rights as the chart runs it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helm.certificates import issue
from tests.helm.charts import ROOT, Document, Rendering, nested, render
from tests.helm.image_build import (
    SECRET_FILE,
    VERSION,
    BuiltImage,
    build_image,
    discard,
    missing_tools,
)
from tests.helm.image_node import ImageNode, data_folder, describe

pytestmark = [pytest.mark.long, pytest.mark.integration]

SINGLE = ROOT / "tests/helm/values/single.yaml"
READY_S = 60.0
STOP_S = 30.0
IS_ITS_USER = "grep -q '^Uid:.*10001' /proc/1/status"
READY = "import urllib.request as u; u.urlopen('http://127.0.0.1:8082/readyz', timeout=5)"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BuiltImage]:
    assert not missing_tools(), f"needs {', '.join(missing_tools())}"
    work = tmp_path_factory.mktemp("image")
    try:
        yield build_image(work)
    finally:
        discard(work)


def write_config(rendering: Rendering, folder: Path) -> None:
    for name, text in rendering.one("ConfigMap")["data"].items():
        (folder / name).write_text(text, encoding="utf-8")


def plain_variables(container: Document) -> dict[str, str]:
    return {v["name"]: v["value"] for v in container["env"] if "value" in v}


@pytest.fixture
def mounts(tmp_path: Path) -> dict[Path, str]:
    """The volumes that the chart mounts, with what it renders into them."""
    config, secret, admin = (tmp_path / name for name in ("config", "secret", "admin"))
    for folder in (config, secret, admin):
        folder.mkdir()
    write_config(render(SINGLE), config)
    (secret / "cluster-secret").write_text("a secret of some length", encoding="utf-8")
    (admin / "admin-password").write_text("a password of some length", encoding="utf-8")
    tmp_path.chmod(0o755)
    return {
        **data_folder(tmp_path / "data"),
        config: "/etc/milena",
        secret: "/etc/milena-secret",
        admin: "/etc/milena-admin",
    }


@pytest.fixture
def node(image: BuiltImage, mounts: dict[Path, str], tmp_path: Path) -> Iterator[ImageNode]:
    """A node started by the chart's own command."""
    container = render(SINGLE).container
    with ImageNode(
        image=image,
        arguments=tuple(container["command"]),
        mounts=mounts,
        environment=plain_variables(container) | {"POD_NAME": "r-milena-0"},
        log=tmp_path / "log",
    ) as started:
        started.wait_until_succeeds("python3", "-c", READY, within_s=READY_S)
        yield started


def test_a_container_that_is_done_with_leaves_no_process(
    image: BuiltImage, mounts: dict[Path, str], tmp_path: Path
) -> None:
    """Also when its user is not root: the kernel then forgets that it was to die with its parent."""
    log = tmp_path / "log"
    with ImageNode(image=image, arguments=("/usr/bin/sleep", "600"), mounts=mounts, log=log) as run:
        run.wait_until_succeeds("/bin/sh", "-c", IS_ITS_USER, within_s=READY_S)
        pid = run.pid
    assert not Path(f"/proc/{pid}").exists()


def site_packages(image: BuiltImage) -> Path:
    return next((image.root / "opt" / "milena" / "lib").glob("python3*")) / "site-packages"


def test_the_image_says_what_it_is(image: BuiltImage) -> None:
    config = image.inspect()["config"]
    assert config["User"] == "10001:10001", (
        "a number, or Kubernetes cannot tell that it is not root"
    )
    assert config["Entrypoint"] == ["milena"]
    assert config["Cmd"][0] == "start"
    assert config["Volumes"] == {"/var/lib/milena": {}}
    assert set(config["ExposedPorts"]) == {"8082/tcp", "7082/tcp", "9092/tcp"}
    assert config["Labels"]["org.opencontainers.image.version"] == VERSION
    assert config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_the_image_holds_the_node_and_nothing_of_spark_tests_or_pip(image: BuiltImage) -> None:
    packages = {path.name for path in site_packages(image).iterdir()}
    assert {"node", "http_api", "raft_meta", "storage", "milena", "aiohttp", "uvloop"} <= packages
    unwanted = {
        *("pyspark", "py4j", "pyarrow", "pandas", "locust", "gevent", "matplotlib", "pytest"),
        *("pip", "setuptools", "mypy", "mypyc", "spark_ext", "loadtest", "tests"),
    }
    assert not packages & unwanted


def test_every_package_is_of_the_pinned_version(image: BuiltImage) -> None:
    def plain(name: str) -> str:
        return name.lower().replace("-", "_")

    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = {plain(n): v for n, _, v in (line.partition("==") for line in lines) if v}
    found = [path.name for path in site_packages(image).glob("*.dist-info")]
    versions = dict(name.removesuffix(".dist-info").rsplit("-", 1) for name in found)
    assert versions.pop("milena") == versions.pop("milena_node")
    assert {plain(name): version for name, version in versions.items()} == {
        plain(name): pins[plain(name)] for name in versions
    }


def test_the_hot_modules_are_compiled_and_no_compiler_is_left(
    image: BuiltImage, node: ImageNode
) -> None:
    assert (site_packages(image) / "milena/model/batch/header.py").exists(), "for tracebacks"
    assert list((site_packages(image) / "milena/model/batch").glob("decode.*.so"))
    assert not (image.root / "usr/bin/gcc").exists()
    assert node.run("milena", "--version").stdout.endswith("(compiled)\n")
    assert "build           compiled" in node.output()


def test_nothing_else_of_the_work_tree_got_in(image: BuiltImage) -> None:
    assert not list(image.root.rglob(SECRET_FILE))
    assert not (image.root / "wheelhouse").exists()
    assert not (image.root / "source").exists()


def test_no_address_of_a_package_index_is_in_the_image(image: BuiltImage) -> None:
    assert "index" not in describe(image)
    assert not list(image.root.glob("etc/pip.conf"))
    assert "://" not in (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_the_files_belong_to_root_and_the_data_to_the_node(image: BuiltImage) -> None:
    assert (image.root / "opt/milena/bin/milena").stat().st_uid == 0
    data = (image.root / "var/lib/milena").stat()
    assert (data.st_uid, data.st_gid, data.st_mode & 0o777) == (10001, 10001, 0o750)


def test_the_node_is_process_1_without_rights(node: ImageNode) -> None:
    assert node.status("NSpid").split()[-1] == "1"
    assert node.status("Uid").split() == ["10001"] * 4
    assert node.status("Gid").split() == ["10001"] * 4
    assert {node.status(f"Cap{kind}") for kind in ("Inh", "Prm", "Eff", "Bnd")} == {"0" * 16}
    assert node.status("NoNewPrivs") == "1"


def test_the_root_is_read_only_and_nobody_minds(node: ImageNode) -> None:
    assert node.run("/usr/bin/touch", "/opt/here").returncode != 0
    assert node.run("/usr/bin/touch", "/var/lib/milena/here").returncode == 0
    assert node.run("/usr/bin/touch", "/tmp/here").returncode == 0


def test_the_charts_test_runs_in_the_image(node: ImageNode) -> None:
    pod = render().one("Pod")["spec"]["containers"][0]
    done = node.run(*pod["command"], *pod["args"])
    assert done.returncode == 0, done.stdout + done.stderr + node.output()
    assert "the record came back" in done.stdout


def test_the_charts_topic_job_runs_in_the_image_as_often_as_you_like(node: ImageNode) -> None:
    topics = [{"name": "orders", "partitions": 2, "config": {"retention.ms": 86_400_000}}]
    job = render(overrides={"topics": topics}).one("Job")
    container = job["spec"]["template"]["spec"]["containers"][0]
    for _ in range(2):
        done = node.run(*container["command"], *container["args"])
        assert done.returncode == 0, done.stderr
    assert "orders" in node.run("milena", "topics", "list").stdout


def test_the_pre_stop_hook_drains_and_sigterm_ends_process_1(node: ImageNode) -> None:
    container = render(overrides=nested("drain.settleSeconds", 0)).container
    hook = node.run(*container["lifecycle"]["preStop"]["exec"]["command"])
    assert hook.returncode == 0, hook.stdout + hook.stderr
    assert node.terminate(STOP_S) == 0, node.output()
    assert "Traceback" not in node.output()


def test_sigterm_alone_stops_process_1_cleanly(node: ImageNode) -> None:
    assert node.terminate(STOP_S) == 0, node.output()
    assert "Traceback" not in node.output()


def test_the_hook_and_the_commands_trust_an_https_api(
    image: BuiltImage, mounts: dict[Path, str], tmp_path: Path
) -> None:
    tls = {"api": {"enabled": True}, "certManager": {"enabled": True}}
    rendering = render(SINGLE, {"tls": tls})
    certificates = issue(tmp_path / "tls", rendering.one("Certificate", "-api"))
    (certificates / "tls.key").chmod(0o644)
    write_config(rendering, next(path for path, at in mounts.items() if at == "/etc/milena"))
    with ImageNode(
        image=image,
        arguments=tuple(rendering.container["command"]),
        mounts={**mounts, certificates: "/etc/milena-tls/api"},
        environment=plain_variables(rendering.container) | {"POD_NAME": "r-milena-0"},
        log=tmp_path / "log",
    ) as node:
        node.wait_until_succeeds("milena", "status", within_s=READY_S)
        node.wait_until_succeeds("milena", "topics", "create", "orders", within_s=READY_S)
        hook = rendering.container["lifecycle"]["preStop"]["exec"]["command"]
        assert "drained" in node.run(*hook).stdout
        assert node.terminate(STOP_S) == 0, node.output()


def test_the_image_alone_runs_a_node(image: BuiltImage, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with ImageNode(
        image=image,
        arguments=tuple(image.inspect()["config"]["Cmd"]),
        mounts=data_folder(tmp_path / "data"),
        log=tmp_path / "log",
    ) as node:
        node.wait_until_succeeds("python3", "-c", READY, within_s=READY_S)
        assert node.run("milena", "status").returncode == 0
        assert node.terminate(STOP_S) == 0, node.output()
