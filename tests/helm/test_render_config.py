"""What a node of the chart is started with: read by the node's own configuration, and rolled out when it changes."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from node.config.options import NodeConfig, OptionDoc
from node.config.sources import flag_of, load_config
from tests.helm.charts import NAMESPACE, RELEASE, VALUES, Rendering, nested, render
from tests.helm.settings import passed_on

DOMAIN = f"{NAMESPACE}.svc.cluster.local"
MILENA = """#!/bin/sh
printf '%s\\n' "$@" > "$SEEN/arguments"
env > "$SEEN/environment"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """Starts pods of one rendering as far as the node's command line."""

    rendering: Rendering
    folder: Path

    @property
    def name(self) -> str:
        return str(self.rendering.one("StatefulSet")["metadata"]["name"])

    @property
    def count(self) -> int:
        return int(self.rendering.one("StatefulSet")["spec"]["replicas"])

    def start(self, ordinal: int, **environment: str) -> NodeConfig:
        """The configuration that the node of a pod ends up with."""
        data = self.rendering.one("ConfigMap", self.name)["data"]
        for file, text in data.items():
            (self.folder / file).write_text(text, encoding="utf-8")
        command = self.folder / "milena"
        command.write_text(MILENA, encoding="utf-8")
        command.chmod(0o755)
        pod = f"{self.name}-{ordinal}"
        given = {"POD_NAME": pod, "SEEN": str(self.folder), "PATH": f"{self.folder}:{os.defpath}"}
        subprocess.run(
            ["/bin/sh", str(self.folder / "start.sh")],
            env=given | self._plain_variables() | environment,
            check=True,
            timeout=10,
        )
        return self._load()

    def _plain_variables(self) -> dict[str, str]:
        return {v["name"]: v["value"] for v in self.rendering.container["env"] if "value" in v}

    def _load(self) -> NodeConfig:
        arguments = (self.folder / "arguments").read_text(encoding="utf-8").splitlines()
        lines = (self.folder / "environment").read_text(encoding="utf-8").splitlines()
        assert arguments[0] == "start"
        fields = {flag_of(name): name for name in ("peers", "join")}
        flags = {fields[arguments[i]]: arguments[i + 1] for i in range(1, len(arguments), 2)}
        environment = dict(line.split("=", 1) for line in lines if "=" in line)
        assert environment["MILENA_CONFIG"] == "/etc/milena/milena.toml"
        return load_config(self.folder / "milena.toml", environment, flags)


@pytest.fixture(params=VALUES, ids=lambda path: path.stem)
def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Nodes:
    return Nodes(rendering=render(request.param), folder=tmp_path)


def test_every_node_reads_its_configuration(nodes: Nodes) -> None:
    annotations = nodes.rendering.one("StatefulSet")["metadata"]["annotations"]
    voter_count = int(annotations["milena/voters"])
    configs = [nodes.start(ordinal) for ordinal in range(nodes.count)]
    voters = configs[0].peers
    assert [config.node_id for config in configs] == list(range(1, nodes.count + 1))
    assert sorted(voters) == list(range(1, voter_count + 1))
    for ordinal, config in enumerate(configs):
        host = f"{nodes.name}-{ordinal}.{nodes.name}-headless.{DOMAIN}"
        assert config.reachable_peer_address == (host, 7082)
        if ordinal < voter_count:
            assert config.peers == voters
            assert config.peers[ordinal + 1] == (host, 7082)
        else:
            assert config.join == tuple(voters.values())
        assert config.advertise
        assert config.has_api_tls == config.advertise.startswith("https://")


def test_nodes_advertise_their_own_names(tmp_path: Path) -> None:
    nodes = Nodes(rendering=render(), folder=tmp_path)
    host = f"{RELEASE}-milena-2.{RELEASE}-milena-headless.{DOMAIN}"
    assert nodes.start(2).advertise == f"http://{host}:8082"


def test_nodes_advertise_what_they_are_reached_by_from_outside(tmp_path: Path) -> None:
    values = next(path for path in VALUES if path.stem == "node-ports")
    nodes = Nodes(rendering=render(values), folder=tmp_path)
    assert nodes.start(2).advertise == "http://milena.example.org:30092"


def test_kafka_clients_learn_the_pods_names_inside_and_other_ones_outside(tmp_path: Path) -> None:
    def started(stem: str) -> NodeConfig:
        values = next(path for path in VALUES if path.stem == stem)
        return Nodes(rendering=render(values), folder=tmp_path).start(2)

    host = f"{RELEASE}-milena-2.{RELEASE}-milena-headless.{DOMAIN}"
    config = started("kafka")
    assert [config.kafka_address(9, place) for place in (0, 1)] == [
        (host, 9092),
        ("milena.example.org", 30092),
    ]
    assert not config.kafka_one_address
    config = started("kafka-one-address")
    assert [config.kafka_address(9, place) for place in (0, 1)] == [
        (host, 9092),
        ("kafka.example.org", 443),
    ]
    assert config.kafka_one_address
    assert Nodes(rendering=render(), folder=tmp_path).start(2).kafka_listen is None


