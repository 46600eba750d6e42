"""The commands' flags, refusals and exit codes, without a node."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from milena.model.build_kind import build_kind
from milena.model.errors import StartupError
from node import cli
from node.config.options import OPTIONS, NodeConfig
from node.config.sources import load_config
from node.metrics.counts import NodeCounts
from node.process.announce import announcement

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[NodeConfig]:
    """Configurations of which a node would have been run."""
    configs: list[NodeConfig] = []

    def run_node(config: NodeConfig) -> int:
        configs.append(config)
        return 0

    monkeypatch.setattr(cli, "run_node", run_node)
    return configs


def invoke(*words: str, **environment: str):
    return CliRunner().invoke(cli.start, words, env=environment)


def test_every_setting_but_the_secret_has_a_flag():
    flags = {option for parameter in cli.start.params for option in parameter.opts}
    for name, meta in OPTIONS.items():
        assert ("--" + name.replace("_", "-") in flags) is not meta.is_secret


def test_start_without_anything_runs_the_defaults(started: list[NodeConfig]):
    assert invoke().exit_code == 0
    assert started == [NodeConfig()]


def test_start_takes_settings_from_every_source(started: list[NodeConfig], tmp_path: Path):
    path = tmp_path / "m.toml"
    path.write_text('rack = "file"\nnode_id = 3\n', encoding="utf-8")
    result = invoke(
        "--node-id",
        "5",
        "--no-auto-create-topics",
        MILENA_CONFIG=str(path),
        MILENA_LOG_LEVEL="error",
    )
    assert result.exit_code == 0, result.output
    (config,) = started
    assert (config.rack, config.node_id, config.log_level) == ("file", 5, "error")
    assert config.auto_create_topics is False


def test_a_refusal_is_one_line_and_exit_code_78(started: list[NodeConfig]):
    result = invoke("--peer-listen", "0.0.0.0:7082")
    assert result.exit_code == 78
    assert started == []
    (line,) = result.stderr.splitlines()
    assert line.startswith("milena: cannot start: peer_listen = 0.0.0.0:7082 is open beyond")


def test_a_refusal_inside_a_task_group_is_still_a_refusal():
    inner = StartupError("another cluster")
    group = BaseExceptionGroup("", [ValueError(), ExceptionGroup("", [inner])])
    assert cli._refusal(group) is inner
    assert cli._refusal(ExceptionGroup("", [ValueError()])) is None


class Graph:
    """Stands for ``node.wiring``: a node that serves until it is stopped, or fails as told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fail_start: Exception | None = None
        self.on_serve: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGTERM)
        self.stopped: list[bool] = []
        graph = self

        class Node:
            url = "http://127.0.0.1:1"
            counts = NodeCounts()

            def __init__(self, config: NodeConfig, **_: object) -> None:
                pass

            async def start(self) -> None:
                if graph.fail_start is not None:
                    raise graph.fail_start

            async def serve(self, stop: asyncio.Event) -> None:
                graph.on_serve()
                await stop.wait()
                graph.stopped.append(stop.is_set())

        async def build_node(config: NodeConfig) -> Node:
            return Node(config)

        module = ModuleType("node.wiring")
        module.__dict__.update(build_node=build_node)
        monkeypatch.setitem(sys.modules, "node.wiring", module)
        monkeypatch.setattr("node.wiring", module, raising=False)
        monkeypatch.setattr(cli, "configure_logs", lambda **_: None)


@pytest.fixture
def graph(monkeypatch: pytest.MonkeyPatch) -> Graph:
    return Graph(monkeypatch)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_node_gracefully(graph: Graph, capsys, number: signal.Signals):
    graph.on_serve = lambda: os.kill(os.getpid(), number)
    assert cli.run_node(NodeConfig()) == 0
    assert graph.stopped == [True]
    assert "Milena node 1 listens on http://127.0.0.1:1" in capsys.readouterr().out


