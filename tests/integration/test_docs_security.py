"""docs/security.md is true: its walk is run, command by command, on the cluster that it starts."""

import base64
import ssl
import subprocess
import tomllib
from pathlib import Path

import pytest

from node.config.sources import load_config
from node.process.tls import api_tls, peer_tls
from tests.support.http.console import blocks, started, steps

pytestmark = pytest.mark.integration

TEXT = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")


def test_the_walk_closes_a_cluster_as_the_document_says(tmp_path: Path) -> None:
    first, *walk = steps(TEXT)
    subprocess.run(["bash", "-c", first.command], cwd=tmp_path, check=True, timeout=60)
    file = tmp_path / "admin-password"
    assert file.stat().st_mode & 0o777 == 0o600
    password = file.read_text(encoding="utf-8").strip()
    given = base64.b64encode(f"admin:{password}".encode()).decode()
    (start,) = blocks(TEXT, "sh")
    with started(
        start.replace(" admin-password", f" {file}"),
        tmp_path,
        headers={"Authorization": f"Basic {given}"},
    ) as place:
        place.check(walk)


def test_the_certificates_of_the_document_serve_clients_and_nodes(tmp_path: Path) -> None:
    (make,) = blocks(TEXT, "bash")
    (settings,) = (block for block in blocks(TEXT, "toml") if "peer_tls_ca_file" in block)
    done = subprocess.run(
        ["bash", "-euc", make],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for number in (1, 2, 3):
        flags = {
            name: str(tmp_path / str(value).replace("node-1", f"node-{number}"))
            for name, value in tomllib.loads(settings).items()
        }
        config = load_config(None, {}, {**flags, "peer_tls_verify_id": "true"})
        api, peer = api_tls(config), peer_tls(config)
        assert api is not None
        assert peer is not None
        # The newest Python checks authorities strictly by default.
        client = ssl.create_default_context(cafile=tmp_path / "authority.pem")
        client.verify_flags |= ssl.VERIFY_X509_STRICT
        shake_hands(client, api, name="localhost")
        shake_hands(peer.client, peer.server, name=None)


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, *, name: str | None) -> None:
    """Let both ends trust each other, in memory."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    pair = [
        client.wrap_bio(down, up, server_hostname=name),
        server.wrap_bio(up, down, server_side=True),
    ]
    left = list(pair)
    for _ in range(10):
        for end in tuple(left):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            left.remove(end)
    assert not left, "no handshake"


def test_it_takes_ten_commands_to_be_closed_and_to_write() -> None:
    commands = [step.command for step in steps(TEXT)]
    written = next(n for n, c in enumerate(commands) if "shop.token)" in c)
    # One more starts the cluster; two show that it asks.
    assert written + 1 <= 10
