"""Every bit that rots below the recovery point is found, named, and given up without losing what lies behind it."""

import pytest

from milena.model.batch.header import decode_header
from milena.model.errors import ReplicaDamagedError
from milena.model.types import ReplicaHealth
from storage.log.partition_log import PartitionLog
from storage.segments.scrub import Damage
from storage.segments.segment import INDEX_SUFFIX, LOG_SUFFIX, offset_name
from tests.support.disk.log_model import (
    DIRECTORY,
    SMALL,
    LogModel,
    make_batch,
    open_log,
    read_all,
)
from tests.support.disk.small_logs import bases


def model_of(count: int = 30) -> LogModel:
    model = LogModel(config=SMALL)
    for number in range(count):
        # Every other batch is of a Kafka client.
        model.append([make_batch(2, value_bytes=150, kafka=0 if number % 2 else None)])
    model.sync()
    model.checkpoint()
    return model


def path(base: int) -> str:
    return f"{DIRECTORY}/{offset_name(base, LOG_SUFFIX)}"


def scrub(log: PartitionLog) -> tuple[int, Damage | None]:
    """Bytes that were checked, and what was found first."""
    offset, checked = log.log_start_offset, 0
    while (run := log.begin_scrub(offset)) is not None:
        while not run.is_done:
            checked += run.step()
        run.close()
        offset = run.summary.next_offset
        if run.damage is not None:
            return checked, run.damage
    return checked, None


def test_sealed_segments_are_checked_and_the_one_that_grows_is_not() -> None:
    model = model_of()
    sealed = model.log.state.table.segments[:-1]
    assert scrub(model.log) == (sum(segment.size_bytes for segment in sealed), None)
    model.files.flip_bit(path(bases(model.files)[-1]), 100)
    assert scrub(model.log)[1] is None


def test_any_flipped_bit_of_a_sealed_segment_is_found_at_its_batch() -> None:
    model = model_of()
    base = bases(model.files)[1]
    batches = [b for b in model.expected.batches if decode_header(b).base_offset >= base]
    size = model.log.state.table.segments[1].size_bytes
    starts, position = [], 0
    for batch in batches:
        starts.append((position, decode_header(batch).base_offset))
        position += len(batch)
    for byte in range(0, size, 7):
        model.files.flip_bit(path(base), byte, byte % 8)
        damage = scrub(model.log)[1]
        model.files.flip_bit(path(base), byte, byte % 8)
        assert damage is not None
        wanted = max(start for start in starts if start[0] <= byte)
        assert (damage.position, damage.offset) == wanted
        assert damage.path == path(base)
    assert scrub(model.log)[1] is None


def test_a_sector_that_cannot_be_read_is_damage() -> None:
    model = model_of()
    model.files.fail_next_read(path(bases(model.files)[2]))
    damage = scrub(model.log)[1]
    assert damage is not None
    assert damage.path == path(bases(model.files)[2])


def test_a_look_finds_what_rots_in_a_segment_that_grows_and_closing_it_lets_a_scrub_come() -> None:
    model = model_of()
    log, base = model.log, bases(model.files)[-1]
    assert look(log, base) is None
    model.files.flip_bit(path(base), 100)
    damage = look(log, base)
    assert damage is not None
    assert (damage.path, damage.offset, log.is_current(damage)) == (path(base), base, False)
    log.rolling.close_segment(base - 1)
    assert bases(model.files)[-1] == base, "it holds something else"
    log.rolling.close_segment(base)
    log.rolling.close_segment(log.log_end_offset)
    assert bases(model.files)[-1] == log.log_end_offset
    assert scrub(log)[1] is None
    log.checkpointing.run(log.log_end_offset)
    found = scrub(log)[1]
    assert found is not None
    assert found.offset == base
    log.give_up_from(found)
    restore(model, log)


def test_a_look_needs_records_and_a_copy_that_is_not_given_up() -> None:
    model = model_of()
    assert model.log.begin_look(model.log.log_end_offset) is None
    model.files.flip_bit(path(bases(model.files)[0]), 100)
    damage = scrub(model.log)[1]
    assert damage is not None
    assert look(model.log, 0) is not None
    model.log.give_up_from(damage)
    assert model.log.begin_look(0) is None


