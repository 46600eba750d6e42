"""The per-partition checkpoint, and the slot file below it: never half there, on a full disk too."""

from random import Random

import pytest

from milena.model.errors import CorruptLogError, DiskFailedError, DiskFullError
from storage.state.checkpoint import Checkpoint, CheckpointFile
from storage.state.slots import CONTENT_BYTES_MAX, SLOT_BYTES, SlotFile
from tests.support.disk.memory_files import MemoryFiles, SimulatedCrashError

FOLDER = "/data/topics/t/0"
PATH = f"{FOLDER}/checkpoint"


def at(offset, *, is_clean=False):
    return Checkpoint(
        recovery_point=offset,
        log_start_offset=offset // 2,
        high_watermark=offset + 1,
        is_clean=is_clean,
    )


@pytest.fixture
def files():
    files = MemoryFiles()
    files.make_directory(FOLDER)
    return files


@pytest.fixture
def checkpoint(files):
    checkpoint = CheckpointFile(files, FOLDER)
    assert checkpoint.load() is None
    return checkpoint


def loaded(files):
    return CheckpointFile(files, FOLDER).load()


def test_load_returns_what_was_stored_last(files, checkpoint):
    for offset in range(5):
        checkpoint.store(at(offset, is_clean=offset == 4))
        assert loaded(files) == at(offset, is_clean=offset == 4)


def test_a_stored_checkpoint_survives_a_power_cut(files, checkpoint):
    for offset in range(4):
        checkpoint.store(at(offset))
        files.crash()
        checkpoint = CheckpointFile(files, FOLDER)
        assert checkpoint.load() == at(offset)


@pytest.mark.parametrize("keep", ["none", "some", "all"])
@pytest.mark.parametrize("seed", range(8))
def test_a_power_cut_at_any_operation_leaves_the_old_checkpoint_or_the_new(keep, seed):
    rng = Random(seed)
    for boundary in range(100):
        files = MemoryFiles()
        files.make_directory(FOLDER)
        checkpoint = CheckpointFile(files, FOLDER)
        checkpoint.load()
        files.crash_before(boundary)
        stored = None
        try:
            for offset in range(4):
                checkpoint.store(at(offset))
                stored = offset
        except SimulatedCrashError:
            files.crash(rng, keep)
            found = loaded(files)
            following = 0 if stored is None else stored + 1
            allowed = [None if stored is None else at(stored), at(following)]
            assert found in allowed or (found is not None and not found.is_whole)
            assert found is None or found.recovery_point in (stored, following)
        else:
            assert boundary > 8
            return


def test_what_load_returned_survives_a_power_cut_after_a_kill(files, checkpoint):
    checkpoint.store(at(1))
    # The process is killed after the write and before its sync.
    files.crash_before(1)
    with pytest.raises(SimulatedCrashError):
        checkpoint.store(at(2))
    files.kill()
    assert loaded(files) == at(2)
    files.crash()
    assert loaded(files) == at(2)


def test_a_checkpoint_is_stored_on_a_full_disk(files, checkpoint):
    checkpoint.store(at(1))
    files.capacity = files.used_bytes()
    checkpoint.store(at(2))
    checkpoint.store(at(3))
    assert loaded(files) == at(3)


def test_the_first_checkpoint_needs_room(files, checkpoint):
    files.capacity = 100
    with pytest.raises(DiskFullError):
        checkpoint.store(at(1))
    assert loaded(files) is None


def test_a_failed_sync_is_reported(files, checkpoint):
    checkpoint.store(at(1))
    files.fail_next_sync("checkpoint")
    with pytest.raises(DiskFailedError):
        checkpoint.store(at(2))


@pytest.mark.parametrize("position", [0, 5, 9, 17, 20, 25, 40])
def test_a_flipped_bit_in_the_newest_slot_falls_back_and_is_never_clean(
    files, checkpoint, position
):
    checkpoint.store(at(1, is_clean=True))
    checkpoint.store(at(2))
    files.flip_bit(PATH, SLOT_BYTES + position)
    found = loaded(files)
    assert found is not None
    assert (found.recovery_point, found.is_clean, found.is_whole) == (1, False, False)


def test_a_flipped_bit_in_the_older_slot_keeps_the_newest_but_is_not_clean(files, checkpoint):
    checkpoint.store(at(1))
    checkpoint.store(at(2, is_clean=True))
    files.flip_bit(PATH, 30)
    found = loaded(files)
    assert (found.recovery_point, found.is_clean, found.is_whole) == (2, False, False)


def test_the_write_after_damage_goes_to_the_damaged_slot(files, checkpoint):
    checkpoint.store(at(1))
    checkpoint.store(at(2))
    files.flip_bit(PATH, SLOT_BYTES + 30)
    again = CheckpointFile(files, FOLDER)
    again.load()
    again.store(at(3))
    assert loaded(files) == at(3)
    files.flip_bit(PATH, SLOT_BYTES + 30)
    assert loaded(files).recovery_point == 1


def test_damage_in_both_slots_is_refused(files, checkpoint):
    checkpoint.store(at(1))
    checkpoint.store(at(2))
    files.flip_bit(PATH, 30)
    files.flip_bit(PATH, SLOT_BYTES + 30)
    with pytest.raises(CorruptLogError, match="checkpoint"):
        loaded(files)


@pytest.mark.parametrize("content", [b"", b"MLCP", bytes(2 * SLOT_BYTES), b"x" * 100])
def test_a_file_that_is_something_else_is_refused(files, content):
    files.write_atomically(PATH, content)
    with pytest.raises(CorruptLogError, match="checkpoint"):
        loaded(files)


@pytest.mark.parametrize("content", [b"", b"\0" * 27, b"\0\2" + b"\0" * 25])
def test_an_unknown_layout_or_version_is_refused(files, content):
    SlotFile(files, PATH, b"MLCP").store(content)
    with pytest.raises(CorruptLogError, match=r"layout|version"):
        loaded(files)


def test_another_kind_of_slot_file_is_refused(files):
    SlotFile(files, PATH, b"ABCD").store(b"x")
    with pytest.raises(CorruptLogError):
        loaded(files)


def test_a_slot_holds_any_content_up_to_its_size(files):
    slots = SlotFile(files, f"{FOLDER}/slots", b"ABCD")
    for size in (0, 1, CONTENT_BYTES_MAX, 10):
        slots.store(b"c" * size)
        found = SlotFile(files, f"{FOLDER}/slots", b"ABCD").load()
        assert found is not None
        assert found.content == b"c" * size
        assert found.is_whole
