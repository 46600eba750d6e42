"""Fetches a small document over HTTPS, from an address that the operator has set and nobody else can.

It follows no redirect, takes no proxy from the environment, unpacks nothing, and reads no more than it was told to.
"""

import ssl

import aiohttp

TIMEOUT_MS = 5_000
_PIECE_BYTES = 16 << 10


class FetchError(Exception):
    """The document did not come; says why."""


async def fetch(
    url: str,
    *,
    bytes_max: int,
    timeout_ms: int = TIMEOUT_MS,
    tls: ssl.SSLContext | None = None,
) -> bytes:
    """What is there. ``tls`` None: what the system trusts, or ``SSL_CERT_FILE``.

    Raises:
        FetchError: another answer than 200, too large a one, or none within the time.
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
