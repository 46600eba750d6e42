"""A node that must not run says why in one line, on standard error, and exits with 78."""

import msgpack
import pytest

from loadtest.cluster.local_cluster import free_ports
from milena.disk.os_files import OsFiles
from storage.state.slots import SlotFile
from tests.support.clusters.live_cluster import (
    call,
    create_topic,
    eventually,
    offsets_of,
    restart,
    running_cluster,
    start_command,
    values,
    wait_in_sync,
    write,
)

pytestmark = pytest.mark.integration

REFUSED = 78
PATIENCE_S = 60
LOG_BYTES = 1 << 20
"""Of a log in which a line is looked for: it is said once in a while, and others come behind it."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("refusing")) as nodes:
        yield nodes


@pytest.fixture
def stopped(cluster):
    """Node 3, out of the way; it comes back whole afterwards."""
    node = cluster.node(3)
    node.process.kill()
    yield node
    restart(cluster, node)


def peers_of(cluster):
    return ",".join(node.peer for node in cluster.nodes)


def options(node_id, directory, *, ports=None, peers):
    api_port, peer_port = ports or free_ports(2)
    return (
        *("--node-id", str(node_id)),
        *("--data-dir", str(directory)),
        *("--listen", f"127.0.0.1:{api_port}"),
        *("--peer-listen", f"127.0.0.1:{peer_port}"),
        *("--peers", peers),
    )


def ports_of(node):
    return node.api_port, node.peer_port


def refusal(tmp_path, *words, **settings):
    """The line with which ``milena start`` refuses."""
    log_path = tmp_path / "refused.log"
    log_path.unlink(missing_ok=True)
    process = start_command(*words, log_path=log_path, **settings)
    process.start()
    try:
        eventually(lambda: not process.is_running, deadline_s=PATIENCE_S)
        log = process.log_tail(10_000)
        assert process.exit_code == REFUSED, log
        assert "Traceback" not in log
        # Another thread may still log that the quorum has stopped before the process is gone.
        [line] = [line for line in log.splitlines() if "cannot start" in line]
        assert line.startswith("milena: cannot start: ")
        return line
    finally:
        process.kill()


# -- the command line ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "settings", "named"),
    [
        (["--heartbeat-ms", "soon"], {}, ["--heartbeat-ms", "'soon'", "20 to 20000 ms"]),
        (["--node-id", "0"], {}, ["--node-id", "'0'", "1 to 999999999"]),
        ([], {"listen": "8082"}, ["MILENA_LISTEN", "'8082'", "HOST:PORT"]),
        ([], {"brokr_session_ms": "900"}, ["MILENA_BROKR_SESSION_MS", "MILENA_BROKER_SESSION_MS"]),
        (["--heartbeat-ms", "900"], {}, ["heartbeat_ms = 900", "broker_session_ms = 1500"]),
        (["--peers", "1=a:1,2=b:1"], {}, ["--peers", "2 voters survive"]),
        (["--node-id", "4", "--peers", "1=a:1,2=b:1,3=c:1"], {}, ["node_id = 4", "--join"]),
        (["--config", "/does/not/exist"], {}, ["/does/not/exist"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_bad_configuration_is_named_with_its_source(tmp_path, words, settings, named):
    line = refusal(tmp_path, "--data-dir", str(tmp_path / "data"), *words, **settings)
    assert all(name in line for name in named), line
    assert not (tmp_path / "data").exists()


def test_a_secret_is_not_shown_when_it_is_refused(tmp_path):
    line = refusal(tmp_path, "--data-dir", str(tmp_path / "data"), cluster_secret="short")
    assert "MILENA_CLUSTER_SECRET" in line
    assert "short" not in line


def test_an_open_peer_port_without_a_secret_is_refused(tmp_path):
    file = tmp_path / "empty"
    file.touch()
    words = ("--data-dir", str(tmp_path / "data"), "--peer-listen", "0.0.0.0:0")
    line = refusal(tmp_path, *words, cluster_secret_file=str(file))
    assert "cluster_secret" in line


def test_an_address_that_is_taken_is_named(cluster, stopped, tmp_path):
    taken = cluster.node(1)
    peers = peers_of(cluster)
    ports = (taken.api_port, stopped.peer_port)
    line = refusal(tmp_path, *options(3, stopped.data_dir, ports=ports, peers=peers))
    assert f"127.0.0.1:{taken.api_port}" in line
    ports = (stopped.api_port, taken.peer_port)
    line = refusal(tmp_path, *options(3, stopped.data_dir, ports=ports, peers=peers))
    assert f"127.0.0.1:{taken.peer_port}" in line


# -- the data directory ----------------------------------------------------------------------------


def test_a_directory_in_use_is_refused_and_its_owner_goes_on(cluster, tmp_path):
    owner = cluster.node(1)
    line = refusal(tmp_path, *options(1, owner.data_dir, peers=peers_of(cluster)))
    assert str(owner.data_dir) in line
    assert "another process" in line
    assert eventually(lambda: call(owner, "GET /readyz").status == 200)


def test_the_directory_of_another_node_is_refused(cluster, stopped, tmp_path):
    line = refusal(tmp_path, *options(2, stopped.data_dir, peers=peers_of(cluster)))
    assert str(stopped.data_dir) in line
    assert "belongs to node 3, but this is node 2" in line


def test_other_voters_than_those_of_the_directory_are_refused(cluster, stopped, tmp_path):
    peers = peers_of(cluster).replace("2=", "7=")
    line = refusal(tmp_path, *options(3, stopped.data_dir, ports=ports_of(stopped), peers=peers))
    assert "[1, 2, 3]" in line
    assert "[1, 3, 7]" in line


def identity_of(directory):
    return SlotFile(OsFiles(), str(directory / "identity"), b"MLID")


def test_a_later_format_of_the_directory_is_refused_and_left_alone(cluster, stopped, tmp_path):
    path = stopped.data_dir / "identity"
    before = path.read_bytes()
    slots = identity_of(stopped.data_dir)
    found = slots.load()
    _, *rest = msgpack.unpackb(found.content)
    slots.store(msgpack.packb([99, *rest]))
    later = path.read_bytes()
    words = options(3, stopped.data_dir, ports=ports_of(stopped), peers=peers_of(cluster))
    line = refusal(tmp_path, *words)
    assert str(path) in line
    assert "format version 99" in line
    assert path.read_bytes() == later
    path.write_bytes(before)


def test_an_identity_that_is_damaged_is_refused(cluster, stopped, tmp_path):
    path = stopped.data_dir / "identity"
    before = path.read_bytes()
    path.write_bytes(b"\0not an identity\0" * 1000)
    words = options(3, stopped.data_dir, ports=ports_of(stopped), peers=peers_of(cluster))
    line = refusal(tmp_path, *words)
    assert str(path) in line
    assert "checksum" in line
    path.write_bytes(before)


@pytest.mark.parametrize("name", ["voter", "wal"])
def test_a_damaged_file_of_the_quorum_is_refused(cluster, stopped, tmp_path, name):
    path = stopped.data_dir / "raft" / name
    before = path.read_bytes()
    path.write_bytes(before[:5] + bytes([before[5] ^ 4]) + before[6:])
    words = options(3, stopped.data_dir, ports=ports_of(stopped), peers=peers_of(cluster))
    line = refusal(tmp_path, *words)
    assert str(path) in line
    assert "start with an empty data directory" in line
    path.write_bytes(before)


# -- the cluster -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """Data directories of another cluster of the same node ids and secret; nobody uses them any more."""
    with running_cluster(tmp_path_factory.mktemp("foreign")) as nodes:
        create_topic(nodes.node(1), "foreign")
    return nodes


@pytest.mark.parametrize("node_id", [1, 3], ids=["that-is-dialled", "that-dials"])
def test_a_node_of_another_cluster_is_refused_and_changes_nothing(
    cluster, foreign, tmp_path, node_id
):
    place = cluster.node(node_id)
    topic = create_topic(place, f"own-{node_id}")
    offsets_of(write(place, topic, "before"))
    place.process.kill()
    directory = foreign.node(node_id).data_dir
    words = options(node_id, directory, ports=ports_of(place), peers=peers_of(cluster))
    line = refusal(tmp_path, *words)
    assert "belongs to cluster" in line
    assert f"this node {node_id} to cluster" in line
    restart(cluster, place)
    wait_in_sync(cluster, topic)
    for node in cluster.nodes:
        eventually(lambda at=node: values(at, topic) == ["before"])
        assert write(node, "foreign", 1).status == 404


def test_a_new_node_whose_voters_are_not_the_clusters_is_refused(cluster, stopped, tmp_path):
    peers = peers_of(cluster).replace("3=", "8=")
    line = refusal(tmp_path, *options(8, tmp_path / "new", ports=ports_of(stopped), peers=peers))
    assert "[1, 2, 3]" in line
    assert "[1, 2, 8]" in line


def test_another_secret_is_named_at_both_ends_and_the_node_stays_out(cluster, stopped, tmp_path):
    """It may be the others that are wrong, and nothing is proved: so the node says what it sees, and tries again."""
    process = start_command(
        *options(3, stopped.data_dir, ports=ports_of(stopped), peers=peers_of(cluster)),
        log_path=tmp_path / "other-secret.log",
        cluster_secret="another-secret",
    )
    process.start()
    try:
        eventually(
            lambda: "hung up on the proof of the cluster secret" in process.log_tail(LOG_BYTES)
        )
        complaint = "the peer that calls itself node 3 has another cluster secret"
        for node in cluster.nodes[:2]:
            eventually(lambda at=node: complaint in at.process.log_tail(LOG_BYTES))
        assert eventually(lambda: call(stopped, "GET /readyz").status == 503)
        assert process.is_running
    finally:
        process.kill()


def test_an_observer_with_another_secret_says_so(cluster, tmp_path):
    api_port, peer_port = free_ports(2)
    process = start_command(
        *("--node-id", "9", "--data-dir", str(tmp_path / "nine")),
        *("--listen", f"127.0.0.1:{api_port}", "--peer-listen", f"127.0.0.1:{peer_port}"),
        *("--join", f"127.0.0.1:{cluster.node(1).peer_port}"),
        log_path=tmp_path / "nine.log",
        cluster_secret="another-secret",
    )
    process.start()
    try:
        eventually(
            lambda: "hung up on the proof of the cluster secret" in process.log_tail(LOG_BYTES)
        )
        refused = "the peer that calls itself node 9 has another cluster secret"
        eventually(lambda: refused in cluster.node(1).process.log_tail(LOG_BYTES))
        assert process.is_running, "it goes on trying for a while"
    finally:
        process.kill()
