"""Fixtures of the API's tests."""

import pytest

from tests.support.http.api_server import serving


@pytest.fixture
async def api():
    """A client of the API, with a topic ``t`` of one partition and ``many`` of three."""
    async with serving() as client:
        client.node.add_topic("t")
        client.node.add_topic("many", 3)
        yield client
