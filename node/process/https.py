"""Fetches a small document over HTTPS. Only the operator can set its address.

The fetch follows no redirect, uses no proxy from the environment, decompresses nothing, and reads a limited number of
bytes.
"""

import ssl

import aiohttp

TIMEOUT_MS = 5_000
_PIECE_BYTES = 16 << 10


class FetchError(Exception):
    """The document could not be fetched; the message says why."""


async def fetch(
    url: str,
    *,
    bytes_max: int,
    timeout_ms: int = TIMEOUT_MS,
    tls: ssl.SSLContext | None = None,
) -> bytes:
    """Return the document. ``tls`` None: trust the system's authorities, or those in ``SSL_CERT_FILE``.

    Raises:
        FetchError: the response is not 200, is too large, or did not arrive within the timeout.
    """
    try:
        async with (
            aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=timeout_ms / 1000), auto_decompress=False
            ) as session,
            session.get(
                url,
                allow_redirects=False,
                ssl=True if tls is None else tls,
                headers={"Accept": "application/json", "Accept-Encoding": "identity"},
            ) as answer,
        ):
            if answer.status != 200:
                raise FetchError(f"it answered {answer.status}; redirects are not followed")
            body = bytearray()
            async for piece in answer.content.iter_chunked(_PIECE_BYTES):
                body += piece
                if len(body) > bytes_max:
                    raise FetchError(f"it has more than {bytes_max} bytes")
            return bytes(body)
    except TimeoutError:
        raise FetchError(f"no answer within {timeout_ms} ms") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise FetchError(str(error) or type(error).__name__) from None
