"""docs/monitoring.md is true: its first cluster is started, watched and read as the page says."""

import contextlib
import os
import signal
from pathlib import Path

import pytest

from loadtest.cluster.local_cluster import free_ports
from tests.monitoring.monitored import PAGE, ROOT
from tests.support.http.console import blocks, started, steps

pytestmark = [pytest.mark.integration, pytest.mark.long]


def test_a_cluster_on_this_machine_is_watched_as_the_page_says(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watched")
    (folder / "helm").symlink_to(ROOT / "helm")
    (port,) = free_ports(1)
    text = PAGE.replace("9090", str(port))
    try:
        with started(blocks(text, "sh")[0], folder) as place:
            place.check(steps(text))
    finally:
        end_prometheus(f"127.0.0.1:{port}")


def end_prometheus(address: str) -> None:
    """A walk that stops half way leaves its Prometheus behind, which listens on a port that this test has reserved."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = file.read_bytes().split(b"\0")
            if words[0].endswith(b"prometheus") and address.encode() in words:
                os.kill(int(file.parent.name), signal.SIGKILL)
