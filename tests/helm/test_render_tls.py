"""The certificates that the chart asks for hold every name that is dialled; checked by real handshakes."""

import ssl
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from node.config.sources import load_config
from node.process.tls import api_tls, peer_tls
from tests.helm.certificates import issue
from tests.helm.charts import Rendering, render

TLS = {
    "tls": {
        "api": {"enabled": True},
        "peer": {"enabled": True},
        "certManager": {"enabled": True, "extraDnsNames": ["log.example.org"]},
    },
    "metrics": {"serviceMonitor": {"enabled": True}},
}
API_FILES = ("tls_cert_file", "tls_key_file")
PEER_FILES = ("peer_tls_cert_file", "peer_tls_key_file", "peer_tls_ca_file")


@pytest.fixture(scope="module")
def rendering() -> Rendering:
    return render(overrides=TLS)


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """Bring a server and a client who dials ``name`` together in memory.

    Raises:
        ssl.SSLError: One of them does not trust the other.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    open_ends = list(ends)
    for _ in range(10):
        for end in tuple(open_ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            open_ends.remove(end)
    assert not open_ends, "the handshake came to its end"


def peers(rendering: Rendering) -> list[str]:
    name = rendering.one("StatefulSet")["metadata"]["name"]
    script = rendering.one("ConfigMap", name)["data"]["start.sh"]
    line = next(line for line in script.splitlines() if "--peers" in line)
    voters = line.partition('"')[2].rstrip('"').split(",")
    return [voter.partition("=")[2].removesuffix(":7082") for voter in voters]


def test_peers_trust_each_other_by_the_names_of_pods(rendering: Rendering, tmp_path: Path) -> None:
    folder = issue(tmp_path / "peer", rendering.one("Certificate", "-peer"))
    files = ("tls.crt", "tls.key", "ca.crt")
    flags = {name: folder / file for name, file in zip(PEER_FILES, files, strict=True)}
    contexts = peer_tls(load_config(None, {}, {name: str(path) for name, path in flags.items()}))
    assert contexts is not None
    for host in peers(rendering):
        handshake(contexts.server, contexts.client, host)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(contexts.server, contexts.client, "r-milena.logs.svc.cluster.local")


def test_clients_trust_the_api_by_every_name_it_has(rendering: Rendering, tmp_path: Path) -> None:
    folder = issue(tmp_path / "api", rendering.one("Certificate", "-api"))
    files = ("tls.crt", "tls.key")
    flags = {name: str(folder / file) for name, file in zip(API_FILES, files, strict=True)}
    server = api_tls(load_config(None, {}, flags))
    assert server is not None
    client = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    test = rendering.one("Pod")["spec"]["containers"][0]
    urls = [
        variable["value"]
        for container in (test, rendering.container)
        for variable in container["env"]
        if variable["name"] == "MILENA_URL"
    ]
    monitored = rendering.one("ServiceMonitor")["spec"]["endpoints"][0]["tlsConfig"]["serverName"]
    names = [urlsplit(url).hostname or "" for url in urls]
    assert "localhost" in names
    for name in (*names, *peers(rendering), monitored, "log.example.org"):
        handshake(server, client, name)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, client, "elsewhere.example.org")


def test_each_secret_of_a_certificate_is_mounted_where_the_node_looks(
    rendering: Rendering,
) -> None:
    volumes = {
        volume["name"]: volume["secret"]["secretName"]
        for volume in rendering.nodes["spec"]["volumes"]
        if "secret" in volume
    }
    assert volumes["tls-api"] == rendering.one("Certificate", "-api")["spec"]["secretName"]
    assert volumes["tls-peer"] == rendering.one("Certificate", "-peer")["spec"]["secretName"]


def test_no_other_authority_than_the_releases_own_signs_peers() -> None:
    issuer = {"name": "web", "kind": "ClusterIssuer"}
    tls = {**TLS["tls"], "certManager": {"enabled": True, "issuerRef": issuer}}
    rendering = render(overrides={"tls": tls})
    assert rendering.one("Certificate", "-api")["spec"]["issuerRef"] == issuer
    own = rendering.one("Issuer", "-authority")["metadata"]["name"]
    assert rendering.one("Certificate", "-peer")["spec"]["issuerRef"]["name"] == own


def test_commands_see_the_authority_and_not_the_key(rendering: Rendering) -> None:
    pod = rendering.one("Pod")["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert [item["path"] for item in volumes["tls-api"]["secret"]["items"]] == ["ca.crt"]
    key = rendering.one("Certificate", "-peer")["spec"]["secretName"]
    assert key not in [
        volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume
    ]
    variables = {v["name"]: v.get("value") for v in pod["containers"][0]["env"]}
    assert variables["SSL_CERT_FILE"] == "/etc/milena-tls/api/ca.crt"
