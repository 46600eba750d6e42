"""The data directory: whose it is, what it promised to hold, and that a full disk or a crash takes nothing of it."""

import errno
import os
from random import Random

import pytest

from milena.disk.os_files import OsFiles
from milena.model.errors import DiskFailedError, DiskFullError, StartupError
from storage.replica.data_directory import DataDirectory
from storage.state.sealed import seal
from storage.state.slots import SLOT_BYTES
from tests.support.disk.memory_files import MemoryFiles, SimulatedCrashError

ROOT = "/data"
RESERVE = 50_000


@pytest.fixture
def files():
    return MemoryFiles()


def opened(files, *, node_id=1, directory_id="dir-1", reserve_bytes=RESERVE, root=ROOT):
    return DataDirectory.open(
        files, root, node_id=node_id, directory_id=directory_id, reserve_bytes=reserve_bytes
    )


def reopened(files, directory, **changes):
    directory.close()
    return opened(files, directory_id="never used", **changes)


def test_a_new_directory_belongs_to_the_node_and_to_no_cluster(files):
    directory = opened(files)
    assert (directory.node_id, directory.directory_id) == (1, "dir-1")
    assert (directory.cluster_id, directory.broker_epoch) == (None, -1)
    assert directory.replicas() == frozenset()
    assert not directory.consume_clean_marker()


def test_what_was_set_is_there_after_a_power_cut(files):
    directory = opened(files)
    directory.set_cluster_id("c")
    directory.set_broker_epoch(7)
    directory.add_replicas([("topic", 3)])
    files.crash()
    directory = opened(files, directory_id="never used")
    assert directory.directory_id == "dir-1"
    assert (directory.cluster_id, directory.broker_epoch) == ("c", 7)
    assert directory.replicas() == {("topic", 3)}
    assert directory.is_listed("topic", 3)
    assert not directory.is_listed("topic", 4)


def test_the_real_file_system_serves_as_well(tmp_path):
    root = str(tmp_path / "data")
    directory = opened(OsFiles(), root=root)
    directory.set_cluster_id("c")
    directory.add_replicas([("t", 0), ("t", 1)])
    directory.remove_replicas([("t", 0)])
    directory.mark_clean_stop()
    directory.close()
    directory = opened(OsFiles(), root=root)
    assert directory.consume_clean_marker()
    assert directory.replicas() == {("t", 1)}
    assert directory.has_room(1)
    assert directory.release_reserve()
    directory.close()


@pytest.mark.parametrize("wrong", ["a file", "a link to nothing", "below a file"])
def test_a_path_that_is_no_directory_is_refused(tmp_path, wrong):
    root = tmp_path / "data"
    if wrong == "a link to nothing":
        root.symlink_to(tmp_path / "nothing")
    else:
        root.write_text("")
    path = str(root / "below") if wrong == "below a file" else str(root)
    with pytest.raises(StartupError, match=r"the data directory .*data.* cannot be used"):
        opened(OsFiles(), root=path)


