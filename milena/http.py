"""One HTTP call to a node and what its failure means; everything of the client goes through here.

A connection that was refused means that nothing was asked. One that broke, or timed out, after a request that
changes something was sent means that nobody knows: that is ``UnknownResultError``, never a plain failure.
"""

import json
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import aiohttp

from milena.errors import (
    AnswerError,
    TargetExistsError,
    TargetNotFoundError,
    UnexpectedAnswerError,
    UnknownResultError,
    UnreachableError,
)
from milena.fields import Json

CONNECT_TIMEOUT_S = 3.0
"""A node on any sane network accepts within this; the rest of the time limit is for its answer."""


class HttpSession:
    """A connection pool to one base URL. Used as an asynchronous context manager, from one event loop."""

    def __init__(self, url: str, *, timeout_s: float) -> None:
        self.url = normalise_url(url)
        self._limits = aiohttp.ClientTimeout(
            total=timeout_s, sock_connect=min(timeout_s, CONNECT_TIMEOUT_S)
        )
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            timeout=self._limits, headers={"Accept": "application/json, */*;q=0.5"}
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Json:
        """Ask; the answer's JSON.

        Raises:
            UnreachableError: no answer.
            AnswerError: the node refused.
        """
        return await self._call("GET", path, params=params)

    async def post(self, path: str, body: Json) -> Json:
        """Change something.

        Raises:
            UnreachableError: nothing was sent.
            UnknownResultError: it may or may not have happened.
            AnswerError: the node refused.
        """
        return await self._call("POST", path, body=body)

    async def delete(self, path: str) -> None:
        """Remove something; raises as ``post`` does."""
        await self._call("DELETE", path)

    async def _call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Json = None,
    ) -> Json:
        assert self._session is not None, "use the client as a context manager"
        try:
            async with self._session.request(
                method, self.url + path, params=params, json=body
            ) as response:
                raw = await response.read()
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise UnreachableError(f"cannot reach {self.url}: {_reason(error)}") from error
        except aiohttp.InvalidURL as error:
            raise UnreachableError(f"{self.url} is not a URL of a node") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            message = f"no answer from {self.url} to {method} {path}: {_reason(error)}"
            if method == "GET":
                raise UnreachableError(message) from error
            raise UnknownResultError(message, status=504, error_code=None) from error
        return read_answer(response.status, raw, f"{method} {path}")


def normalise_url(url: str) -> str:
    """``host:port`` becomes ``http://host:port``; no trailing slash."""
    with_scheme = url if "://" in url else f"http://{url}"
    return with_scheme.rstrip("/")


def read_answer(status: int, raw: bytes, what: str) -> Json:
    """The JSON of an answer, or the error that it is."""
    try:
        body: Json = json.loads(raw) if raw else None
    except ValueError as error:
        raise UnexpectedAnswerError(
            f"{what}: HTTP {status} with a body that is not JSON; is this a Milena node?"
        ) from error
    if status < 400:
        return body
    fields = body if isinstance(body, dict) else {}
    code, message = fields.get("error_code"), fields.get("message")
    text = message if isinstance(message, str) else f"{what}: HTTP {status}"
    error_code = code if isinstance(code, int) else None
    raise _answer_error(status, text)(text, status=status, error_code=error_code)


def _answer_error(status: int, message: str) -> type[AnswerError]:
    if status == 404:
        return TargetNotFoundError
    # Confluent's dialect answers 400 to a topic that exists; ours keeps it, and the sentence tells which 400 it is.
    if status == 409 or (status == 400 and "already exists" in message):
        return TargetExistsError
    if status == 504:
        return UnknownResultError
    return AnswerError


def _reason(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.strerror:
        # asyncio's text repeats the address: "Connect call failed ('127.0.0.1', 8082)".
        cause = error.os_error
        return "connection refused" if isinstance(cause, ConnectionRefusedError) else str(cause)
    return str(error) or ("timed out" if isinstance(error, TimeoutError) else type(error).__name__)
