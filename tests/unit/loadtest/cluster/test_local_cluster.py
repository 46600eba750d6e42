"""Ports and processes of a local cluster, with any command in a node's place."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from loadtest.cluster.local_cluster import FIRST_PORT, LAST_PORT, LocalCluster, free_ports
from loadtest.cluster.node_process import NodeProcess

UNTIL_TOLD = "import signal; print('up', flush=True); signal.pause()"


@pytest.fixture
def process(tmp_path):
    made = []

    def make(program):
        found = NodeProcess(
            [sys.executable, "-c", program], environment=dict(os.environ), log_path=tmp_path / "log"
        )
        made.append(found)
        return found

    yield make
    for one in made:
        one.resume()
        one.kill()


def test_ports_are_distinct_and_below_those_of_outgoing_connections():
    ports = free_ports(8)
    assert len(set(ports)) == 8
    assert all(FIRST_PORT <= port < LAST_PORT for port in ports)


# On Linux, where nodes are run and tested, this is never skipped. Elsewhere there is nothing to hold it to: a socket
# that is bound and does not listen keeps the node from its own port, so the port is given back as soon as it is found.
@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere a port cannot be held for another process"
)
def test_a_port_is_given_to_nobody_else_whether_its_node_is_up_or_down():
    (port,) = free_ports(1)
    program = f"""
from loadtest.cluster import local_cluster
local_cluster._candidates = lambda: iter([{port}, {port}, {port + 1}])
try:
    print(local_cluster.free_ports(2))
except local_cluster.ClusterError:
    print("one at most")
"""

    def others_are_given():
        words = [sys.executable, "-c", program]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()

    assert others_are_given() == "one at most"
    for _ in range(2):
        with socket.create_server(("127.0.0.1", port)):
            assert others_are_given() == "one at most"
            assert port not in free_ports(1)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        assert port not in free_ports(1)


def test_a_node_is_started_with_its_place_in_the_cluster(tmp_path, monkeypatch):
    monkeypatch.setenv("MILENA_URL", "http://elsewhere")
    cluster = LocalCluster(tmp_path)
    command = " ".join(cluster.node(2).process.command)
    assert "-m milena start --node-id 2" in command
    assert f"--listen 127.0.0.1:{cluster.node(2).api_port}" in command
    assert command.endswith(",".join(node.peer for node in cluster.nodes))
    assert len({node.data_dir for node in cluster.nodes}) == 3


def test_kill_ends_the_process_and_start_makes_another(process):
    node = process(UNTIL_TOLD)
    assert (node.is_running, node.exit_code, node.pid) == (False, None, None)
    node.start()
    first = node.pid
    node.start()
    assert node.pid == first
    node.kill()
    assert (node.is_running, node.exit_code) == (False, -signal.SIGKILL)
    node.start()
    assert node.pid != first


def test_stop_is_graceful_when_the_process_obeys(process):
    node = process(UNTIL_TOLD)
    node.start()
    assert node.stop(timeout_s=10)
    assert node.exit_code == -signal.SIGTERM


def test_stop_kills_a_process_that_does_not_obey(process, tmp_path):
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    ignore = (
        f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); open({str(ready)!r}, 'w'); "
    )
    node = process(ignore + "signal.pause(); signal.pause()")
    node.start()
    with ready.open():
        assert not node.stop(timeout_s=0.2)
    assert node.exit_code == -signal.SIGKILL


def test_the_log_tells_why_a_process_died(process):
    node = process("raise SystemExit('no such peer')")
    node.start()
    os.waitid(os.P_PID, node.pid, os.WEXITED | os.WNOWAIT)
    assert (node.is_running, node.exit_code) == (False, 1)
    assert "no such peer" in node.log_tail()
