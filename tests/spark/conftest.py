"""One Spark and one cluster of three real nodes for all tests of a process that need them."""

import pytest

from tests.support.clusters.live_cluster import running_cluster
from tests.support.spark.spark_session import spark_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    with spark_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    with running_cluster(
        tmp_path_factory.mktemp("nodes"), retention_check_ms=200, kafka_listen="127.0.0.1:0"
    ) as nodes:
        yield nodes
