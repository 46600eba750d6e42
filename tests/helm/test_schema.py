"""What the chart refuses before anything is sent to a cluster, and in which words."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from node.config.options import OPTIONS
from tests.helm.charts import CHART, RefusedError, helm, nested, render
from tests.helm.settings import SET_BY_CHART, config_schema

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
DEFAULTS: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))

TLS_ON = {"enabled": True}

REFUSED: tuple[tuple[str, object, str], ...] = (
    # Counts of voters that survive no more failures than the next lower one, or none that is known.
    ("voters", 2, "voters: voters must be one of the following: 1, 3, 5"),
    ("voters", 4, "voters: voters must be one of the following: 1, 3, 5"),
    ("voters", 7, "voters: voters must be one of the following: 1, 3, 5"),
    ("voters", 5, "replicas = 3 is below voters = 5"),
    ("replicas", 2, "replicas = 2 is below voters = 3"),
    ("replicas", 0, "replicas: Must be greater than or equal to 1"),
    # Unknown names.
    ("replicaCount", 3, "Additional property replicaCount is not allowed"),
    ("persistence.storage", "1Gi", "persistence: Additional property storage is not allowed"),
    ("config.retention", 1, "config: Additional property retention is not allowed"),
    ("config.node_id", 1, "config: Additional property node_id is not allowed"),
    ("config.tls_client_ca_file", "/ca", "Additional property tls_client_ca_file is not allowed"),
    ("config.admin_user", "a", "config: Additional property admin_user is not allowed"),
    ("config.access_mode", "off", "config: Additional property access_mode is not allowed"),
    ("auth.password", "a secret", "auth: Additional property password is not allowed"),
    ("topics", [{"name": "a", "replicas": 3}], "Additional property replicas is not allowed"),
    ("probes.startup.path", "/", "probes.startup: Additional property path is not allowed"),
    # Wrong types and values.
    ("replicas", "3", "replicas: Invalid type. Expected: integer, given: string"),
    ("replicas", 3.5, "replicas: Invalid type. Expected: integer, given: number"),
    ("persistence.enabled", "yes", "persistence.enabled: Invalid type. Expected: boolean"),
    ("persistence.size", "10GB", "persistence.size: Does not match pattern"),
    ("persistence.size", 10, "persistence.size: Invalid type. Expected: string"),
    ("persistence.accessModes", [], "Array must have at least 1 items"),
    ("config.log_level", "loud", "config.log_level: config.log_level must be one of"),
    ("config.fetch_bytes_max", 1, "Must be greater than or equal to 1024"),
    ("config.auto_create_topics", "yes", "Invalid type. Expected: boolean, given: string"),
    (
        "auth.mode",
        "off",
        'auth.mode: auth.mode must be one of the following: "required", "optional"',
    ),
    ("auth.enabled", "required", "auth.enabled: Invalid type. Expected: boolean"),
    ("auth.adminUser", "a:b", "auth.adminUser: Does not match pattern"),
    ("auth.adminUser", "", "auth.adminUser: Does not match pattern"),
    ("image.pullPolicy", "Sometimes", "image.pullPolicy must be one of the following"),
    ("image.digest", "abc", "image.digest: Does not match pattern"),
    ("service.port", 70_000, "service.port: Must be less than or equal to 65535"),
    ("extraEnv", {"A": "b"}, "extraEnv: Invalid type. Expected: array, given: object"),
    ("extraEnv", [{"value": "b"}], "extraEnv.0: name is required"),
    ("extraVolumeMounts", [{"name": "b"}], "extraVolumeMounts.0: mountPath is required"),
    ("topics", [{"partitions": 3}], "topics.0: name is required"),
    ("topics", [{"name": "a b"}], "topics.0.name: Does not match pattern"),
    ("fullnameOverride", "Not_A_Name", "fullnameOverride: Does not match pattern"),
    ("podAntiAffinity", "maybe", "podAntiAffinity must be one of the following"),
    ("externalAccess.sourceRanges", ["home"], "sourceRanges.0: Does not match pattern"),
    ("externalAccess.perPod.advertise", "$(id)", "advertise: Does not match pattern"),
    ("ingress.hosts", ["https://log.example.org"], "ingress.hosts.0: Does not match pattern"),
    ("ingress.path", "log", "ingress.path: Does not match pattern"),
    ("ingress.pathType", "Regex", "ingress.pathType must be one of the following"),
    ("ingress.annotations", {"a": 1}, "Invalid type. Expected: string, given: integer"),
    ("ingress.tls", [{"secret": "web"}], "Additional property secret is not allowed"),
    ("kafka.advertise", "$(id):9094", "kafka.advertise: Does not match pattern"),
    ("kafka.advertise", "node.example.org", "kafka.advertise: Does not match pattern"),
    ("config.kafka_listen", "0.0.0.0:1", "Additional property kafka_listen is not allowed"),
    # Values that contradict each other.
    ("kafka.advertise", "a:9094", "but kafka.enabled is false: set it, too"),
    ("kafka", {"enabled": True, "oneAddress": True}, "kafka.oneAddress needs kafka.advertise"),
    ("kafka", {"enabled": True, "advertise": "a:9"}, "needs externalAccess.enabled"),
    ("ingress", {"enabled": True, "path": "/log"}, "/log is not a path of a node"),
    ("podDisruptionBudget.maxUnavailable", 2, "= 2 breaks the quorum: with 3 voters at most 1"),
    ("podDisruptionBudget.maxUnavailable", "50%", "Invalid type. Expected: integer"),
    ("drain.timeoutSeconds", 43, "is more than half of terminationGracePeriodSeconds = 90"),
    ("terminationGracePeriodSeconds", 60, "is more than half of terminationGracePeriodSeconds"),
    ("config.default_replication_factor", 5, "is more than replicas = 3"),
    ("topics", [{"name": "a", "replicationFactor": 5}], "a asks for replicationFactor = 5"),
    ("tls.api", TLS_ON, "tls.api.enabled needs certificates"),
    ("tls.peer", TLS_ON, "tls.peer.enabled needs certificates"),
    ("tls.api", {"existingSecret": "web"}, "no node would use: set tls.api.enabled, too"),
    ("tls.peer", {"existingSecret": "pods"}, "no node would use: set tls.peer.enabled, too"),
    ("tls.certManager", TLS_ON, "set tls.api.enabled or tls.peer.enabled, too"),
    ("tls.clients", {"existingSecret": "people"}, "existingSecret needs tls.api.enabled"),
    ("tls.clients", {"principalRule": "CN:(.+)"}, "principalRule needs tls.clients.existingSecret"),
    ("auth", None, "There is no value auth: --reuse-values takes the values of a chart"),
    ("externalAccess.perPod", TLS_ON, "perPod.enabled needs externalAccess.enabled"),
    (
        "externalAccess",
        {"enabled": True, "perPod": {"enabled": True, "nodePorts": [30_001]}},
        "names 1 ports for replicas = 3 pods",
    ),
)


@pytest.mark.parametrize(("path", "value", "message"), REFUSED)
def test_bad_values_are_refused(path: str, value: object, message: str) -> None:
    with pytest.raises(RefusedError) as refusal:
        render(overrides=nested(path, value))
    assert message in str(refusal.value)


def test_an_http_url_is_not_advertised_for_an_https_api() -> None:
    access = {"enabled": True, "perPod": {"enabled": True, "advertise": "http://a.example.org"}}
    tls = {"api": {"enabled": True, "existingSecret": "web"}}
    with pytest.raises(RefusedError, match=r"begins with http://, but tls\.api\.enabled"):
        render(overrides={"externalAccess": access, "tls": tls})


def test_nobody_is_given_a_password_anew_where_there_is_none() -> None:
    with pytest.raises(RefusedError, match=r"auth\.enabled is false.*\nSet auth\.enabled=true"):
        render(overrides={"auth": {"enabled": False}, "config": {"reset_admin": True}})


@pytest.mark.parametrize("release", ["1st", "a.b"])
def test_a_release_whose_name_no_service_can_have_needs_another(release: str) -> None:
    refused = helm("template", release, str(CHART))
    assert f"{release}-milena cannot be the name of a service" in refused.stderr
    named = helm("template", release, str(CHART), "--set", "fullnameOverride=log")
    assert named.returncode == 0


def test_a_chart_around_this_one_may_set_global_values() -> None:
    assert render(overrides=nested("global.storageClass", "fast")) is not None


def test_every_setting_of_a_node_is_in_the_schema_with_its_bounds() -> None:
    found = SCHEMA["properties"]["config"]["properties"]
    assert found == config_schema(), "run: python -m tests.helm.settings"


def test_settings_that_the_chart_sets_are_settings() -> None:
    assert set(OPTIONS) > SET_BY_CHART


def objects(schema: dict[str, Any], at: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object of the schema that lists its properties."""
    if "properties" in schema:
        yield at, schema
        for name, inner in schema["properties"].items():
            yield from objects(inner, f"{at}.{name}".lstrip("."))


def default_at(path: str) -> dict[str, Any]:
    found = DEFAULTS
    for name in path.split(".") if path else ():
        found = found[name]
    return found


@pytest.mark.parametrize("path", [path for path, _ in objects(SCHEMA)])
def test_schema_and_values_name_the_same_things(path: str) -> None:
    schema = dict(objects(SCHEMA))[path]
    assert schema["additionalProperties"] is False
    optional = {"", "config", "resources", "tls.certManager.issuerRef"}
    named, given = set(schema["properties"]), set(default_at(path))
    assert given <= named
    assert path in optional or named == given
    assert path or named - given == {"global"}
