"""What holds for every test."""

import os

import pytest
from hypothesis import HealthCheck, settings

from loadtest.cluster.local_cluster import free_ports

# Tests are of the sources; those of tests/compiled say which tree they run.
os.environ.setdefault("MILENA_PURE", "1")

# Examples are bounded by number. How long one takes depends on who else uses the machine, and proves nothing.
settings.register_profile(
    "milena", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("milena")


@pytest.fixture
def unused_tcp_port():
    """A port that refuses whoever comes, as long as this process lives.

    The one of pytest-asyncio is free only when it is asked for, and is one of those that outgoing connections get: who
    dials it may be given that very port, and reach itself.
    """
    return free_ports(1)[0]
