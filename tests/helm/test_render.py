"""What the chart renders: valid for Kubernetes, consistent in itself, and what a node understands."""

import re
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from http_api.routes import ROUTES
from tests.helm.charts import (
    CHART,
    NAMESPACE,
    RELEASE,
    ROOT,
    VALUES,
    Document,
    RefusedError,
    Rendering,
    helm,
    is_subset,
    nested,
    render,
)

KUBERNETES_VERSIONS = ("1.27", "1.32", "1.37")
"""The oldest that the chart takes, one between, the newest whose schemas are installed."""

FOREIGN_KINDS = {"Certificate", "Issuer", "ServiceMonitor", "PrometheusRule"}
"""Kinds that Kubernetes itself has no schema of."""

PROBES = ("startup", "readiness", "liveness")
FROM_ELSEWHERE = {"people", "milena-web", "milena-nodes", "shared", "superusers"}
"""Secrets that the value files take for granted."""


@pytest.fixture(params=VALUES, ids=lambda path: path.stem)
def rendering(request: pytest.FixtureRequest) -> Rendering:
    return render(request.param)


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_lint_finds_nothing(values: object) -> None:
    done = helm("lint", "--strict", str(CHART), "--values", str(values))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_every_object_is_valid(rendering: Rendering, version: str) -> None:
    for document in rendering.documents:
        if document["kind"] not in FOREIGN_KINDS:
            kubernetes_validate.validate(document, version, strict=True)


def test_every_object_is_named_once_in_the_namespace_of_the_release(rendering: Rendering) -> None:
    names = [(d["kind"], d["metadata"]["name"]) for d in rendering.documents]
    assert len(names) == len(set(names))
    for document in rendering.documents:
        if document["metadata"].get("labels"):
            assert document["metadata"]["namespace"] == NAMESPACE
            assert document["metadata"]["labels"]["app.kubernetes.io/instance"] == RELEASE


def selectors(rendering: Rendering) -> list[tuple[str, dict[str, str]]]:
    found = [("StatefulSet", rendering.one("StatefulSet")["spec"]["selector"]["matchLabels"])]
    found += [
        (f"Service {service['metadata']['name']}", service["spec"]["selector"])
        for service in rendering.all("Service")
    ]
    found += [
        (budget["kind"], budget["spec"]["selector"]["matchLabels"])
        for budget in rendering.all("PodDisruptionBudget")
    ]
    found += [
        (policy["kind"], policy["spec"]["podSelector"]["matchLabels"])
        for policy in rendering.all("NetworkPolicy")
    ]
    spec = rendering.nodes["spec"]
    found += [
        ("spread", constraint["labelSelector"]["matchLabels"])
        for constraint in spec.get("topologySpreadConstraints", [])
    ]
    terms = spec.get("affinity", {}).get("podAntiAffinity", {})
    for term in terms.get("requiredDuringSchedulingIgnoredDuringExecution", []):
        found.append(("affinity", term["labelSelector"]["matchLabels"]))
    for term in terms.get("preferredDuringSchedulingIgnoredDuringExecution", []):
        found.append(("affinity", term["podAffinityTerm"]["labelSelector"]["matchLabels"]))
    return found


def test_selectors_select_the_nodes_and_nothing_else(rendering: Rendering) -> None:
    name = rendering.one("StatefulSet")["metadata"]["name"]
    # Kubernetes adds this label; the services of single pods select by it.
    added = {"statefulset.kubernetes.io/pod-name"}
    nodes = rendering.nodes["metadata"]["labels"]
    others = [
        (other, pod["metadata"]["labels"])
        for other, pod in rendering.pods()
        if not other.startswith("StatefulSet/")
    ]
    assert others, "the test pod is always there"
    for what, selector in selectors(rendering):
        plain = {label: value for label, value in selector.items() if label not in added}
        assert is_subset(plain, nodes), what
        assert all(selector[label].startswith(f"{name}-") for label in added & set(selector)), what
        assert not [other for other, labels in others if is_subset(plain, labels)], what


