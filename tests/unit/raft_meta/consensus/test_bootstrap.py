"""First boot: who may take part from the start, and who must learn first."""

import itertools

import crc32c
import pytest

from milena.model.errors import CorruptLogError, DiskFullError, StartupError
from raft_meta.consensus.bootstrap import (
    VoterRecord,
    check_directory,
    load_record,
    next_state,
    store_record,
)
from raft_meta.consensus.frames import BootstrapState
from tests.support.disk.memory_files import MemoryFiles, SimulatedCrashError

EMPTY, FOUNDING = BootstrapState.EMPTY, BootstrapState.FOUNDING
MEMBER, LEARNER = BootstrapState.MEMBER, BootstrapState.LEARNER


@pytest.mark.parametrize(
    ("own", "others", "expected"),
    [
        (EMPTY, [None, None], EMPTY),
        (EMPTY, [EMPTY, None], EMPTY),
        (EMPTY, [EMPTY, EMPTY], FOUNDING),
        (EMPTY, [FOUNDING, EMPTY], FOUNDING),
        (EMPTY, [FOUNDING, None], EMPTY),
        (EMPTY, [MEMBER, None], LEARNER),
        (EMPTY, [LEARNER, FOUNDING], LEARNER),
        (FOUNDING, [EMPTY, FOUNDING], FOUNDING),
        (FOUNDING, [FOUNDING, None], FOUNDING),
        (FOUNDING, [FOUNDING, FOUNDING], MEMBER),
        (FOUNDING, [MEMBER, FOUNDING], MEMBER),
        (FOUNDING, [MEMBER, None], MEMBER),
        (FOUNDING, [MEMBER, LEARNER], MEMBER),
        (MEMBER, [EMPTY, EMPTY], MEMBER),
        (LEARNER, [MEMBER, MEMBER], LEARNER),
        (EMPTY, [], FOUNDING),
        (FOUNDING, [], MEMBER),
    ],
)
def test_next_state(
    own: BootstrapState, others: list[BootstrapState | None], expected: BootstrapState
) -> None:
    assert next_state(own, dict(enumerate(others))) is expected


def test_every_order_of_events_founds_the_cluster_once_all_are_there() -> None:
    for order in itertools.permutations(range(3)):
        states = [EMPTY] * 3
        for node in (*order, *order, *order):
            others = {other: states[other] for other in range(3) if other != node}
            states[node] = next_state(states[node], others)
        assert states == [MEMBER] * 3


def test_a_voter_that_loses_its_directory_at_any_stage_never_becomes_a_member_too_early() -> None:
    """Whenever another voter is MEMBER, an EMPTY one may only become LEARNER."""
    for others in itertools.product([None, EMPTY, FOUNDING, MEMBER, LEARNER], repeat=4):
        after = next_state(EMPTY, dict(enumerate(others)))
        assert after is not MEMBER
        if MEMBER in others:
            assert after is LEARNER


@pytest.fixture
def files() -> MemoryFiles:
    made = MemoryFiles()
    made.make_directory("/raft")
    return made


def stored(files: MemoryFiles, state: BootstrapState = MEMBER) -> None:
    store_record(files, "/raft", VoterRecord(node_id=2, voters=(1, 2, 3), state=state))


def test_the_record_survives_a_power_cut(files: MemoryFiles) -> None:
    stored(files, FOUNDING)
    files.crash(keep="none")
    record = load_record(files, "/raft")
    assert record == VoterRecord(node_id=2, voters=(1, 2, 3), state=FOUNDING)


def test_a_record_that_is_there_is_stored_on_a_full_disk(files: MemoryFiles) -> None:
    """Nodes that do not vote store theirs at every start."""
    stored(files, MEMBER)
    files.capacity = files.used_bytes()
    stored(files, MEMBER)
    with pytest.raises(DiskFullError):
        stored(files, LEARNER)
    assert check_directory(files, "/raft", node_id=2, voters=(1, 2, 3)) is MEMBER


def test_a_directory_without_anything_is_empty_for_a_voter_and_nothing_for_an_observer(
    files: MemoryFiles,
) -> None:
    assert check_directory(files, "/raft", node_id=2, voters=(1, 2, 3)) is EMPTY
    assert check_directory(files, "/raft", node_id=9, voters=(1, 2, 3)) is BootstrapState.NONE


def test_a_directory_goes_on_where_it_was(files: MemoryFiles) -> None:
    stored(files, LEARNER)
    assert check_directory(files, "/raft", node_id=2, voters=(1, 2, 3)) is LEARNER


def test_another_nodes_directory_is_refused(files: MemoryFiles) -> None:
    stored(files)
    with pytest.raises(StartupError, match="belongs to node 2, not to node 1"):
        check_directory(files, "/raft", node_id=1, voters=(1, 2, 3))


def test_other_voters_are_refused_and_named(files: MemoryFiles) -> None:
    stored(files)
    with pytest.raises(StartupError, match=r"voters \[1, 2, 3\].*\[1, 2, 4\]"):
        check_directory(files, "/raft", node_id=2, voters=(1, 2, 4))


@pytest.mark.parametrize("name", ["wal", "snapshot"])
def test_a_log_without_a_record_is_refused(files: MemoryFiles, name: str) -> None:
    files.write_atomically(f"/raft/{name}", b"x")
    with pytest.raises(StartupError, match="no voter record"):
        check_directory(files, "/raft", node_id=2, voters=(1, 2, 3))


def test_a_damaged_record_is_refused(files: MemoryFiles) -> None:
    stored(files)
    files.flip_bit("/raft/voter", 3)
    with pytest.raises(CorruptLogError, match="checksum"):
        load_record(files, "/raft")


def test_a_record_that_a_killed_process_left_is_durable_before_anybody_is_told() -> None:
    files = MemoryFiles()
    files.make_directory("/raft")
    store_record(files, "/raft", VoterRecord(node_id=1, voters=(1, 2, 3), state=FOUNDING))
    files.crash()
    record = VoterRecord(node_id=1, voters=(1, 2, 3), state=MEMBER)

    def die(kind: str, path: str) -> None:
        if kind == "sync_directory":
            files.on_operation = None
            raise SimulatedCrashError(f"before {kind} of {path}")

    files.on_operation = die
    with pytest.raises(SimulatedCrashError):
        store_record(files, "/raft", record)
    files.kill()
    assert check_directory(files, "/raft", node_id=1, voters=(1, 2, 3)) is MEMBER
    files.crash()
    assert check_directory(files, "/raft", node_id=1, voters=(1, 2, 3)) is MEMBER


@pytest.mark.parametrize(
    "body", [b"", b"\xc0", b"\x94\x01\x01\xc0\x01", b"\x94\x01\x01\x91\xc3\x63"]
)
def test_a_record_of_another_shape_is_damage(body: bytes) -> None:
    files = MemoryFiles()
    files.make_directory("/raft")
    files.write_atomically("/raft/voter", body + crc32c.crc32c(body).to_bytes(4, "big"))
    with pytest.raises(CorruptLogError):
        load_record(files, "/raft")
