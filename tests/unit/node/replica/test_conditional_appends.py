"""A batch that names its offset is written there or not at all, and whoever is refused can rely on what he is told."""

import pytest

from milena.model.batch.header import ProducerStamp
from milena.model.errors import (
    DiskFullError,
    NotLeaderError,
    NotReadyError,
    PreconditionFailedError,
    RequestTooLargeError,
)
from milena.model.requests import Acks
from tests.support.clusters.runners import Bench, batch, settings
from tests.support.time.virtual_time import after, settle, virtual

KEY = b"k" * 16


def leading(isr: tuple[int, ...] = (1,), **configs: str) -> Bench:
    bench = Bench(settings=settings(**({"min_insync_replicas": "1"} | configs)))
    bench.lead(isr)
    return bench


@virtual
async def test_it_is_appended_where_the_log_ends_there() -> None:
    bench = leading()
    assert (await bench.send(batch("a"), expected_end=0)).base_offset == 0
    assert (await bench.send(batch("b", "c"), expected_end=1)).base_offset == 1
    assert (await bench.send(batch("d"), expected_end=3)).base_offset == 3
    assert bench.content() == ["a", "b", "c", "d"]


@virtual
@pytest.mark.parametrize("expected_end", [0, 1, 3, 99])
@pytest.mark.parametrize("acks", [Acks.ALL, Acks.LEADER])
async def test_else_nothing_is_written_and_the_end_is_told(expected_end: int, acks: Acks) -> None:
    bench = leading()
    await bench.sent("a", "b")
    with pytest.raises(PreconditionFailedError) as refused:
        await bench.send(batch("c"), acks, expected_end=expected_end)
    assert refused.value.end_offset == 2
    assert f"ends at offset 2, not at {expected_end}" in refused.value.message
    assert "nothing was written" in refused.value.message
    assert bench.content() == ["a", "b"]
    assert bench.counts.produce_refused == 1


@virtual
async def test_of_several_for_one_offset_in_one_turn_the_first_is_appended() -> None:
    bench = leading()
    tasks = [bench.send(batch(value), expected_end=0) for value in "abc"]
    await settle()
    assert tasks[0].result().base_offset == 0
    for task in tasks[1:]:
        error = task.exception()
        assert isinstance(error, PreconditionFailedError)
        assert error.end_offset == 1
    assert bench.content() == ["a"]


@virtual
async def test_what_is_written_before_it_in_the_same_turn_counts() -> None:
    bench = leading()
    plain = bench.send(batch("a", "b"))
    late = bench.send(batch("c"), expected_end=0)
    apt = bench.send(batch("d"), expected_end=2)
    behind = bench.send(batch("e"))
    await settle()
    assert isinstance(late.exception(), PreconditionFailedError)
    assert [task.result().base_offset for task in (plain, apt, behind)] == [0, 2, 3]
    assert bench.content() == ["a", "b", "d", "e"]


@virtual
async def test_what_is_refused_before_it_in_the_same_turn_does_not_count() -> None:
    bench = leading(max_message_bytes="1024")
    large = bench.send(batch("x" * 2_000))
    apt = bench.send(batch("a"), expected_end=0)
    await settle()
    assert isinstance(large.exception(), RequestTooLargeError)
    assert apt.result().base_offset == 0


@virtual
async def test_what_is_refused_behind_it_takes_nothing_from_it() -> None:
    bench = leading(max_message_bytes="1024")
    apt = bench.send(batch("a"), expected_end=0)
    large = bench.send(batch("x" * 2_000))
    await settle()
    assert isinstance(large.exception(), RequestTooLargeError)
    assert apt.result().base_offset == 0


@virtual
async def test_a_repeat_gets_its_first_answer_although_the_log_has_grown() -> None:
    bench = leading()
    for data in (batch("a", key=KEY), batch("b", producer=ProducerStamp(7, 0, 0))):
        end = bench.log.log_end_offset
        first = await bench.send(data, expected_end=end)
        await bench.sent("between")
        again = await bench.send(data, expected_end=end)
        assert again.is_duplicate
        assert again.base_offset == first.base_offset == end


@virtual
async def test_a_repeat_within_one_turn_gets_its_first_answer() -> None:
    bench = leading()
    data = batch("a", key=KEY)
    first, again = (bench.send(data, expected_end=0) for _ in range(2))
    await settle()
    assert first.result().base_offset == again.result().base_offset == 0
    assert again.result().is_duplicate


@virtual
async def test_a_key_that_was_refused_is_free_for_another_try() -> None:
    bench = leading()
    await bench.sent("a")
    with pytest.raises(PreconditionFailedError):
        await bench.send(batch("b", key=KEY), expected_end=0)
    assert (await bench.send(batch("c", key=KEY), expected_end=1)).base_offset == 1


@virtual
async def test_an_end_is_not_told_before_it_is_committed() -> None:
    bench = leading((1, 2))
    first = bench.send(batch("a"), expected_end=0, timeout_ms=60_000)
    second = bench.send(batch("b"), expected_end=0, timeout_ms=60_000)
    await settle()
    assert not second.done()
    bench.ack(2)
    await settle()
    assert first.result().base_offset == 0
    assert isinstance(second.exception(), PreconditionFailedError)


@virtual
async def test_with_acks_one_too_the_end_is_committed_before_it_is_told() -> None:
    bench = leading((1, 2))
    await bench.send(batch("a"), Acks.LEADER, expected_end=0)
    second = bench.send(batch("b"), Acks.LEADER, expected_end=0)
    await settle()
    assert not second.done()
    bench.ack(2)
    await settle()
    assert isinstance(second.exception(), PreconditionFailedError)


@virtual
async def test_an_end_that_is_not_committed_in_time_is_no_answer_but_nothing_was_written() -> None:
    bench = leading((1, 2))
    bench.send(batch("a"), timeout_ms=60_000)
    refused = bench.send(batch("b"), expected_end=0, timeout_ms=500)
    await after(501)
    error = refused.exception()
    assert isinstance(error, NotReadyError)
    assert "nothing was written" in error.message
    assert bench.content() == ["a"]
    assert bench.counts.fate_unknown == 0


@virtual
async def test_an_end_that_is_cut_off_is_no_answer_but_the_next_leader_may_be_asked() -> None:
    bench = leading((1, 2))
    bench.send(batch("a"), timeout_ms=60_000).add_done_callback(lambda task: task.exception())
    refused = bench.send(batch("b"), expected_end=0, timeout_ms=60_000)
    await settle()
    bench.follow(2)
    await settle()
    assert not refused.done(), "the record before may have been committed after all"
    bench.runner.truncate_as_follower(leader_epoch=6, epoch=-1, end_offset=-1)
    await settle()
    error = refused.exception()
    assert isinstance(error, NotLeaderError)
    assert "nothing was written" in error.message


@virtual
async def test_who_leads_no_more_appends_nothing_whatever_was_named() -> None:
    bench = leading((1, 2))
    bench.follow(2)
    with pytest.raises(NotLeaderError):
        await bench.send(batch("a"), expected_end=0)


@virtual
async def test_a_full_disk_refuses_it_as_any_other() -> None:
    bench = leading()
    bench.files.capacity = bench.files.used_bytes()
    with pytest.raises(DiskFullError):
        await bench.send(batch("a"), expected_end=0)
