"""The load test against a cluster that asks who calls: as whom, and that all of it, to the judge, says so."""

import base64
import os
import subprocess
import sys

import pytest

from loadtest.cluster.access import credentials_of, headers_of, without_credentials
from milena import BadCredentialsError, Credentials, Secret
from tests.support.clusters.live_cluster import call, ok, running_cluster

PASSWORD = "a password of tests"
TIMEOUT_S = 240
TOPIC = "loaded"


def test_the_environment_says_who_asks():
    said = {"MILENA_USER": "u", "MILENA_PASSWORD": "p", "MILENA_PURE": "1", "HOME": "h"}
    assert credentials_of(said) == Credentials(user="u", password=Secret("p"))
    assert headers_of(credentials_of(said)) == {"Authorization": "Basic dTpw"}
    assert headers_of(credentials_of({})) == {}
    assert headers_of(credentials_of({"MILENA_CLIENT_ID": "load"})) == {"Milena-Client-Id": "load"}
    assert without_credentials(said) == {"MILENA_PURE": "1", "HOME": "h"}
    with pytest.raises(BadCredentialsError, match="credentials: user: give password_file"):
        credentials_of({"MILENA_USER": "u"})


def load(directory, url, **variables):
    inherited = {name: v for name, v in os.environ.items() if name not in variables}
    words = [
        "--url",
        url,
        "--run-time",
        "4s",
        "--users",
        "7",
        "--partitions",
        "2",
        "--topic",
        TOPIC,
    ]
    return subprocess.run(
        [sys.executable, "-m", "loadtest", "--out", str(directory), *words],
        env={**inherited, **variables},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.mark.integration
def test_a_closed_cluster_is_loaded_and_judged_as_the_environment_says(tmp_path):
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    (tmp_path / "nodes").mkdir()
    pair = base64.b64encode(f"admin:{PASSWORD}".encode()).decode()
    root = {"Authorization": f"Basic {pair}"}
    with running_cluster(
        tmp_path / "nodes",
        node_count=1,
        credentials=Credentials(user="admin", password=Secret(PASSWORD)),
        admin_password_file=tmp_path / "password",
    ) as nodes:
        node = nodes.node(1)
        without = load(tmp_path / "without", node.url)
        assert without.returncode == 2
        assert "this cluster asks for credentials" in without.stderr
        assert "Traceback" not in without.stderr
        rights = {"operations": ["READ", "WRITE", "CREATE"]}
        grant = {**rights, "resource_type": "TOPIC", "name": TOPIC}
        asked = {"grants": [{**grant, "pattern_type": "LITERAL"}]}
        token = ok(call(node, "POST /users/admin/tokens", asked, headers=root))["token"]
        (tmp_path / "token").write_text(token)
        done = load(tmp_path / "with", node.url, MILENA_TOKEN_FILE=str(tmp_path / "token"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "records are there, once, in order, as they were written." in done.stdout
    for path in (tmp_path / "with").rglob("*"):
        assert not path.is_file() or token.encode() not in path.read_bytes(), path
    contradicting = load(tmp_path / "two", "http://127.0.0.1:1", MILENA_USER="u")
    assert contradicting.returncode == 2
    assert "credentials: user: give password_file or password, too" in contradicting.stderr
