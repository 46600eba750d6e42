"""A browser for each test, and three nodes for all of them."""

import pytest

from tests.support.clusters.live_cluster import running_cluster
from tests.support.http.chromium import chromium


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("nodes")) as nodes:
        yield nodes


@pytest.fixture
async def browser(tmp_path):
    async with chromium(tmp_path / "profile") as started:
        yield started