class FailingFiles(MemoryFiles):
    """Every file that is to be locked fails as told."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def lock(self, path):
        reason = os.strerror(self._number)
        raise DiskFailedError(f"cannot open {path}: {reason}", errno=self._number)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_directory_that_may_not_be_written_is_refused(number):
    with pytest.raises(StartupError, match=f"/data/lock: {os.strerror(number)}"):
        opened(FailingFiles(number))


def test_a_disk_that_fails_is_no_refusal():
    with pytest.raises(DiskFailedError):
        opened(FailingFiles(errno.EIO))


def test_two_processes_cannot_share_it(files):
    opened(files)
    with pytest.raises(StartupError, match="/data/lock"):
        opened(files)


def test_a_refused_open_gives_the_lock_back(files):
    opened(files).close()
    for _ in range(2):
        with pytest.raises(StartupError, match="belongs to node"):
            opened(files, node_id=2)


def test_another_nodes_directory_is_refused_with_both_ids(files):
    opened(files, node_id=1).close()
    with pytest.raises(StartupError, match=r"/data/identity belongs to node 1.*this is node 2"):
        opened(files, node_id=2)


def test_another_clusters_directory_is_refused_with_both_ids(files):
    directory = opened(files)
    directory.set_cluster_id("ours")
    directory.set_cluster_id("ours")
    directory = reopened(files, directory)
    with pytest.raises(StartupError, match=r"/data/identity .*'ours'.*'theirs'"):
        directory.set_cluster_id("theirs")
    assert directory.cluster_id == "ours"


def test_a_later_format_is_refused_with_both_versions(files, monkeypatch):
    monkeypatch.setattr("storage.replica.data_directory.FORMAT_VERSION", 9)
    opened(files).close()
    monkeypatch.undo()
    with pytest.raises(StartupError, match=r"/data/identity has format version 9.*version 1"):
        opened(files)


def test_a_damaged_identity_is_refused(files):
    opened(files).close()
    files.flip_bit("/data/identity", 30)
    with pytest.raises(StartupError, match="/data/identity fails its checksum"):
        opened(files)


def test_one_damaged_slot_of_the_identity_is_survived_but_is_no_proof_of_a_clean_stop(files):
    directory = opened(files)
    directory.set_cluster_id("c")
    directory.mark_clean_stop()
    directory.close()
    files.flip_bit("/data/identity", SLOT_BYTES + 30)
    directory = opened(files)
    assert directory.cluster_id == "c"
    assert not directory.consume_clean_marker()


def test_a_missing_identity_beside_replicas_is_refused(files):
    directory = opened(files)
    files.make_directory(directory.partition_directory("t", 0))
    directory.close()
    files.remove("/data/identity")
    with pytest.raises(StartupError, match=r"/data/identity is missing, but /data/topics"):
        opened(files)


def test_a_damaged_manifest_is_refused(files):
    directory = opened(files)
    directory.add_replicas([("t", 0)])
    directory.close()
    for position in range(len(files.read_bytes("/data/replicas"))):
        files.flip_bit("/data/replicas", position)
        with pytest.raises(StartupError, match="/data/replicas"):
            opened(files)
        files.flip_bit("/data/replicas", position)
    opened(files)


def test_a_missing_manifest_is_refused(files):
    opened(files).close()
    files.remove("/data/replicas")
    with pytest.raises(StartupError, match="/data/replicas is missing"):
        opened(files)


def test_the_manifest_of_a_later_layout_is_refused_with_both_versions(files):
    opened(files).close()
    files.write_atomically("/data/replicas", seal(b"MRM2", []))
    with pytest.raises(StartupError, match=r"MRM2.*MRM1"):
        opened(files)


def test_the_clean_marker_is_consumed_once(files):
    directory = opened(files)
    directory.mark_clean_stop()
    files.crash()
    directory = opened(files)
    assert directory.consume_clean_marker()
    assert not directory.consume_clean_marker()
    files.crash()
    assert not opened(files).consume_clean_marker()


def test_a_crash_without_a_mark_is_not_clean(files):
    directory = opened(files)
    directory.set_broker_epoch(1)
    files.crash()
    assert not opened(files).consume_clean_marker()


def test_the_broker_epoch_never_falls(files):
    directory = opened(files)
    directory.set_broker_epoch(5)
    directory.set_broker_epoch(5)
    with pytest.raises(AssertionError):
        directory.set_broker_epoch(4)


def test_many_replicas_are_listed_in_one_write(files):
    directory = opened(files)
    before = files.operations["rename"]
    directory.add_replicas([("t", number) for number in range(1000)])
    assert files.operations["rename"] == before + 1
    directory.add_replicas([("t", 5)])
    directory.remove_replicas([("other", 1)])
    assert files.operations["rename"] == before + 1
    assert len(reopened(files, directory).replicas()) == 1000


def test_partition_directories_lie_under_the_topic_id(files):
    directory = opened(files)
    assert directory.root == ROOT
    assert directory.partition_directory("AbC-_9", 12) == "/data/topics/AbC-_9/12"
    for bad in ("../x", "a/b", "", ".", "a" * 65):
        with pytest.raises(AssertionError):
            directory.partition_directory(bad, 0)
    with pytest.raises(AssertionError):
        directory.add_replicas([("t", -1)])


def test_folders_that_the_manifest_does_not_list_are_found(files):
    directory = opened(files)
    for partition in (0, 1, 12):
        files.make_directory(directory.partition_directory("t", partition))
    files.make_directory("/data/topics/t/01")
    files.make_directory("/data/topics/t/note")
    files.make_directory("/data/topics/.trash/0")
    directory.add_replicas([("t", 1)])
    assert directory.unlisted_replicas() == [("t", 0), ("t", 12)]


class TestFullDisk:
    @pytest.fixture
    def directory(self, files):
        directory = opened(files)
        directory.set_cluster_id("c")
        directory.add_replicas([("t", number) for number in range(10)])
        files.capacity = files.used_bytes()
        return directory

    def test_a_node_starts_and_keeps_its_identity(self, files, directory):
        directory.set_broker_epoch(3)
        directory.mark_clean_stop()
        directory = reopened(files, directory)
        assert directory.consume_clean_marker()
        assert directory.broker_epoch == 3

    def test_a_new_replica_is_refused_and_not_listed(self, files, directory):
        before = directory.replicas()
        with pytest.raises(DiskFullError):
            directory.add_replicas([("t", 99)])
        assert directory.replicas() == before
        assert reopened(files, directory).replicas() == before

    def test_a_replica_is_removed_out_of_the_reserve(self, files, directory):
        directory.remove_replicas([("t", 0)])
        assert ("t", 0) not in reopened(files, directory).replicas()

    def test_there_is_no_room_until_the_reserve_is_whole_again(self, files, directory):
        assert not directory.has_room(1)
        assert directory.release_reserve()
        assert not directory.release_reserve()
        assert files.free_bytes(ROOT) >= RESERVE
        assert directory.has_room()
        files.capacity -= 1
        assert not directory.has_room()
        assert not directory.maybe_restore_reserve()
        files.capacity += 1
        assert directory.maybe_restore_reserve()
        assert directory.maybe_restore_reserve()
        assert files.free_bytes(ROOT) == 0

    def test_a_small_write_that_must_not_fail_gets_the_reserve(self, files, directory):
        directory.write_with_reserve(lambda: files.write_atomically("/data/x", b"x" * 1000))
        assert files.read_bytes("/data/x") == b"x" * 1000

    def test_a_write_larger_than_the_reserve_fails(self, files, directory):
        for _ in range(2):
            with pytest.raises(DiskFullError):
                directory.write_with_reserve(
                    lambda: files.write_atomically("/data/x", b"x" * 2 * RESERVE)
                )

    def test_a_directory_opens_without_its_reserve(self, files, directory):
        directory.release_reserve()
        files.capacity = files.used_bytes()
        directory = reopened(files, directory)
        assert not directory.has_room()
        assert len(directory.replicas()) == 10

    def test_a_file_system_without_room_for_another_name_has_no_reserve(
        self, files, directory, monkeypatch
    ):
        directory.release_reserve()

        def no_room(path, **_options):
            raise DiskFullError(path)

        monkeypatch.setattr(files, "open", no_room)
        monkeypatch.setattr(directory, "_reserved_bytes", lambda: 0)
        assert not directory.maybe_restore_reserve()


def script(files, steps):
    """What a node does with its directory; ``steps`` collects what is known to be durable."""
    directory = opened(files)
    steps.append("opened")
    directory.consume_clean_marker()
    directory.set_cluster_id("c")
    steps.append("cluster")
    directory.set_broker_epoch(len(steps))
    directory.add_replicas([("t", 0)])
    steps.append("replica")
    directory.set_broker_epoch(9)
    steps.append("epoch")
    directory.remove_replicas([("t", 0)])
    steps.append("removed")
    directory.mark_clean_stop()
    steps.append("clean")
    directory.close()


@pytest.mark.parametrize("keep", ["none", "some", "all", "kill"])
def test_a_crash_before_any_operation_loses_nothing_that_returned(keep):
    rng = Random(1)
    for boundary in range(200):
        files = MemoryFiles()
        steps = []
        files.crash_before(boundary)
        try:
            script(files, steps)
        except SimulatedCrashError:
            if keep == "kill":
                files.kill()
            else:
                files.crash(rng, keep)
        else:
            assert boundary > 30
            return
        directory = opened(files, directory_id="second")
        if "opened" in steps:
            assert directory.directory_id == "dir-1"
        if "cluster" in steps:
            assert directory.cluster_id == "c"
        if "replica" in steps and "epoch" not in steps:
            assert directory.is_listed("t", 0)
        if "epoch" in steps:
            assert directory.broker_epoch == 9
        if "removed" in steps:
            assert not directory.is_listed("t", 0)
        was_clean = directory.consume_clean_marker()
        assert not was_clean or "removed" in steps
        seen = (directory.directory_id, directory.cluster_id, directory.replicas())
        files.crash()
        directory = opened(files, directory_id="third")
        assert (directory.directory_id, directory.cluster_id, directory.replicas()) == seen
        assert not directory.consume_clean_marker()