def test_the_network_policy_lets_in_nodes_and_the_commands_of_the_release() -> None:
    rendering = render()
    rules = rendering.one("NetworkPolicy")["spec"]["ingress"]
    pods = dict(rendering.pods())

    def may_enter(labels: dict[str, str], port: str) -> bool:
        return any(
            {"port": port} in rule["ports"]
            and any(
                is_subset(peer["podSelector"].get("matchLabels", {}), labels)
                for peer in rule["from"]
            )
            for rule in rules
        )

    node = pods.pop(f"StatefulSet/{RELEASE}-milena")["metadata"]["labels"]
    assert may_enter(node, "peer")
    assert pods
    for pod in pods.values():
        assert may_enter(pod["metadata"]["labels"], "api")
        assert not may_enter(pod["metadata"]["labels"], "peer")
    assert may_enter({"app": "any of the namespace"}, "api")
    assert not may_enter({"app": "any of the namespace"}, "peer")


def test_the_network_policy_opens_for_what_comes_from_outside() -> None:
    balancer = render(ROOT / "tests/helm/values/balancer.yaml")
    ranges = [
        peer["ipBlock"]["cidr"]
        for rule in balancer.one("NetworkPolicy")["spec"]["ingress"]
        for peer in rule.get("from", [])
        if "ipBlock" in peer
    ]
    assert ranges == ["192.0.2.0/24", "2001:db8::/32"], "with the clients' own addresses"
    ports = render(ROOT / "tests/helm/values/node-ports.yaml")
    rules = ports.one("NetworkPolicy")["spec"]["ingress"]
    assert {"ports": [{"port": "api"}]} in rules, "with addresses of machines: from anywhere"


def ports_of(rendering: Rendering, service: str) -> dict[str, tuple[int, str]]:
    spec = rendering.one("Service", service)["spec"]
    return {port["name"]: (port["port"], port["targetPort"]) for port in spec["ports"]}


def test_kafka_clients_reach_the_pods_by_their_names_and_outside_by_services_of_their_own() -> None:
    rendering = render(ROOT / "tests/helm/values/kafka.yaml")
    for service in (f"{RELEASE}-milena", f"{RELEASE}-milena-headless"):
        assert ports_of(rendering, service)["kafka"] == (9092, "kafka")
    for ordinal in range(3):
        service = f"{RELEASE}-milena-{ordinal}-external"
        assert ports_of(rendering, service)["kafka"] == (9094, "kafka-external")
        (_, port) = rendering.one("Service", service)["spec"]["ports"]
        assert port["nodePort"] == 30090 + ordinal
    rules = rendering.one("NetworkPolicy")["spec"]["ingress"]
    assert [[port["port"] for port in rule["ports"]] for rule in rules] == [
        ["peer", "api"],
        ["api"],
        ["api", "kafka"],
        ["api", "kafka-external"],
    ]


def test_kafka_clients_outside_may_share_one_load_balancer() -> None:
    rendering = render(ROOT / "tests/helm/values/kafka-one-address.yaml")
    service = f"{RELEASE}-milena-external"
    assert ports_of(rendering, service) == {"api": (8082, "api"), "kafka": (443, "kafka-external")}
    assert not [
        d for d in rendering.all("Service") if d["metadata"]["name"].endswith("-0-external")
    ]


def test_without_kafka_there_is_no_port_of_it() -> None:
    rendering = render()
    assert {port["name"] for port in rendering.container["ports"]} == {"api", "peer"}
    assert "kafka" not in ports_of(rendering, f"{RELEASE}-milena")
    assert "kafka" not in rendering.one("ConfigMap")["data"]["milena.toml"]


