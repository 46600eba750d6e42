"""A document over HTTPS: from where it should come, in the size that it should have, and from nowhere else."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from node.process.https import FetchError, fetch

FILES = Path(__file__).parents[3] / "data" / "tls"
TRUSTING = ssl.create_default_context(cafile=str(FILES / "cluster-ca.pem"))

Answering = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(answer: Answering, name: str = "cluster") -> AsyncIterator[str]:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(FILES / f"{name}.pem", FILES / f"{name}.key")
    runner = web.ServerRunner(web.Server(answer), handle_signals=False)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        yield f"https://127.0.0.1:{runner.addresses[0][1]}/keys"
    finally:
        await runner.cleanup()


def saying(text: bytes, **options) -> Answering:
    async def answer(request: web.BaseRequest) -> web.Response:
        assert "Authorization" not in request.headers
        return web.Response(body=text, **options)

    return answer


async def failure(answer: Answering, *, name: str = "cluster", **options) -> str:
    async with serving(answer, name) as url:
        with pytest.raises(FetchError) as caught:
            await fetch(url, **{"bytes_max": 100, "tls": TRUSTING, **options})
        return str(caught.value)


async def test_a_document_comes_whole_up_to_its_bound():
    async with serving(saying(b"x" * 100)) as url:
        assert await fetch(url, bytes_max=100, tls=TRUSTING) == b"x" * 100


async def test_what_is_too_large_is_not_read():
    assert await failure(saying(b"x" * 101)) == "it has more than 100 bytes"


async def test_what_is_packed_is_not_unpacked():
    async with serving(saying(b"{}", headers={"Content-Encoding": "gzip"})) as url:
        assert await fetch(url, bytes_max=100, tls=TRUSTING) == b"{}"


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_no_redirect_is_followed(status: int):
    asked = []

    async def answer(request: web.BaseRequest) -> web.Response:
        asked.append(request.rel_url.path)
        return web.Response(status=status, headers={"Location": "/elsewhere"})

    assert str(status) in await failure(answer)
    assert asked == ["/keys"]


@pytest.mark.parametrize("status", [204, 404, 500])
async def test_another_answer_is_none(status: int):
    assert f"it answered {status}" in await failure(saying(b"", status=status))


async def test_whoever_cannot_show_a_certificate_is_not_believed():
    assert "CERTIFICATE_VERIFY_FAILED" in await failure(saying(b"{}"), name="stranger")
    assert "CERTIFICATE_VERIFY_FAILED" in await failure(saying(b"{}"), tls=None)


async def test_an_answer_that_does_not_come_is_not_waited_for():
    async def answer(_: web.BaseRequest) -> web.Response:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    assert await failure(answer, timeout_ms=1) == "no answer within 1 ms"


async def test_nobody_there_is_told():
    async with serving(saying(b"")) as url:
        pass
    with pytest.raises(FetchError):
        await fetch(url, bytes_max=100, tls=TRUSTING)
