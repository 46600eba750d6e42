"""One cluster of three real nodes for all features; a test that stops a node brings it back."""

import pytest

from tests.support.live_cluster import running_cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("features"), retention_check_ms=200) as nodes:
        yield nodes