@pytest.mark.parametrize(
    ("kafka", "said"),
    [
        ({"advertise": "a{ordinal}:9"}, "needs externalAccess.perPod.enabled"),
        ({"advertise": "a:9"}, "a:9 is the same for all 3 nodes: use {ordinal}"),
        ({"advertise": "a{ordinal}:9", "oneAddress": True}, "remove {ordinal}"),
        ({"advertise": "a{ordinal}:9", "nodePorts": [1, 2]}, "names 2 ports, but 3 are needed"),
        ({"advertise": "a:9", "oneAddress": True, "nodePorts": [1, 2]}, "but 1 are needed"),
    ],
)
def test_addresses_for_kafka_clients_must_fit_the_services(
    kafka: dict[str, object], said: str
) -> None:
    per_pod = {"enabled": "perPod" not in said}
    access = {"externalAccess": {"enabled": True, "perPod": per_pod}}
    with pytest.raises(RefusedError, match=re.escape(said)):
        render(overrides={"kafka": {"enabled": True, **kafka}, **access})


def test_an_ingress_leads_to_the_service_of_all_nodes() -> None:
    rendering = render(ROOT / "tests/helm/values/ingress.yaml")
    ingress = rendering.one("Ingress")
    service = rendering.one("Service", ingress["metadata"]["name"])
    spec = ingress["spec"]
    assert spec["ingressClassName"] == "nginx"
    assert spec["tls"] == [{"hosts": ["log.example.org"], "secretName": "log-web"}]
    assert [rule["host"] for rule in spec["rules"]] == ["log.example.org", "*.log.example.org"]
    for rule in spec["rules"]:
        (path,) = rule["http"]["paths"]
        assert (path["path"], path["pathType"]) == ("/log(/|$)(.*)", "ImplementationSpecific")
        backend = path["backend"]["service"]
        assert backend["name"] == service["metadata"]["name"]
        assert backend["port"]["name"] in {port["name"] for port in service["spec"]["ports"]}
    # What is left of a request's path is a node's own.
    target = ingress["metadata"]["annotations"]["nginx.ingress.kubernetes.io/rewrite-target"]
    for asked, own in (("/log", "/"), ("/log/", "/"), ("/log/console/", "/console/")):
        left = re.fullmatch(r"/log(/|$)(.*)", asked)
        assert left
        assert target.replace("$2", left[2]) == own


def test_an_ingress_without_names_answers_to_all_of_them() -> None:
    (rule,) = render(overrides=nested("ingress.enabled", True)).one("Ingress")["spec"]["rules"]
    assert "host" not in rule
    assert rule["http"]["paths"][0]["path"] == "/"
    assert not render().all("Ingress")


