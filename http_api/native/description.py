"""The API's description of itself."""

from aiohttp import web

from http_api.protocol.answers import bytes_answer
from http_api.protocol.media import JSON_TYPE
from http_api.serving.call import Call


async def get_openapi(call: Call) -> web.Response:
    """Return the OpenAPI document, which the server generated when it started."""
    return bytes_answer(call.shared.description, JSON_TYPE)
