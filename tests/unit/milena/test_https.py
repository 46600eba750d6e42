"""A cluster whose API is HTTPS: whom the command line trusts, and what it says to others."""

import asyncio
import os
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.http.api_server import ApiClient, serving

FILES = Path(__file__).parents[2] / "data" / "tls"


@pytest.fixture
async def api() -> AsyncIterator[ApiClient]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(FILES / "cluster.pem", FILES / "cluster.key")
    async with serving(tls=context) as api:
        api.node.add_topic("flights")
        yield api


async def milena(*words: str, trusting: str) -> tuple[int | None, str, str]:
    """A process of its own: what it trusts is read when it starts."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "milena",
        *words,
        env={**os.environ, "SSL_CERT_FILE": str(FILES / f"{trusting}-ca.pem")},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_a_cluster_whose_authority_is_trusted_is_spoken_to(api: ApiClient) -> None:
    code, out, err = await milena("--url", api.base_url, "topics", "list", trusting="cluster")
    assert (code, err) == (0, "")
    assert "flights" in out


async def test_a_cluster_whose_authority_is_not_trusted_is_told_apart_from_one_that_is_away(
    api: ApiClient,
) -> None:
    code, out, err = await milena(
        *("--url", api.base_url, "--timeout", "2", "topics", "list"), trusting="stranger"
    )
    assert (code, out) == (2, "")
    assert "unable to get local issuer certificate" in err
    assert "this machine has no authority that signed it: name a file of it as ca (--ca on" in err


async def test_an_authority_that_is_named_and_did_not_sign_is_named_in_the_error(
    api: ApiClient,
) -> None:
    stranger = str(FILES / "stranger-ca.pem")
    words = ("--url", api.base_url, "--timeout", "2", "--ca", stranger, "topics", "list")
    code, _, err = await milena(*words, trusting="cluster")
    assert code == 2
    assert f"{stranger} has no authority that signed it" in err


async def test_plain_http_is_told_that_the_port_may_want_https(api: ApiClient) -> None:
    url = api.base_url.replace("https://", "http://")
    code, out, err = await milena("--url", url, "topics", "list", trusting="cluster")
    assert (code, out) == (2, "")
    assert "the port may want https://, or be" in err


@pytest.fixture
async def guarded() -> AsyncIterator[ApiClient]:
    """One that wants a certificate of its clients."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(FILES / "cluster.pem", FILES / "cluster.key")
    context.load_verify_locations(FILES / "cluster-ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    async with serving(tls=context) as api:
        api.node.add_topic("flights")
        yield api


async def test_a_node_that_wants_a_certificate_is_told_from_one_that_is_away(
    guarded: ApiClient,
) -> None:
    code, out, err = await milena("--url", guarded.base_url, "topics", "list", trusting="cluster")
    assert (code, out) == (2, "")
    assert "the node may want a client certificate" in err


async def test_a_certificate_is_shown_to_a_node_that_wants_one(guarded: ApiClient) -> None:
    """And its authority is named by an option, whatever the machine trusts."""
    words = ["--url", guarded.base_url, "--ca", str(FILES / "cluster-ca.pem")]
    words += ["--cert", str(FILES / "cluster.pem"), "--key", str(FILES / "cluster.key")]
    code, out, err = await milena(*words, "topics", "list", trusting="stranger")
    assert (code, err) == (0, "")
    assert "flights" in out


async def test_a_certificate_that_the_node_does_not_take_is_named(guarded: ApiClient) -> None:
    stranger = str(FILES / "stranger.pem")
    words = ["--url", guarded.base_url, "--ca", str(FILES / "cluster-ca.pem"), "--timeout", "2"]
    words += ["--cert", stranger, "--key", str(FILES / "stranger.key")]
    code, out, err = await milena(*words, "topics", "list", trusting="stranger")
    assert (code, out) == (2, "")
    assert f"may not take the client certificate {stranger}" in err