def test_nodes_may_be_kept_from_talking_to_anybody_else() -> None:
    policy = render(ROOT / "tests/helm/values/balancer.yaml").one("NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    to_nodes, to_names = policy["egress"]
    assert [port["port"] for port in to_nodes["ports"]] == [7082]
    assert to_nodes["to"] == [{"podSelector": policy["podSelector"]}]
    assert {port["port"] for port in to_names["ports"]} == {53}
    assert render().one("NetworkPolicy")["spec"]["policyTypes"] == ["Ingress"]


def test_the_package_renders_as_the_folder_does(tmp_path: Path) -> None:
    assert helm("package", str(CHART), "--destination", str(tmp_path)).returncode == 0
    (package,) = tmp_path.glob("milena-*.tgz")
    secrets = ("--set", "clusterSecret.existingSecret=fixed,auth.existingSecret=fixed")
    from_package = helm("template", RELEASE, str(package), *secrets)
    assert from_package.returncode == 0, from_package.stderr
    assert from_package.stdout == helm("template", RELEASE, str(CHART), *secrets).stdout


def test_every_port_that_is_named_exists(rendering: Rendering) -> None:
    ports = {port["name"] for port in rendering.container["ports"]}
    used = [rendering.container[f"{kind}Probe"]["httpGet"]["port"] for kind in PROBES]
    used += [
        port["targetPort"]
        for service in rendering.all("Service")
        for port in service["spec"]["ports"]
    ]
    used += [
        port["port"]
        for policy in rendering.all("NetworkPolicy")
        for rule in policy["spec"]["ingress"]
        for port in rule["ports"]
    ]
    assert set(used) <= ports


def test_the_probes_ask_what_the_server_answers(rendering: Rendering) -> None:
    paths = {route.path for route in ROUTES if route.method == "GET"}
    asked = [rendering.container[f"{kind}Probe"]["httpGet"] for kind in PROBES]
    assert [probe["path"] for probe in asked] == ["/startupz", "/readyz", "/livez"]
    assert {probe["path"] for probe in asked} <= paths
    assert "/metrics" in paths
    node = rendering.one("StatefulSet")["metadata"]["name"]
    config = rendering.one("ConfigMap", node)["data"]["milena.toml"]
    is_https = "\ntls_cert_file" in config
    assert {probe["scheme"] for probe in asked} == {"HTTPS" if is_https else "HTTP"}


def test_every_mount_has_its_volume_and_every_volume_its_source(rendering: Rendering) -> None:
    made = {(d["kind"], d["metadata"]["name"]) for d in rendering.documents}
    made |= {
        ("Secret", certificate["spec"]["secretName"])
        for certificate in rendering.all("Certificate")
    }
    made |= {("Secret", name) for name in FROM_ELSEWHERE}
    for name, pod in rendering.pods():
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
        claims = (
            rendering.one("StatefulSet")["spec"].get("volumeClaimTemplates", [])
            if name.startswith("StatefulSet/")
            else []
        )
        known = set(volumes) | {claim["metadata"]["name"] for claim in claims}
        assert len(known) == len(volumes) + len(claims), "no name twice"
        for container in pod["spec"]["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= known, name
        for volume in volumes.values():
            if "secret" in volume:
                assert ("Secret", volume["secret"]["secretName"]) in made
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in made


def test_every_pod_is_restricted(rendering: Rendering) -> None:
    for name, pod in rendering.pods():
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["enableServiceLinks"] is False, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec), name
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True
        assert (security["runAsUser"], security["runAsGroup"], security["fsGroup"]) == (10001,) * 3
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, name
            assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"], name
            assert container["resources"]["requests"], name
            assert "memory" in container["resources"]["limits"], name
    for account in rendering.all("ServiceAccount"):
        assert account["automountServiceAccountToken"] is False


def test_all_containers_run_the_same_image(rendering: Rendering) -> None:
    images = {c["image"] for _, pod in rendering.pods() for c in pod["spec"]["containers"]}
    assert len(images) == 1


def test_a_quorum_can_form(rendering: Rendering) -> None:
    nodes = rendering.one("StatefulSet")
    headless = rendering.one("Service", "-headless")
    assert nodes["spec"]["podManagementPolicy"] == "Parallel"
    assert nodes["spec"]["updateStrategy"]["type"] == "RollingUpdate"
    assert nodes["spec"]["serviceName"] == headless["metadata"]["name"]
    assert headless["spec"]["clusterIP"] == "None"
    assert headless["spec"]["publishNotReadyAddresses"] is True


def test_draining_takes_at_most_half_of_the_grace(rendering: Rendering) -> None:
    grace = rendering.nodes["spec"]["terminationGracePeriodSeconds"]
    command = rendering.container["lifecycle"]["preStop"]["exec"]["command"]
    times = re.fullmatch(r"milena drain --yes --timeout (\d+); sleep (\d+)", command[-1])
    assert command[:2] == ["/bin/sh", "-c"]
    assert times
    assert 2 * (int(times[1]) + int(times[2])) <= grace


def test_the_defaults_leave_time_to_stop() -> None:
    assert render().nodes["spec"]["terminationGracePeriodSeconds"] == 90


def test_the_monitor_scrapes_every_node_once(rendering: Rendering) -> None:
    for monitor in rendering.all("ServiceMonitor"):
        selector = monitor["spec"]["selector"]["matchLabels"]
        found = [
            service
            for service in rendering.all("Service")
            if is_subset(selector, service["metadata"]["labels"])
        ]
        assert len(found) == 1
        ports = {port["name"] for port in found[0]["spec"]["ports"]}
        assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= ports


def test_monitoring_is_left_out_where_the_cluster_does_not_know_it() -> None:
    overrides = {
        "metrics": {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}}
    }
    with_api, without = render(overrides=overrides), render(overrides=overrides, api_versions=())
    assert with_api.all("PrometheusRule")
    assert with_api.all("ServiceMonitor")
    assert not without.all("PrometheusRule")
    assert not without.all("ServiceMonitor")


