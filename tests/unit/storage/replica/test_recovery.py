"""What is left after a crash at any point, after damage at any place, and what is said about it."""

from dataclasses import replace
from functools import partial
from random import Random

import pytest
from msgspec import structs

from milena.model.batch.header import IdempotencyExtension, ProducerStamp, decode_header
from milena.model.errors import CorruptLogError, ReplicaDamagedError
from milena.model.types import ReplicaHealth
from storage.log.partition_log import PartitionLog
from storage.replica.folder import EPOCHS_NAME
from storage.replica.meta import META_NAME, Change, ChangeKind
from storage.segments.log_config import LogConfig
from storage.segments.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    offset_name,
)
from storage.state.checkpoint import CheckpointFile
from storage.state.leader_epochs import LeaderEpochs
from storage.state.producer_state import WriterState
from storage.state.writer_snapshot import decode_snapshot
from tests.support.disk.log_model import (
    DIRECTORY,
    NOW_MS,
    SMALL,
    Expected,
    LogModel,
    make_batch,
    open_log,
    read_all,
)
from tests.support.disk.memory_files import MemoryFiles, SimulatedCrashError

LARGE = LogConfig(segment_bytes=1 << 20, index_interval_bytes=300, preallocate_bytes=1 << 16)
"""One segment, preallocated far beyond its end."""

KEEPS = [("none", 0), ("all", 1), ("some", 2), ("some", 3)]

TINY = LogConfig(
    segment_bytes=1000, index_interval_bytes=300, preallocate_bytes=500, checkpoint_bytes=900
)
"""Two batches a segment."""


def path(offset, suffix=LOG_SUFFIX):
    return f"{DIRECTORY}/{offset_name(offset, suffix)}"


def batches(count, *, value_bytes=150, producer_id=None, sequence=0):
    found = []
    for number in range(count):
        stamp = producer_id and ProducerStamp(producer_id, 0, sequence + 2 * number)
        key = IdempotencyExtension(bytes([number % 250]) * 16, b"body-abc", 6)
        found.append(
            make_batch(2, value_bytes=value_bytes, producer=stamp, key=None if number % 3 else key)
        )
    return found


def filled(*, config=SMALL, count=30, checkpoint_at=None, is_synced=True, files=None):
    """A log of ``count`` batches of two records, a few epochs and one producer."""
    model = LogModel(config=config, files=files)
    for number, batch in enumerate(batches(count, producer_id=5)):
        model.leader_epoch = number // 7
        model.append([batch])
        if number + 1 == checkpoint_at:
            model.sync()
            model.checkpoint()
    if is_synced:
        model.sync()
    return model


def base_offsets(files):
    names = [name for name in files.list_directory(DIRECTORY) if name.endswith(LOG_SUFFIX)]
    return [int(name.removesuffix(LOG_SUFFIX)) for name in names]


# Power cuts at every boundary.


def middle(model):
    return model.log.log_start_offset + 9


CHANGES = {
    "append": lambda model: model.append(batches(3, producer_id=9)),
    "append across segments": lambda model: model.append(batches(8, producer_id=9)),
    "append as a follower": lambda model: model.append(batches(8), as_follower=True),
    "sync": lambda model: model.sync(),
    "checkpoint": lambda model: model.checkpoint(),
    "truncate the last segment": lambda model: model.truncate_to(model.expected.log_end - 3),
    "truncate across segments": lambda model: model.truncate_to(middle(model)),
    "truncate everything": lambda model: model.truncate_to(model.log.log_start_offset),
    "advance the log start": lambda model: model.advance_log_start(middle(model)),
    "advance it to the end": lambda model: model.advance_log_start(model.expected.log_end),
    "restart above": lambda model: model.restart_at(1000),
    "restart below": lambda model: model.restart_at(5),
}


def prepared(state):
    """A log before the change: checkpointed in part or not, everything synced or not."""
    return filled(
        config=TINY,
        count=10,
        checkpoint_at=5 if "checkpoint" in state else None,
        is_synced="synced" in state,
    )


