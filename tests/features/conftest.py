"""A cluster of three real nodes for the features of a file; a test that stops a node brings it back."""

import pytest

from tests.support.clusters.live_cluster import running_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    directory = tmp_path_factory.mktemp("features")
    # Longer sessions still: a node whose peers are paused goes on for longer than a busy machine needs to look at it.
    with running_cluster(directory, retention_check_ms=200, broker_session_ms=15_000) as nodes:
        yield nodes