def test_hooks_are_made_anew_and_cleaned_up(rendering: Rendering) -> None:
    hooks: dict[str, Document] = {
        d["kind"]: d["metadata"]["annotations"]
        for d in rendering.documents
        if "helm.sh/hook" in d["metadata"].get("annotations", {})
    }
    assert hooks["Pod"]["helm.sh/hook"] == "test"
    if "Job" in hooks:
        assert hooks["Job"]["helm.sh/hook"] == "post-install,post-upgrade"
    # The test's pod stays until the next one: its log is what the test has to say.
    expected = {"Pod": "before-hook-creation", "Job": "before-hook-creation,hook-succeeded"}
    for kind, annotations in hooks.items():
        assert annotations["helm.sh/hook-delete-policy"] == expected[kind]


def test_the_topic_job_quotes_what_it_is_given() -> None:
    job = render(ROOT / "tests/helm/values/topics.yaml").one("Job")
    script = job["spec"]["template"]["spec"]["containers"][0]["args"][0]
    assert (
        "milena topics create 'orders' --if-not-exists --partitions 6 --replication-factor 3"
        " --config 'cleanup.policy=delete' --config 'retention.ms=604800000'\n"
    ) in script
    assert "--config 'compression.type=it'\\''s'" in script
    assert job["spec"]["activeDeadlineSeconds"] == 120
    assert not render().all("Job")


def test_the_secret_is_made_unless_one_is_named() -> None:
    first = render().one("Secret", "-cluster-secret")
    assert first["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert len(first["data"]["cluster-secret"]) == 64, "48 characters in base64"
    assert not render(ROOT / "tests/helm/values/tls-secrets.yaml").all("Secret")


def test_extra_objects_may_hold_templates() -> None:
    rendering = render(ROOT / "tests/helm/values/extras.yaml")
    assert rendering.one("ConfigMap", "plain")["data"] == {"of": RELEASE}
    url = rendering.one("ConfigMap", "-templated")["data"]["url"]
    assert url == f"http://{RELEASE}-milena.{NAMESPACE}.svc.cluster.local:8082"


def test_names_stay_short_enough_for_labels() -> None:
    long = "a-release-with-a-name-as-long-as-helm-allows-to-be"
    done = helm("template", long, str(CHART))
    assert done.returncode == 0
    names = [d["metadata"]["name"] for d in yaml.safe_load_all(done.stdout) if d]
    assert max(map(len, names)) <= 63
    sets = [d for d in yaml.safe_load_all(done.stdout) if d and d["kind"] == "StatefulSet"]
    assert len(sets[0]["metadata"]["name"]) + len("-0123456789") <= 63


def test_no_address_of_a_package_index_stands_anywhere(rendering: Rendering) -> None:
    hosts = set(re.findall(r"https?://([^/\s\"'$:]+)", rendering.text))
    allowed = (f".{NAMESPACE}.svc.cluster.local", "example.org", "127.0.0.1", "localhost")
    assert not [host for host in hosts if not host.endswith(allowed)]
    assert "index-url" not in rendering.text
