"""Who is asked for what: the first user's password is in one Secret, and a file of it wherever somebody needs it."""

import base64
import json
from collections.abc import Iterator

import pytest

from tests.helm.charts import RELEASE, VALUES, Document, Rendering, nested, render

VALUES_OF = {path.stem: path for path in VALUES}
MONITOR = nested("metrics.serviceMonitor.enabled", True)
USERNAME = "-scraper"
"""End of the name of a Secret whose text is none: Prometheus' operator wants a user's name there."""

OPEN = {"MILENA_URL", "MILENA_CONFIG", "POD_NAME"}


@pytest.fixture(params=VALUES, ids=lambda path: path.stem)
def rendering(request: pytest.FixtureRequest) -> Rendering:
    return render(request.param)


def leaks(rendering: Rendering) -> Iterator[str]:
    """Objects other than the Secret itself in which a secret's text stands, plainly or encoded."""
    secrets = [
        encoded
        for secret in rendering.all("Secret")
        if not secret["metadata"]["name"].endswith(USERNAME)
        for encoded in secret["data"].values()
    ]
    for document in rendering.documents:
        text = json.dumps(document)
        for encoded in secrets:
            is_own = document["kind"] == "Secret" and encoded in document["data"].values()
            plain = base64.b64decode(encoded).decode()
            if not is_own and (encoded in text or plain in text):
                yield f"{document['kind']}/{document['metadata']['name']}"


def variables(container: Document) -> dict[str, str]:
    return {variable["name"]: variable.get("value", "") for variable in container["env"]}


def test_the_text_of_a_secret_stands_nowhere_else(rendering: Rendering) -> None:
    assert not list(leaks(rendering))


@pytest.mark.parametrize("secret", ["-admin", "-cluster-secret"])
def test_a_secret_that_stood_elsewhere_would_be_found(secret: str) -> None:
    sound = render()
    (encoded,) = sound.one("Secret", secret)["data"].values()
    for text in (encoded, base64.b64decode(encoded).decode()):
        planted = {"kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"b": f"x={text}"}}
        documents = (*sound.documents, planted)
        assert list(leaks(Rendering(text="", documents=documents))) == ["ConfigMap/a"]


def test_no_variable_has_its_value_from_a_secret(rendering: Rendering) -> None:
    for name, pod in rendering.pods():
        for container in pod["spec"]["containers"]:
            assert "envFrom" not in container, name
            sources = [variable.get("valueFrom", {}) for variable in container["env"]]
            assert not [source for source in sources if "secretKeyRef" in source], name


def test_the_password_is_made_once_and_kept() -> None:
    secret = render().one("Secret", "-admin")
    assert secret["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert list(secret["data"]) == ["admin-password"]
    assert len(base64.b64decode(secret["data"]["admin-password"])) == 32


def test_passwords_of_two_releases_differ() -> None:
    def made(log_level: str) -> str:
        rendering = render(overrides=nested("config.log_level", log_level))
        return str(rendering.one("Secret", "-admin")["data"]["admin-password"])

    assert made("info") != made("debug")


def test_every_command_comes_as_the_first_user_with_the_password_in_a_file() -> None:
    overrides = {"topics": [{"name": "a"}], "auth": {"adminUser": "root", "existingSecret": "mine"}}
    rendering = render(overrides=overrides)
    assert {d["metadata"]["name"] for d in rendering.all("Secret")} == {
        f"{RELEASE}-milena-cluster-secret"
    }
    pods = dict(rendering.pods())
    assert len(pods) == 3, "nodes, job and test"
    for name, pod in pods.items():
        (container,) = pod["spec"]["containers"]
        has = variables(container)
        assert has["MILENA_USER"] == "root", name
        folder, _, file = has["MILENA_PASSWORD_FILE"].rpartition("/")
        mount = next(m for m in container["volumeMounts"] if m["mountPath"] == folder)
        assert mount["readOnly"] is True, name
        volume = next(v for v in pod["spec"]["volumes"] if v["name"] == mount["name"])["secret"]
        assert volume["secretName"] == "mine", name
        assert volume["items"] == [{"key": "admin-password", "path": file}], name
        assert volume["defaultMode"] == 0o440, "for the pod's group alone"


def test_a_node_makes_the_first_user_of_the_same_file() -> None:
    has = variables(render().container)
    assert has["MILENA_ADMIN_PASSWORD_FILE"] == has["MILENA_PASSWORD_FILE"]
    assert has["MILENA_ADMIN_USER"] == has["MILENA_USER"] == "admin"
    assert has["MILENA_ACCESS_MODE"] == "required"


def test_an_open_cluster_has_neither_password_nor_user() -> None:
    rendering = render(VALUES_OF["open"])
    assert [d["metadata"]["name"] for d in rendering.all("Secret")] == [
        f"{RELEASE}-milena-cluster-secret"
    ]
    for name, pod in rendering.pods():
        assert set(variables(pod["spec"]["containers"][0])) <= OPEN, name
        assert "admin" not in [volume["name"] for volume in pod["spec"]["volumes"]], name
    endpoint = rendering.one("ServiceMonitor")["spec"]["endpoints"][0]
    assert not {"basicAuth", "authorization"} & set(endpoint)
    annotations = rendering.one("StatefulSet")["metadata"]["annotations"]
    assert not [name for name in annotations if "admin" in name]


def test_the_number_of_a_user_stays_a_text() -> None:
    rendering = render(overrides=nested("auth.adminUser", "007"))
    assert variables(rendering.container)["MILENA_ADMIN_USER"] == "007"
    assert rendering.one("StatefulSet")["metadata"]["annotations"]["milena/admin-user"] == "007"


def test_prometheus_comes_as_the_first_user() -> None:
    rendering = render(overrides={**MONITOR, "auth": {"adminUser": "root"}})
    asked = rendering.one("ServiceMonitor")["spec"]["endpoints"][0]["basicAuth"]
    held = {
        part: rendering.one("Secret", asked[part]["name"])["data"][asked[part]["key"]]
        for part in ("username", "password")
    }
    assert base64.b64decode(held["username"]) == b"root"
    assert held["password"] == rendering.one("Secret", "-admin")["data"]["admin-password"]


def test_prometheus_comes_with_a_token_of_its_own() -> None:
    rendering = render(VALUES_OF["optional"])
    endpoint = rendering.one("ServiceMonitor")["spec"]["endpoints"][0]
    assert endpoint["authorization"] == {
        "type": "Bearer",
        "credentials": {"name": "scraper", "key": "of-prometheus"},
    }
    assert "basicAuth" not in endpoint
    assert len(rendering.all("Secret")) == 2, "none for a name that nobody sends"


def test_nothing_is_made_for_a_monitor_that_is_not_there() -> None:
    rendering = render(overrides=MONITOR, api_versions=())
    assert not [d for d in rendering.all("Secret") if d["metadata"]["name"].endswith(USERNAME)]