def look(log: PartitionLog, offset: int, *, is_near: bool = False) -> Damage | None:
    run = log.begin_look(offset, is_near=is_near)
    assert run is not None
    while not run.is_done:
        run.step()
    run.close()
    return run.damage


def near(log: PartitionLog, offset: int) -> tuple[int, Damage | None]:
    """Bytes that were checked around a place, and what was found."""
    run = log.begin_scrub(offset, is_near=True)
    assert run is not None
    checked = 0
    while not run.is_done:
        checked += run.step()
    run.close()
    return checked, run.damage


def test_near_a_place_the_damage_is_found_without_what_lies_far_before_it() -> None:
    model = model_of()
    base = bases(model.files)[0]
    size = model.log.state.table.segments[0].size_bytes
    model.files.flip_bit(path(base), size - 10)
    checked, damage = scrub(model.log)
    assert damage is not None
    found = near(model.log, damage.offset)
    assert found[1] is not None
    assert (found[1].offset, found[1].position) == (damage.offset, damage.position)
    assert found[0] < checked
    model.log.give_up_from(found[1])
    assert model.log.log_end_offset == damage.offset
    restore(model, model.log)


def test_a_copy_with_damage_in_several_places_is_copied_again_and_ends_no_process() -> None:
    """The damage that a reader met is given up. Before it there is more, and the cut may have to read it."""
    emptied = 0
    sizes = [segment.size_bytes for segment in model_of().log.state.table.segments]
    for byte in range(0, sizes[0] + sizes[1], 37):
        model = model_of()
        log = model.log
        first, second, third = bases(model.files)[:3]
        model.files.flip_bit(path(third), 900)
        damage = scrub(log)[1]
        assert damage is not None
        base, place = (first, byte) if byte < sizes[0] else (second, byte - sizes[0])
        model.files.flip_bit(path(base), place)
        log.give_up_from(damage)
        try:
            append_rest(model, log)
        except ReplicaDamagedError:
            emptied += 1
            assert (log.log_start_offset, log.log_end_offset) == (0, 0)
            restore(model, log)
    assert emptied


def test_near_a_place_is_not_all_of_its_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.segments.scrub.NEAR_BYTES", 1)
    model = model_of()
    base = bases(model.files)[0]
    size = model.log.state.table.segments[0].size_bytes
    checked, damage = near(model.log, base)
    assert damage is None
    assert 0 < checked < size // 2
    model.files.flip_bit(path(base), size - 10)
    assert near(model.log, base)[1] is None
    assert near(model.log, base + 1)[1] is None
    assert scrub(model.log)[1] is not None


def test_near_a_place_is_the_whole_segment_where_no_index_tells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("storage.segments.scrub.NEAR_BYTES", 1)
    model = model_of()
    segment = model.log.state.table.segments[0]
    segment.drop_index()
    model.files.remove(segment.path(INDEX_SUFFIX))
    model.files.flip_bit(path(segment.base_offset), segment.size_bytes - 10)
    damage = near(model.log, segment.base_offset)[1]
    assert damage is not None
    assert damage.offset == segment.next_offset - 2


def test_what_was_deleted_is_not_looked_for_in_what_follows_it() -> None:
    model = model_of()
    log, end = model.log, model.log.log_end_offset
    log.rolling.close_segment(end - 1)
    model.advance_log_start(end)
    assert (bases(model.files), log.state.table.active.size_bytes) == ([end], 0)
    assert log.begin_look(end - 1, is_near=True) is None
    model.append([make_batch(2, value_bytes=150)])
    assert log.begin_look(end - 1, is_near=True) is None
    assert look(log, end, is_near=True) is None


@pytest.mark.parametrize("count", [2, 30])
@pytest.mark.parametrize("cut", ["truncated", "begun anew"])
def test_a_look_near_a_place_that_is_cut_before_it_begins_finds_nothing_that_stays(
    cut: str, count: int
) -> None:
    model = model_of(count)
    log, base = model.log, bases(model.files)[-1]
    run = log.begin_look(base, is_near=True)
    assert run is not None
    model.truncate_to(base)
    if cut == "begun anew":
        model.restart_at(base + 100)
    while not run.is_done:
        run.step()
    run.close()
    assert run.damage is None or not log.is_current(run.damage)


