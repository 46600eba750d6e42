"""compose.yaml is three nodes that understand their settings, find each other, and are asked whether they are ready."""

import re
from pathlib import Path

import pytest
import yaml

from http_api.routes import ROUTES
from node.config.options import NodeConfig
from node.config.sources import FOREIGN_VARIABLES, load_config

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
SERVICES = COMPOSE["services"]
DATA = "/var/lib/milena"
"""The image's volume, which belongs to the image's user."""

KNOWN = {
    "cap_drop", "command", "environment", "healthcheck", "image", "ports", "pull_policy", "read_only", "restart",
    "security_opt", "stop_grace_period", "tmpfs", "volumes",
}  # fmt: skip
HEALTH_KNOWN = {"test", "interval", "timeout", "retries", "start_period"}


def config_of(service: dict, secret: str = "a secret of some length") -> NodeConfig:
    """What the node makes of its variables, as compose fills them in; there are no flags."""
    assert service["command"] == ["start"]
    filled = {
        name: re.sub(r"\$\{MILENA_CLUSTER_SECRET:\?[^}]*\}", secret, value)
        for name, value in service["environment"].items()
    }
    assert not FOREIGN_VARIABLES & set(filled)
    assert all(name.startswith("MILENA_") for name in filled)
    return load_config(config_file=None, environment=filled, flags={})


def test_the_cluster_is_of_three():
    configs = {name: config_of(service) for name, service in SERVICES.items()}
    assert {config.node_id for config in configs.values()} == {1, 2, 3}
    (peers,) = {tuple(sorted(config.peers.items())) for config in configs.values()}
    assert {name: dict(peers)[config.node_id].host for name, config in configs.items()} == {
        name: name for name in SERVICES
    }
    assert {address.port for _, address in peers} == {
        config.peer_listen.port for config in configs.values()
    }


@pytest.mark.parametrize("name", SERVICES)
def test_a_node_is_reached_where_it_says(name):
    service = SERVICES[name]
    config = config_of(service)
    port = config.listen.port
    assert service["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert config.advertise == f"http://localhost:{port}"


@pytest.mark.parametrize("name", SERVICES)
def test_a_node_keeps_its_data_in_a_volume_of_its_own(name):
    service = SERVICES[name]
    assert service["volumes"] == [f"{name}:{DATA}"]
    assert name in COMPOSE["volumes"]
    assert config_of(service).data_dir.is_relative_to(DATA)
    assert f"VOLUME {DATA}\n" in (ROOT / "Dockerfile").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SERVICES)
def test_health_is_asked_of_an_endpoint_that_there_is(name):
    service = SERVICES[name]
    health = service["healthcheck"]
    assert set(health) <= HEALTH_KNOWN
    *command, program = health["test"]
    assert command == ["CMD", "python3", "-c"]
    compile(program, name, "exec")
    port, path = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", program).groups()
    assert int(port) == config_of(service).listen.port
    assert path in {route.path for route in ROUTES}


@pytest.mark.parametrize("name", SERVICES)
def test_a_node_may_finish_its_drain(name):
    service = SERVICES[name]
    grace_s = int(service["stop_grace_period"].removesuffix("s"))
    assert grace_s * 1000 > config_of(service).drain_timeout_ms
    assert set(service) <= KNOWN


def test_the_image_is_the_one_that_the_readme_builds():
    (image,) = {service["image"] for service in SERVICES.values()}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"docker build --tag {image} .\ndocker compose up" in readme


def test_no_secret_is_told_or_made_up():
    assert {s["environment"]["MILENA_CLUSTER_SECRET"][:26] for s in SERVICES.values()} == {
        "${MILENA_CLUSTER_SECRET:?s"
    }