def test_a_signal_ends_the_wait_for_a_cluster_to_join(graph: Graph):
    async def build_node(config: NodeConfig) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    sys.modules["node.wiring"].__dict__["build_node"] = build_node
    assert cli.run_node(NodeConfig()) == 0
    assert not graph.stopped


def test_a_cluster_that_does_not_respond_is_no_reason_to_stay_down(graph: Graph):
    graph.fail_start = StartupError("no node of --join answered", is_temporary=True)
    assert invoke().exit_code == 75


def test_a_node_that_refuses_to_start_says_why(graph: Graph):
    graph.fail_start = StartupError("data directory belongs to node 2")
    result = invoke()
    assert result.exit_code == 78
    assert result.stderr == "milena: cannot start: data directory belongs to node 2\n"


def test_a_broken_invariant_is_exit_code_70(graph: Graph, caplog: pytest.LogCaptureFixture):
    graph.fail_start = AssertionError("high watermark fell")
    assert cli.run_node(NodeConfig()) == 70
    assert "high watermark fell" in caplog.text


def test_dev_refuses_ports_that_collide(tmp_path: Path):
    words = ["--data-dir", str(tmp_path / "d"), "--base-port", "7082"]
    result = CliRunner().invoke(cli.dev, words)
    assert result.exit_code == 78
    assert "would collide" in result.stderr


def test_the_malloc_settings_are_taken_wherever_there_is_a_malloc():
    cli.raise_malloc_thresholds()


def test_the_announcement_says_where_things_are_and_what_to_type_next():
    config = load_config(None, {}, {"peers": "1=a:1,2=b:1,3=c:1", "data_dir": "/data"})
    text = announcement(config, "http://h:1")
    assert "Milena node 1 listens on http://h:1" in text
    assert "/data" in text
    assert "2=b:1, 3=c:1" in text
    assert f"build           {build_kind()}" in text
    assert "curl -H 'Content-Type: application/vnd.kafka.json.v2+json' -d '{\"records\"" in text
    assert "http://h:1/topics/greetings/partitions/0/records?offset=earliest" in text


def test_the_announcement_of_other_kinds_of_node():
    assert "a cluster of this node alone" in announcement(NodeConfig(), "http://h:1")
    assert "joins a:7082" in announcement(load_config(None, {}, {"join": "a:7082"}), "http://h:1")
    tls = load_config(None, {}, {"tls_cert_file": "c.pem", "tls_key_file": "k.pem"})
    assert "curl --cacert c.pem" in announcement(tls, "https://h:1")


@pytest.mark.parametrize(
    ("settings", "curl", "create"),
    [
        ({}, "curl -H", None),
        (
            {"auto_create_topics": "false"},
            "curl -H",
            "milena --url https://h:1 topics create greetings",
        ),
        (
            {"admin_password_file": "/p", "admin_user": "root", "auto_create_topics": "false"},
            "curl --user root -H",
            "milena --url https://h:1 --user root --password-file /p topics create greetings",
        ),
        (
            {"tls_cert_file": "c", "tls_key_file": "k", "tls_client_ca_file": "a"},
            "curl --cacert c --cert CLIENT.pem --key CLIENT.key -H",
            None,
        ),
        (
            {"tls_cert_file": "c", "tls_key_file": "k", "auto_create_topics": "false"},
            "curl --cacert c -H",
            "milena --url https://h:1 --ca c topics create greetings",
        ),
    ],
)
def test_the_announced_commands_are_those_that_the_node_takes(settings, curl, create):
    lines = announcement(load_config(None, {}, settings), "https://h:1").splitlines()
    said = {line[:16].strip(): line[18:] for line in lines}
    assert said["write"].startswith(curl)
    assert said["read"].startswith(curl.removesuffix(" -H"))
    assert said.get("create") == create
    assert create is None or [*said].index("create") < [*said].index("write")
