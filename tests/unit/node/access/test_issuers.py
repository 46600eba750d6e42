"""The issuer of a configuration: where its keys come from, and what is refused at the start."""

from pathlib import Path

import pytest

from milena.model.errors import StartupError
from node.access import issuers
from node.config.options import NodeConfig
from node.config.sources import load_config
from node.process.https import FetchError
from tests.support.fakes.access import HandClock
from tests.support.http.issuer import AUDIENCE, ISSUER, document, public_jwk
from tests.support.time.virtual_time import LoopExecutor

URL = "https://id.example.org/keys"


def config(**options: object) -> NodeConfig:
    given = {"oidc_issuer": ISSUER, "oidc_audience": AUDIENCE, **options}
    return load_config(None, {}, given)


def tokens_of(settings: NodeConfig):
    return issuers.web_tokens_of(settings, pool=LoopExecutor(), clock=HandClock())


async def test_keys_in_a_file_are_there_at_once_and_read_again(tmp_path: Path):
    path = tmp_path / "keys.json"
    path.write_bytes(document(public_jwk("rsa")))
    keys = tokens_of(config(oidc_jwks_file=str(path))).keys
    assert list(keys.keys.keys) == ["rsa"]
    path.write_bytes(document(public_jwk("p256")))
    await keys.refresh()
    assert (list(keys.keys.keys), keys.version) == (["p256"], 2)
    path.unlink()
    await keys.refresh()
    assert list(keys.keys.keys) == ["p256"]
    assert "keys.json" in keys.failure


@pytest.mark.parametrize("text", [None, b"", b"{}", document(public_jwk("rsa1024"))])
def test_a_file_without_keys_is_refused_at_the_start(tmp_path: Path, text: bytes | None):
    path = tmp_path / "keys.json"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(StartupError, match=r"oidc_jwks_file .*keys\.json: "):
        tokens_of(config(oidc_jwks_file=str(path)))


async def test_keys_at_a_url_are_fetched(monkeypatch):
    async def fetch(url: str, *, bytes_max: int) -> bytes:
        assert (url, bytes_max) == (URL, 256 << 10)
        raise FetchError("nobody there")

    monkeypatch.setattr(issuers, "fetch", fetch)
    keys = tokens_of(config(oidc_jwks_url=URL)).keys
    assert (keys.keys, keys.failure) == (None, "")
    await keys.refresh()
    assert keys.failure == "nobody there"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "one of oidc_jwks_file and oidc_jwks_url"),
        ({"oidc_jwks_file": "a", "oidc_jwks_url": URL}, "one of oidc_jwks_file and oidc_jwks_url"),
        ({"oidc_jwks_url": URL, "oidc_audience": None}, "oidc_issuer needs oidc_audience"),
        ({"oidc_jwks_url": URL, "oidc_issuer": None}, "oidc_audience is set and oidc_issuer is"),
        (
            {"oidc_issuer": None, "oidc_audience": None, "oidc_groups_claim": "groups"},
            "oidc_groups_claim is set and oidc_issuer is not",
        ),
        ({"oidc_jwks_url": "http://id.example.org/keys"}, "not an https:// URL"),
        ({"oidc_jwks_url": "file:///etc/passwd"}, "not an https:// URL"),
        ({"oidc_jwks_url": "https://a:b@id.example.org"}, "a user or fragment"),
        ({"oidc_jwks_url": "https:///keys"}, "not an https:// URL"),
        ({"oidc_jwks_url": "https://id.example.org:99999/"}, "ort"),
        ({"oidc_jwks_url": URL, "oidc_issuer": "a b"}, "not of this form"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(options, said):
    with pytest.raises(StartupError, match=said):
        config(**options)