def test_a_look_near_a_place_takes_no_notice_of_what_was_written_since_it_began() -> None:
    model = model_of()
    log, base = model.log, bases(model.files)[-1]
    offset = log.log_end_offset - 1
    run = log.begin_look(offset, is_near=True)
    assert run is not None
    while bases(model.files)[-1] == base:
        model.append([make_batch(2, value_bytes=150)])
    while not run.is_done:
        run.step()
    run.close()
    assert run.damage is None


def test_it_warms_nothing_up() -> None:
    model = model_of()
    base = bases(model.files)[0]
    model.files.evict(path(base))
    scrub(model.log)
    assert model.log.read_span_cached(0, max_bytes=1) is None


@pytest.mark.parametrize(("segment", "byte"), [(0, 0), (0, 900), (1, 3), (2, 1500)])
def test_given_up_from_the_damage_and_restored_by_the_leader(segment: int, byte: int) -> None:
    model = model_of()
    log = model.log
    model.files.flip_bit(path(bases(model.files)[segment]), byte)
    damage = scrub(log)[1]
    assert damage is not None
    assert log.is_current(damage)
    before = {name: model.files.read_bytes(name) for name in model.files.paths()}
    log.give_up_from(damage)
    assert (log.health, log.log_end_offset) == (ReplicaHealth.DAMAGED, damage.offset)
    assert not log.is_current(damage)
    assert log.begin_scrub(0) is None
    with pytest.raises(ReplicaDamagedError, match=rf"offset {damage.offset}, byte"):
        log.read_span(0, max_bytes=1)
    for name, content in before.items():
        if name.endswith(LOG_SUFFIX):
            assert model.files.read_bytes(name) == content, "it may be all that is left"
    restore(model, log)


@pytest.mark.parametrize("byte", [100, 900, 1400])
def test_what_rots_before_the_damage_meanwhile_has_the_whole_copy_made_again(byte: int) -> None:
    model = model_of()
    path_ = path(bases(model.files)[1])
    model.files.flip_bit(path_, 1500)
    damage = scrub(model.log)[1]
    assert damage is not None
    model.log.give_up_from(damage)
    model.files.flip_bit(path_, byte)
    try:
        append_rest(model, model.log)
    except ReplicaDamagedError:
        assert model.log.log_end_offset == 0
        restore(model, model.log)


@pytest.mark.parametrize("keep", ["none", "all"])
def test_the_next_start_finds_again_what_was_given_up(keep: str) -> None:
    model = model_of()
    model.files.flip_bit(path(bases(model.files)[1]), 800)
    damage = scrub(model.log)[1]
    assert damage is not None
    model.log.give_up_from(damage)
    model.files.crash(keep=keep)  # type: ignore[arg-type]
    log = open_log(model.files)
    assert (log.health, log.log_end_offset) == (ReplicaHealth.DAMAGED, damage.offset)
    restore(model, log)


def append_rest(model: LogModel, log: PartitionLog) -> None:
    """Append what a leader sends: all batches from the log's end on."""
    batches, end = model.expected.batches, log.log_end_offset
    log.append_as_follower(b"".join(b for b in batches if decode_header(b).base_offset >= end))


def restore(model: LogModel, log: PartitionLog) -> None:
    batches = model.expected.batches
    append_rest(model, log)
    log.flushing.sync_all()
    log.cutting.mark_sound()
    assert read_all(log) == list(batches)
    log.checkpointing.run(log.log_end_offset)
    assert scrub(log)[1] is None
    model.files.kill()
    log = open_log(model.files)
    assert log.health is ReplicaHealth.SOUND
    assert read_all(log) == list(batches)


def test_what_was_found_in_a_segment_that_is_cut_means_nothing() -> None:
    model = model_of()
    model.files.flip_bit(path(bases(model.files)[2]), 1500)
    damage = scrub(model.log)[1]
    assert damage is not None
    model.log.cutting.truncate_to(damage.segment.base_offset + 2)
    assert not model.log.is_current(damage)