@pytest.mark.parametrize("state", ["synced", "synced, checkpoint", "checkpoint"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_power_cut_at_any_point_of_a_change_loses_nothing_that_was_synced(name, state):
    """What is there is a prefix of what was appended, and at least what was durable."""
    for keep, seed in KEEPS:
        number = 0
        is_cut_short = True
        while is_cut_short:
            model = prepared(state)
            if "truncate" in name:
                # No follower truncates below what it knows to be committed.
                model.high_watermark = 0
                model.is_state_exact = False
            is_cut_short = model.crash_in(number, partial(CHANGES[name], model), Random(seed), keep)
            if seed < 2:
                # The log is as good as before: it takes more, and keeps it.
                model.append(batches(2, producer_id=4))
                model.sync()
                model.checkpoint()
                model.crash(Random(seed), keep)
            number += 1


@pytest.mark.parametrize("keep_and_seed", KEEPS)
def test_a_power_cut_in_a_clean_stop_is_no_clean_stop(keep_and_seed):
    keep, seed = keep_and_seed
    number = 0
    is_cut_short = True
    while is_cut_short:
        model = filled(config=TINY, count=10, checkpoint_at=5)
        is_cut_short = model.crash_in(
            number, partial(model.log.close, is_clean=True), Random(seed), keep
        )
        assert model.log.health is ReplicaHealth.SOUND
        number += 1


@pytest.mark.parametrize("keep_and_seed", KEEPS)
def test_recovery_may_itself_be_cut_short(keep_and_seed):
    keep, seed = keep_and_seed
    number = 0
    is_cut_short = True
    while is_cut_short:
        model = filled(config=TINY, count=10, checkpoint_at=5)
        model.append(batches(5, producer_id=8))
        model.files.crash(Random(seed), "some")
        model.files.crash_before(number)
        try:
            log = open_log(model.files, config=TINY)
            is_cut_short = False
            health = log.health
        except SimulatedCrashError:
            is_cut_short = True
            health = None
        model.files.crash(Random(seed + 1), keep)
        model._recover([model.expected])
        if health is not None:
            model.files.kill()
            # Nothing is left to be cut by now, but nobody has declared the replica sound.
            assert health is model.log.recovery.health
        number += 1
    assert number > 3


@pytest.mark.parametrize("keep_and_seed", KEEPS)
def test_a_power_cut_while_a_replica_is_made(keep_and_seed):
    keep, seed = keep_and_seed
    number = 0
    is_cut_short = True
    while is_cut_short:
        files = MemoryFiles()
        files.crash_before(number)
        try:
            open_log(files, is_listed=False)
            is_cut_short = False
        except SimulatedCrashError:
            is_cut_short = True
        files.crash(Random(seed), keep)
        log = open_log(files, is_listed=not is_cut_short)
        assert log.health is ReplicaHealth.SOUND
        assert (log.log_start_offset, log.log_end_offset) == (0, 0)
        number += 1


@pytest.mark.parametrize("keep_and_seed", KEEPS)
def test_a_power_cut_while_a_replica_is_deleted_leaves_nothing_to_be_taken_for_one(keep_and_seed):
    keep, seed = keep_and_seed
    number = 0
    is_cut_short = True
    while is_cut_short:
        model = filled()
        model.files.crash_before(number)
        try:
            model.log.delete()
            is_cut_short = False
        except SimulatedCrashError:
            is_cut_short = True
        model.files.crash(Random(seed), keep)
        log = open_log(model.files, is_listed=False)
        assert log.health is ReplicaHealth.SOUND
        assert log.log_end_offset in (0, model.expected.log_end)
        assert len(read_all(log)) in (0, len(model.expected.batches))
        number += 1


# What a scan sees.


@pytest.mark.parametrize("offset", [0, 4, 18])
def test_a_truncation_that_was_announced_is_finished(offset):
    model = filled(config=TINY, count=10)
    model.log.checkpointing.run(12, is_forced=True)
    meta = model.log.replica.meta
    model.log.replica.store_meta(structs.replace(meta, change=Change(ChangeKind.TRUNCATE, offset)))
    for _ in range(2):
        model.files.crash()
        log = open_log(model.files, config=TINY)
        assert log.health is ReplicaHealth.SOUND
        assert log.log_end_offset == offset
        assert read_all(log) == list(model.expected.truncated_to(offset).batches)
        assert log.state.epochs.last_epoch == {0: -1, 4: 0, 18: 1}[offset]
        assert log.replica.meta == meta
        assert log.replica.checkpoint.high_watermark == min(offset, 12)


def test_a_restart_that_was_announced_is_finished():
    model = filled(config=TINY, count=10)
    meta = model.log.replica.meta
    model.log.replica.store_meta(structs.replace(meta, change=Change(ChangeKind.RESTART, 500)))
    model.files.crash()
    log = open_log(model.files, config=TINY)
    assert (log.log_start_offset, log.log_end_offset, log.state.epochs.last_epoch) == (500, 500, -1)
    assert log.replica.meta == meta
    assert base_offsets(model.files) == [500]


def test_a_clean_stop_skips_the_scan():
    model = filled(checkpoint_at=12)
    model.reopen_cleanly()


def test_an_unclean_stop_is_scanned_from_the_recovery_point():
    model = filled(config=LARGE, checkpoint_at=None)
    model.log.checkpointing.run(0, is_forced=True)
    model.append(batches(4))
    model.sync()
    tail = sum(map(len, model.expected.batches[-4:]))
    model.kill()
    assert model.log.recovery.scanned_bytes == tail
    assert not model.log.recovery.was_clean


def test_a_node_that_says_it_stopped_cleanly_is_not_believed_against_the_log():
    """The node's word and the log's own must agree."""
    model = filled(config=LARGE)
    model.files.kill()
    model.log = open_log(model.files, config=LARGE, was_clean=True)
    assert not model.log.recovery.was_clean
    model.check()


def test_preallocated_zeros_are_the_end_and_no_cut():
    model = filled(config=LARGE)
    assert model.log.state.table.active.file.size() > model.log.size_bytes + 10_000
    model.crash(Random(0), "all")
    assert model.log.recovery.cut_bytes == 0
    assert model.log.health is ReplicaHealth.SOUND
    model.append(batches(3))
    model.check()


def test_a_torn_tail_is_cut_and_makes_the_replica_suspect():
    model = filled(config=LARGE)
    end = model.log.size_bytes
    model.files.overwrite(path(0), end, model.expected.batches[0][:100])
    model.files.kill()
    log = open_log(model.files, config=LARGE)
    assert log.health is ReplicaHealth.SUSPECT
    assert log.recovery.cut_bytes > 0
    assert "cut at offset 60" in log.recovery.reason
    assert log.log_end_offset == 60
    assert log.state.table.active.file.size() == end


def test_bytes_behind_zeros_are_a_cut_too():
    """A page that was written and the one before it that was not."""
    model = filled(config=LARGE)
    model.files.overwrite(path(0), model.log.size_bytes + 5000, b"x")
    model.files.kill()
    log = open_log(model.files, config=LARGE)
    assert log.health is ReplicaHealth.SUSPECT
    assert log.log_end_offset == 60


def test_a_suspect_replica_stays_suspect_until_it_is_declared_sound():
    """A second start finds nothing to cut, but what was cut is still lost."""
    model = filled(config=LARGE)
    model.files.overwrite(path(0), model.log.size_bytes, b"torn")
    for _ in range(3):
        model.files.kill()
        model.log = open_log(model.files, config=LARGE)
        assert model.log.health is ReplicaHealth.SUSPECT
        assert model.log.recovery.reason
    model.log.cutting.mark_sound()
    model.kill()
    assert model.log.health is ReplicaHealth.SOUND
    assert model.log.recovery.reason == ""


def test_a_log_that_ends_below_its_high_watermark_is_suspect():
    """Zeros are no cut, but the bytes that they replaced were acknowledged."""
    model = filled(config=LARGE)
    model.log.checkpointing.run(60)
    file = model.log.state.table.active.file
    position, _ = model.log.state.table.active.locate(50)
    model.files.overwrite(path(0), position, bytes(file.size() - position))
    model.files.kill()
    log = open_log(model.files, config=LARGE)
    assert log.health is ReplicaHealth.SUSPECT
    assert "below its high watermark 60" in log.recovery.reason
    log.cutting.mark_sound()
    model.files.kill()
    assert open_log(model.files, config=LARGE).health is ReplicaHealth.SOUND


@pytest.mark.parametrize("what", ["offset", "epoch"])
def test_a_batch_out_of_its_place_is_as_bad_as_a_damaged_one(what):
    model = filled(config=LARGE, count=10)
    wrong = model._stamped(batches(1))[0]
    if what == "offset":
        model.expected = Expected(model.expected.batches, 0, 30, 20)
        wrong = model._stamped(batches(1))[0]
    else:
        model.leader_epoch = 0
        wrong = model._stamped(batches(1))[0]
    model.files.overwrite(path(0), model.log.size_bytes, wrong)
    model.files.kill()
    log = open_log(model.files, config=LARGE)
    assert log.health is ReplicaHealth.SUSPECT
    assert log.log_end_offset == 20
    assert ("offset 30 where 20" if what == "offset" else "epoch 0 after 1") in log.recovery.reason


def test_any_damaged_byte_above_the_recovery_point_is_a_cut():
    model = filled(config=LARGE, count=12)
    size = len(model.expected.batches[5])
    for position in range(0, size, 7):
        files = MemoryFiles()
        model = filled(config=LARGE, count=12, files=files)
        at = sum(map(len, model.expected.batches[:5])) + position
        files.flip_bit(path(0), at)
        files.kill()
        log = open_log(files, config=LARGE)
        assert log.health is ReplicaHealth.SUSPECT
        assert log.log_end_offset == 10
        assert read_all(log) == list(model.expected.batches[:5])


def test_segments_behind_a_cut_go():
    model = filled()
    bases = base_offsets(model.files)
    assert len(bases) >= 4
    model.files.flip_bit(path(bases[1]), 300)
    model.files.kill()
    log = open_log(model.files)
    assert log.health is ReplicaHealth.SUSPECT
    assert base_offsets(model.files) == bases[:2]
    assert bases[1] <= log.log_end_offset < bases[2]
    assert log.recovery.cut_bytes > 2500


@pytest.mark.parametrize("missing", [1, 2])
def test_segments_behind_a_missing_one_go(missing):
    model = filled()
    bases = base_offsets(model.files)
    model.files.remove(path(bases[missing]))
    model.files.kill()
    log = open_log(model.files)
    assert log.health is ReplicaHealth.SUSPECT
    assert log.log_end_offset == bases[missing]
    assert f"no segment begins at offset {bases[missing]}" in log.recovery.reason


def test_other_files_in_the_folder_are_left_alone_and_temporary_ones_go():
    model = filled()
    model.files.write_atomically(f"{DIRECTORY}/notes", b"mine")
    model.files.open(f"{DIRECTORY}/half.tmp", create=True)
    former = f"{DIRECTORY}/{0:020}.timeindex"
    model.files.write_atomically(former, b"of an earlier release")
    model.kill()
    assert model.files.exists(f"{DIRECTORY}/notes")
    assert not model.files.exists(f"{DIRECTORY}/half.tmp")
    assert not model.files.exists(former)


# Damage below the recovery point.


def checkpointed():
    """Five segments or more, of which all but the last batches lie below the recovery point."""
    model = filled(count=30)
    model.checkpoint()
    model.append(batches(2))
    model.sync()
    assert model.log.replica.checkpoint.recovery_point == 60
    return model


def damaged(number):
    """A log with a bad batch in the ``number``-th segment, which is scanned because its index is lost."""
    model = checkpointed()
    base = base_offsets(model.files)[number]
    model.files.remove(path(base, INDEX_SUFFIX))
    model.files.flip_bit(path(base), 700)
    model.files.kill()
    return model, base


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_damaged_batch_below_the_recovery_point_is_damage(number):
    model, base = damaged(number)
    before = {name: model.files.read_bytes(name) for name in model.files.paths()}
    log = open_log(model.files)
    assert log.health is ReplicaHealth.DAMAGED
    assert log.log_end_offset == base + 2
    for name, content in before.items():
        if name.endswith(LOG_SUFFIX):
            is_same = model.files.read_bytes(name) == content
            assert is_same, "nothing is cut: what lies behind may be all that is left"


def test_a_damaged_replica_serves_and_takes_nothing_but_what_restores_it():
    model, _ = damaged(1)
    log = open_log(model.files)
    with pytest.raises(ReplicaDamagedError):
        log.read_span(0, max_bytes=1)
    with pytest.raises(ReplicaDamagedError):
        log.offset_for_timestamp(0)
    with pytest.raises(ReplicaDamagedError, match=r"orders/3 is damaged: .*is damaged at offset"):
        log.append_as_leader(batches(1), leader_epoch=9, now_ms=NOW_MS)
    bases = base_offsets(model.files)
    missing = [
        b for b in model.expected.batches if decode_header(b).base_offset >= log.log_end_offset
    ]
    log.append_as_follower(b"".join(missing[:3]))
    assert len(base_offsets(model.files)) < len(bases), "what lay behind the damage is gone"
    log.append_as_follower(b"".join(missing[3:]))
    log.flushing.sync_all()
    assert log.health is ReplicaHealth.DAMAGED
    log.cutting.mark_sound()
    assert read_all(log) == list(model.expected.batches)
    model.log = log
    model.is_state_exact = False
    model.kill()


@pytest.mark.parametrize("keep_and_seed", KEEPS)
def test_a_power_cut_while_a_damaged_replica_is_restored(keep_and_seed):
    keep, seed = keep_and_seed
    number = 0
    is_cut_short = True
    while is_cut_short:
        model, _ = damaged(1)
        log = open_log(model.files)
        whole = model.expected.batches
        end = log.log_end_offset
        missing = [b for b in whole if decode_header(b).base_offset >= end]
        model.files.crash_before(number)
        try:
            log.append_as_follower(b"".join(missing))
            log.flushing.sync_all()
            is_cut_short = False
        except SimulatedCrashError:
            is_cut_short = True
        model.files.crash(Random(seed), keep)
        log = open_log(model.files)
        assert log.health is ReplicaHealth.DAMAGED, "nobody has declared it sound"
        rest = [b for b in whole if decode_header(b).base_offset >= log.log_end_offset]
        log.append_as_follower(b"".join(rest))
        log.flushing.sync_all()
        log.cutting.mark_sound()
        assert read_all(log) == list(whole)
        number += 1


def test_a_damaged_replica_may_start_again_elsewhere():
    model, _ = damaged(1)
    log = open_log(model.files)
    log.cutting.restart_at(0)
    log.append_as_follower(b"".join(model.expected.batches))
    log.flushing.sync_all()
    log.cutting.mark_sound()
    model.log = log
    model.kill()


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_file_that_lost_bytes_below_the_recovery_point_is_damage(number):
    model = checkpointed()
    base = base_offsets(model.files)[number]
    file = model.files.open(path(base))
    file.truncate(300)
    file.sync()
    model.files.kill()
    log = open_log(model.files)
    assert log.health is ReplicaHealth.DAMAGED
    assert log.log_end_offset == base
    assert log.recovery.cut_bytes == 0


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_segment_that_is_gone_below_the_recovery_point_is_damage(number):
    model = checkpointed()
    bases = base_offsets(model.files)
    model.files.remove(path(bases[number]))
    model.files.kill()
    log = open_log(model.files)
    assert log.health is ReplicaHealth.DAMAGED
    assert log.log_end_offset == bases[number]
    kept = [base for base in bases if base != bases[number]]
    assert [base for base in base_offsets(model.files) if base in kept] == kept


def test_a_listed_replica_without_files_is_damaged_not_new():
    log = open_log(MemoryFiles(), is_listed=True)
    assert log.health is ReplicaHealth.DAMAGED
    assert log.recovery.reason == "the files of the replica are gone"
    assert log.log_end_offset == 0


def test_a_listed_replica_stays_damaged_over_the_next_start():
    files = MemoryFiles()
    open_log(files, is_listed=True)
    files.kill()
    assert open_log(files).health is ReplicaHealth.DAMAGED


def test_a_replica_whose_log_files_are_all_gone_is_damaged():
    model = filled()
    for base in base_offsets(model.files):
        model.files.remove(path(base))
    model.files.kill()
    log = open_log(model.files)
    assert log.health is ReplicaHealth.DAMAGED
    log.append_as_follower(b"".join(model.expected.batches))


def test_a_bad_sector_is_damage_below_the_recovery_point_and_a_cut_above():
    model = filled(config=LARGE)
    model.files.kill()
    model.files.fail_next_read(LOG_SUFFIX)
    log = open_log(model.files, config=LARGE)
    assert log.health is ReplicaHealth.SUSPECT
    model = checkpointed()
    base = base_offsets(model.files)[0]
    model.files.remove(path(base, INDEX_SUFFIX))
    model.files.kill()
    model.files.fail_next_read(offset_name(base, LOG_SUFFIX))
    assert open_log(model.files).health is ReplicaHealth.DAMAGED


# Hints that are wrong.


@pytest.mark.parametrize("suffix", [INDEX_SUFFIX, SNAPSHOT_SUFFIX, EPOCHS_NAME])
@pytest.mark.parametrize("damage", ["flip", "remove", "empty"])
def test_indexes_epochs_and_snapshots_are_made_again_when_they_are_bad(suffix, damage):
    model = checkpointed()
    victims = [name for name in model.files.paths() if name.endswith(suffix)]
    assert victims
    for name in victims:
        if damage == "flip":
            model.files.flip_bit(name, 12)
        elif damage == "remove":
            model.files.remove(name)
        else:
            model.files.write_atomically(name, b"")
    model.kill()
    assert model.log.health is ReplicaHealth.SOUND
    for offset in range(0, 64, 3):
        model.check_read(offset, 500, 64)
    model.check_search(NOW_MS)
    model.append(batches(3, producer_id=5, sequence=60))
    model.check()
    model.reopen_cleanly()


def test_a_lost_index_does_not_keep_a_node_with_a_full_disk_from_starting():
    model = checkpointed()
    for base in base_offsets(model.files):
        model.files.remove(path(base, INDEX_SUFFIX))
    model.files.capacity = model.files.used_bytes() + 10
    model.kill()


def test_an_index_that_reaches_above_the_recovery_point_is_used_below_it():
    """A truncation lowered the point, and what was appended since is something else."""
    model = filled(config=LARGE, count=14)
    model.log.checkpointing.run(0, is_forced=True)
    model.append(batches(16))
    model.log.checkpointing.run(0, is_forced=True)
    model.truncate_to(33)
    model.is_state_exact = False
    for number in range(20):
        model.append([make_batch(1 + number % 3, value_bytes=50 + number)])
    model.sync()
    model.kill()
    assert model.log.replica.checkpoint.recovery_point == 32
    scanned = sum(map(len, model.expected.batches[14:]))
    assert model.log.recovery.scanned_bytes <= scanned + 1000, (
        "from the snapshot, or an index entry"
    )
    for offset in range(0, model.expected.log_end, 3):
        model.check_read(offset, 500, model.expected.log_end)


@pytest.mark.parametrize("is_killed", [False, True])
def test_each_sealed_segment_comes_with_the_writers_state_at_its_end(is_killed):
    model = filled()
    if is_killed:
        model.kill()
    model.log.checkpointing.run(0)
    bases = base_offsets(model.files)
    assert len(bases) > 3
    for base in bases[1:]:
        replayed = WriterState()
        for header in map(decode_header, model.expected.batches):
            if header.base_offset < base:
                replayed.record(header, header.base_offset, header.append_time_ms)
        snapshot = decode_snapshot(model.files.read_bytes(path(base, SNAPSHOT_SUFFIX)))
        assert snapshot == replayed.freeze(base)


def test_a_snapshot_of_the_future_is_not_believed():
    model = checkpointed()
    content = model.files.read_bytes(path(60, SNAPSHOT_SUFFIX))
    model.files.write_atomically(path(62, SNAPSHOT_SUFFIX), content)
    model.files.write_atomically(path(58, SNAPSHOT_SUFFIX), content)
    model.files.flip_bit(path(60, SNAPSHOT_SUFFIX), 20)
    model.kill()
    assert not model.files.exists(path(62, SNAPSHOT_SUFFIX))


# The small files.


def slot_of(name, files, *, is_newest):
    """Where the newest, or the older, content of a slot file begins."""
    content = files.read_bytes(f"{DIRECTORY}/{name}")
    sequences = [int.from_bytes(content[at + 8 : at + 16], "big") for at in (0, 4096)]
    newest = sequences.index(max(sequences))
    return 4096 * (newest if is_newest else 1 - newest)


def test_a_lost_checkpoint_makes_the_replica_suspect_and_everything_is_scanned():
    model = checkpointed()
    model.files.remove(f"{DIRECTORY}/checkpoint")
    model.files.kill()
    log = open_log(model.files)
    assert log.health is ReplicaHealth.SUSPECT
    assert log.recovery.reason == "the checkpoint is lost"
    assert log.recovery.scanned_bytes == sum(map(len, model.expected.batches))
    assert read_all(log) == list(model.expected.batches)


def test_a_checkpoint_that_may_be_out_of_date_is_not_relied_on():
    model = checkpointed()
    model.log.checkpointing.run(62)
    at = slot_of("checkpoint", model.files, is_newest=True)
    model.files.flip_bit(f"{DIRECTORY}/checkpoint", at + 8)
    model.kill()
    assert model.log.recovery.scanned_bytes == sum(map(len, model.expected.batches))
    assert model.log.replica.checkpoint.recovery_point == 0
    model.append(batches(10))
    model.checkpoint()
    model.reopen_cleanly()


def test_damage_below_the_recovery_point_of_an_older_checkpoint_is_damage():
    model = checkpointed()
    model.log.checkpointing.run(62)
    at = slot_of("checkpoint", model.files, is_newest=True)
    model.files.flip_bit(f"{DIRECTORY}/checkpoint", at + 8)
    model.files.flip_bit(path(0), 700)
    model.files.kill()
    log = open_log(model.files)
    assert log.health is ReplicaHealth.DAMAGED


def test_the_log_start_is_found_without_a_checkpoint():
    model = checkpointed()
    model.advance_log_start(33)
    model.files.remove(f"{DIRECTORY}/checkpoint")
    model.files.kill()
    log = open_log(model.files)
    assert log.log_start_offset == base_offsets(model.files)[0] <= 33


def test_a_lost_meta_file_makes_a_listed_replica_suspect():
    model = checkpointed()
    model.files.remove(f"{DIRECTORY}/{META_NAME}")
    model.files.kill()
    log = open_log(model.files)
    assert log.health is ReplicaHealth.SUSPECT
    assert log.recovery.reason == "the meta file is lost"
    assert read_all(log) == list(model.expected.batches)


def test_a_damaged_meta_file_makes_a_listed_replica_suspect():
    model = checkpointed()
    model.files.write_atomically(f"{DIRECTORY}/{META_NAME}", b"no meta file")
    model.files.kill()
    assert open_log(model.files).health is ReplicaHealth.SUSPECT


def test_leftovers_without_a_meta_file_are_no_replica():
    model = checkpointed()
    model.files.remove(f"{DIRECTORY}/{META_NAME}")
    model.files.kill()
    log = open_log(model.files, is_listed=False)
    assert log.health is ReplicaHealth.SOUND
    assert log.log_end_offset == 0


def test_the_folder_of_another_partition_is_refused():
    model = checkpointed()
    model.files.kill()
    with pytest.raises(CorruptLogError, match="belongs to partition 3 of topic"):
        PartitionLog.open(
            model.files,
            DIRECTORY,
            config=SMALL,
            topic_id="f" * 32,
            topic_name="orders",
            partition=3,
            is_listed=True,
            was_clean=False,
            now_ms=NOW_MS,
        )


def test_the_name_comes_from_the_folder():
    model = checkpointed()
    model.files.kill()
    log = PartitionLog.open(
        model.files,
        DIRECTORY,
        config=SMALL,
        topic_id=model.log.replica.meta.topic_id,
        topic_name="",
        partition=3,
        is_listed=True,
        was_clean=False,
        now_ms=NOW_MS,
    )
    assert (log.replica.meta.topic_name, log.replica.meta.partition, log.replica.directory) == (
        "orders",
        3,
        DIRECTORY,
    )


def test_a_log_start_waits_for_what_lies_below_it():
    """The follower adopts its leader's log start before its own sync is done."""
    model = filled(config=LARGE, is_synced=False)
    model.log.start.advance(30)
    assert model.log.flushing.synced_end == 60
    model.files.crash()
    log = open_log(model.files, config=LARGE)
    assert (log.log_start_offset, log.log_end_offset) == (30, 60)


def test_a_log_that_ends_below_its_start_goes_on_at_its_start():
    model = filled(config=LARGE)
    model.log.checkpointing.run(30)
    model.log.start.advance(30)
    position, _ = model.log.state.table.active.locate(10)
    model.files.overwrite(path(0), position, bytes(model.log.size_bytes - position))
    model.files.kill()
    log = open_log(model.files, config=LARGE)
    assert (log.log_start_offset, log.log_end_offset) == (30, 30)
    assert log.health is ReplicaHealth.SUSPECT
    assert "the log ends at offset 10, below its high watermark 30" in log.recovery.reason
    assert base_offsets(model.files) == [30]


def test_everything_is_durable_that_a_recovered_log_shows():
    """A kill leaves the page cache; readers of the next process must not see what a power cut may still take."""
    model = filled(config=LARGE, is_synced=False)
    model.kill()
    model.crash(Random(0), "none")
    assert model.log.log_end_offset == 60


def stop_before(files, kind, suffix):
    """The process dies before the next such operation; what it wrote is still to be seen."""

    def stop(happening, path):
        if happening == kind and path.endswith(suffix):
            files.on_operation = None
            raise SimulatedCrashError(f"before {kind} of {path}")

    files.on_operation = stop


def test_a_cut_that_a_recovered_log_shows_is_durable():
    """A kill before the sync of a truncation leaves the shorter file in the page cache alone."""
    model = filled(config=replace(LARGE, checkpoint_bytes=1), checkpoint_at=30)
    assert model.log.replica.checkpoint.recovery_point == 60
    stop_before(model.files, "sync", LOG_SUFFIX)
    with pytest.raises(SimulatedCrashError):
        model.log.cutting.truncate_to(40)
    model.files.kill()
    assert open_log(model.files).log_end_offset == 40
    model.files.crash()
    assert open_log(model.files).log_end_offset == 40


def test_names_that_a_killed_process_made_are_durable_before_others_are_removed():
    """On a disk that keeps no order between names the new segment would be lost, and the old ones be gone."""
    model = filled(config=SMALL, checkpoint_at=30)
    stop_before(model.files, "sync_directory", DIRECTORY)
    with pytest.raises(SimulatedCrashError):
        model.log.start.advance(60)
    model.files.kill()
    happened = []
    model.files.on_operation = lambda kind, path: happened.append(kind)
    assert open_log(model.files).log_start_offset == 60
    first = happened.index("remove")
    assert "sync_directory" in happened[:first]


def test_the_checkpoint_says_no_more_than_what_is_true_after_recovery():
    model = checkpointed()
    model.files.flip_bit(path(base_offsets(model.files)[-1]), 0)
    model.files.kill()
    open_log(model.files)
    stored = CheckpointFile(model.files, DIRECTORY).load()
    assert stored.recovery_point <= 60
    epochs = LeaderEpochs.decode(model.files.read_bytes(f"{DIRECTORY}/{EPOCHS_NAME}"))
    assert epochs.last_epoch == 4