def test_the_rack_is_what_the_label_says_if_there_is_one(tmp_path: Path) -> None:
    values = next(path for path in VALUES if path.stem == "observers")
    nodes = Nodes(rendering=render(values), folder=tmp_path)
    assert nodes.start(4, RACK="zone-b").rack == "zone-b"
    assert nodes.start(4, RACK="").rack is None


def test_nodes_make_the_first_user_that_the_values_name(tmp_path: Path) -> None:
    auth = {"adminUser": "root", "mode": "optional"}
    config = Nodes(rendering=render(overrides={"auth": auth}), folder=tmp_path).start(0)
    assert (config.admin_user, config.access_mode) == ("root", "optional")
    assert config.admin_password_file is not None
    config = Nodes(rendering=render(), folder=tmp_path).start(0)
    assert (config.admin_user, config.access_mode) == ("admin", "required")


def test_nodes_of_an_open_cluster_make_none(tmp_path: Path) -> None:
    rendering = render(overrides=nested("auth.enabled", False))
    config = Nodes(rendering=rendering, folder=tmp_path).start(0)
    assert config.admin_password_file is None


def test_paths_are_where_something_is_mounted(nodes: Nodes) -> None:
    config = nodes.start(0)
    mounts = {mount["mountPath"] for mount in nodes.rendering.container["volumeMounts"]}
    paths = [
        config.data_dir,
        config.cluster_secret_file,
        config.admin_password_file,
        *(config.tls_cert_file, config.tls_key_file),
        *(config.peer_tls_cert_file, config.peer_tls_key_file, config.peer_tls_ca_file),
    ]
    assert {str(path.parent) for path in paths if path is not None} <= mounts


def test_a_stop_by_the_node_itself_is_bounded_like_the_drain_before_it(nodes: Nodes) -> None:
    grace = nodes.rendering.nodes["spec"]["terminationGracePeriodSeconds"]
    assert nodes.start(0).drain_timeout_ms * 2 <= grace * 1000


def other_value(doc: OptionDoc) -> object:
    """A value of a setting that no value file and no default has."""
    if doc.kind.is_switch:
        return True
    bounds = doc.kind.allowed.split()
    if bounds[0] == "ADDRESS":
        return "10.0.0.0/8"
    return int(bounds[0]) + 1 if bounds[0].isdigit() else bounds[0]


@pytest.mark.parametrize("name", sorted(passed_on()))
def test_a_change_of_any_setting_rolls_the_nodes(name: str) -> None:
    changed = render(overrides=nested(f"config.{name}", other_value(passed_on()[name])))
    assert changed.checksum != render().checksum
    assert f"\n{name} = " in changed.one("ConfigMap")["data"]["milena.toml"]


ROLLING = {
    "drain.timeoutSeconds": 29,
    "drain.settleSeconds": 4,
    "terminationGracePeriodSeconds": 91,
    "clusterDomain": "example.org",
    "rackFromPodLabel": "zone",
    "clusterSecret.existingSecret": "other",
    "auth.enabled": False,
    "auth.mode": "optional",
    "auth.adminUser": "root",
    "auth.existingSecret": "other",
    "tls.api": {"enabled": True, "existingSecret": "other"},
    "tls.peer": {"enabled": True, "existingSecret": "other"},
    "image.tag": "next",
    "resources.limits.cpu": 2,
    "extraEnv": [{"name": "A", "value": "b"}],
    "podAnnotations.a": "b",
    "kafka.enabled": True,
    "probes.liveness.periodSeconds": 11,
    "externalAccess": {
        "enabled": True,
        "perPod": {"enabled": True, "advertise": "http://n{ordinal}.example.org"},
    },
}
"""Values that nodes must be started anew for."""

STILL = {
    "replicas": 5,
    "scaleDown.emptiedNodes": [7],
    "podDisruptionBudget.maxUnavailable": 0,
    "networkPolicy.enabled": False,
    "service.port": 80,
    "service.type": "NodePort",
    "externalAccess.enabled": True,
    "ingress": {"enabled": True, "hosts": ["log.example.org"]},
    "topics": [{"name": "a"}],
    "topicJob.timeoutSeconds": 99,
    "metrics.serviceMonitor": {"enabled": True, "token": {"existingSecret": "other"}},
    "metrics.prometheusRule.enabled": True,
    "metrics.dashboards.enabled": True,
    "persistence.whenScaled": "Delete",
    "extraObjects": [{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "x"}}],
    "global.a": 1,
}
"""Values that must not disturb running nodes; growing above all."""


@pytest.mark.parametrize("path", sorted(ROLLING))
def test_what_a_node_depends_on_rolls_it(path: str) -> None:
    assert render(overrides=nested(path, ROLLING[path])).nodes != render().nodes


@pytest.mark.parametrize("path", sorted(STILL))
def test_what_no_node_depends_on_leaves_it_alone(path: str) -> None:
    assert render(overrides=nested(path, STILL[path])).nodes == render().nodes


def test_large_numbers_stay_whole() -> None:
    rendering = render(overrides=nested("config.bytes_in_flight_max", 1_099_511_627_776))
    text = rendering.one("ConfigMap")["data"]["milena.toml"]
    assert "bytes_in_flight_max = 1099511627776\n" in text
