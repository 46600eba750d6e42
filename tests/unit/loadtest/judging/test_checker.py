"""The judge names every way in which a cluster can break its word, and nothing else."""

from random import Random

import pytest
from msgspec.structs import replace

from loadtest.judging.checker import Checker
from loadtest.judging.ledger import LedgerError, Sent, Settled
from loadtest.judging.verdict import EXAMPLES_MAX, Anomaly
from loadtest.records.pages import StoredRecord
from loadtest.records.receipts import Fate
from loadtest.records.workload import Dialect, RecordMaker
from tests.support.spark.load_runs import LoadRun, stored

EVEN, ODD = 2, 3
"""Writers of JSON and of bytes."""


def good_run(**options):
    run = LoadRun(**options)
    for _ in range(3):
        run.write(EVEN, 0)
        run.write(ODD, 1, count=4)
        run.write(EVEN, 1)
    return run


def found(verdict):
    return {anomaly: count for anomaly, count in verdict.found.items() if count}


def moved(record, offset):
    return record._replace(offset=offset)


def test_a_run_without_faults_has_none():
    verdict = good_run().judged()
    assert found(verdict) == {}
    assert verdict.is_conclusive
    assert (verdict.sent, verdict.acknowledged, verdict.read) == (18, 18, 18)
    assert (verdict.refused, verdict.unknown, verdict.polled, verdict.faults) == (0, 0, 0, 0)


def test_what_stood_in_the_topic_before_is_not_judged():
    run = good_run(starts={0: 1000, 1: 5})
    assert found(run.judged()) == {}


def test_a_lost_tail_is_lost_writes():
    run = good_run()
    verdict = run.judged({0: run.logs[0], 1: run.logs[1][:-2]})
    assert found(verdict) == {Anomaly.LOST_WRITE: 2}
    assert "acknowledged at p1@14" in verdict.examples[Anomaly.LOST_WRITE][0]


def test_a_record_lost_in_the_middle_leaves_a_gap():
    run = good_run()
    verdict = run.judged({0: run.logs[0], 1: [*run.logs[1][:3], *run.logs[1][4:]]})
    assert found(verdict) == {Anomaly.LOST_WRITE: 1, Anomaly.OFFSET_GAP: 1}


def test_an_empty_topic_has_lost_everything():
    verdict = good_run().judged({0: [], 1: []})
    assert found(verdict) == {Anomaly.LOST_WRITE: 18}
    assert len(verdict.examples[Anomaly.LOST_WRITE]) == EXAMPLES_MAX


def test_a_write_at_two_offsets_is_a_duplicate():
    run = good_run()
    verdict = run.judged({0: [*run.logs[0], moved(run.logs[0][1], 3)], 1: run.logs[1]})
    assert found(verdict) == {Anomaly.DUPLICATE: 1}
    assert verdict.examples[Anomaly.DUPLICATE] == ("2:2 at p0@1 and p0@3",)


def test_a_write_in_two_partitions_is_a_duplicate():
    run = good_run()
    verdict = run.judged({0: [*run.logs[0], moved(run.logs[1][-1], 3)], 1: run.logs[1]})
    assert Anomaly.DUPLICATE in found(verdict)


def test_a_retry_that_wrote_again_is_a_duplicate():
    run = LoadRun()
    run.write(EVEN, 0, fate=Fate.UNKNOWN, is_stored=True)
    run.logs[0].append(moved(run.logs[0][0], 1))
    run.write(ODD, 0)
    run.logs[0][-1] = moved(run.logs[0][-1], 2)
    assert found(run.judged())[Anomaly.DUPLICATE] == 1


def test_a_writer_s_records_out_of_order_are_a_nonmonotonic_send():
    run = LoadRun()
    for _ in range(3):
        run.write(EVEN, 0)
    first, second, third = run.logs[0]
    verdict = run.judged({0: [first, moved(third, 1), moved(second, 2)], 1: []})
    assert found(verdict) == {Anomaly.NONMONOTONIC_SEND: 1, Anomaly.INCONSISTENT_OFFSETS: 2}


def test_partitions_and_writers_have_no_order_between_them():
    run = LoadRun()
    for writer, partition in ((EVEN, 1), (ODD, 0), (EVEN, 0), (ODD, 1), (EVEN, 1)):
        run.write(writer, partition)
    assert found(run.judged()) == {}


def test_a_write_of_unknown_fate_may_come_late_or_never():
    run = LoadRun()
    run.write(EVEN, 0, fate=Fate.UNKNOWN, is_stored=False)
    run.write(EVEN, 0, fate=Fate.UNKNOWN, is_stored=True)
    late = run.logs[0].pop()
    run.write(EVEN, 0)
    run.logs[0].append(moved(late, 1))
    verdict = run.judged()
    assert found(verdict) == {}
    assert (verdict.unknown, verdict.unknown_found, verdict.acknowledged) == (2, 1, 1)


def test_a_write_that_was_never_settled_is_of_unknown_fate():
    run = LoadRun()
    run.write(EVEN, 0)
    run.write(ODD, 0)
    run.events = [e for e in run.events if not (isinstance(e, Settled) and e.writer == ODD)]
    verdict = run.judged()
    assert found(verdict) == {}
    assert (verdict.unknown, verdict.unknown_found) == (1, 1)


def test_what_was_refused_must_not_be_there():
    run = LoadRun()
    run.write(EVEN, 0)
    run.write(EVEN, 0, fate=Fate.REFUSED, is_stored=False)
    assert found(run.judged()) == {}
    run.write(EVEN, 0, fate=Fate.REFUSED, is_stored=True)
    verdict = run.judged()
    assert found(verdict) == {Anomaly.ABORTED_READ: 1}
    assert verdict.refused == 2


def test_an_acknowledgement_that_names_another_place_is_inconsistent():
    run = good_run()
    run.write(ODD, 0, fate=Fate.REFUSED, is_stored=False)
    a, b = run.logs[0][-1], run.logs[1][-1]
    logs = {0: [*run.logs[0][:-1], b._replace(offset=a.offset)],
            1: [*run.logs[1][:-1], a._replace(offset=b.offset)]}  # fmt: skip
    assert found(run.judged(logs))[Anomaly.INCONSISTENT_OFFSETS] == 2


def test_a_flipped_bit_is_a_corrupt_record_and_its_write_is_lost():
    run = good_run()
    record = run.logs[1][2]
    flipped = record._replace(value=record.value[:-3] + b"!" + record.value[-2:])
    verdict = run.judged({0: run.logs[0], 1: [*run.logs[1][:2], flipped, *run.logs[1][3:]]})
    assert found(verdict) == {Anomaly.CORRUPT_RECORD: 1, Anomaly.LOST_WRITE: 1}


def test_a_whole_record_that_is_not_the_one_sent_is_corrupt():
    run = LoadRun()
    run.write(EVEN, 0)
    other = RecordMaker(EVEN, Dialect.JSON, record_bytes=80, key_count=0, rng=Random(1))
    ((key, value),) = stored(Dialect.JSON, other.request(1))
    verdict = run.judged({0: [StoredRecord(0, key, value)], 1: []})
    assert found(verdict) == {Anomaly.CORRUPT_RECORD: 1}


@pytest.mark.parametrize("value", [None, b"hello"])
def test_what_nobody_wrote_is_foreign(value):
    run = good_run()
    verdict = run.judged({0: [*run.logs[0], StoredRecord(3, None, value)], 1: run.logs[1]})
    assert found(verdict) == {Anomaly.FOREIGN_RECORD: 1}


def test_records_of_another_run_are_foreign():
    run, other = good_run(), LoadRun()
    other.write(8, 0)
    other.write(EVEN, 0, count=10)
    last = other.logs[0][-1]
    strangers = [moved(other.logs[0][0], 3), moved(last, 4)]
    verdict = run.judged({0: [*run.logs[0], *strangers], 1: run.logs[1]})
    assert found(verdict) == {Anomaly.FOREIGN_RECORD: 2}


def test_an_offset_that_shows_two_records_is_inconsistent():
    run = good_run()
    again = moved(run.logs[0][2], 1)
    verdict = run.judged({0: [*run.logs[0], again], 1: run.logs[1]})
    assert found(verdict) == {Anomaly.INCONSISTENT_OFFSETS: 1}
    repeated = run.judged({0: [*run.logs[0], run.logs[0][1]], 1: run.logs[1]})
    assert found(repeated) == {Anomaly.OFFSET_GAP: 1}


# -- readers ---------------------------------------------------------------------------------------


def test_pages_that_follow_each_other_are_fine():
    run = good_run()
    log = run.logs[1]
    run.poll(1, 1, log[:3], is_seek=True)
    run.poll(1, 1, [], asked=3)
    run.poll(1, 1, log[3:9], asked=3)
    run.poll(1, 1, log[4:6], asked=4, is_seek=True)
    run.poll(2, 1, log[:2], is_seek=True)
    verdict = run.judged()
    assert found(verdict) == {}
    assert verdict.polled == 13


def test_a_page_that_goes_back_is_a_nonmonotonic_poll():
    run = good_run()
    run.poll(1, 1, run.logs[1][:5], is_seek=True)
    run.poll(1, 1, run.logs[1][4:6], asked=5)
    assert found(run.judged()) == {Anomaly.NONMONOTONIC_POLL: 1}


@pytest.mark.parametrize("pages", [[(0, 3), (4, 6)], [(2, 4)]])
def test_a_page_that_leaves_something_out_is_a_poll_skip(pages):
    run = good_run()
    for at, (first, end) in enumerate(pages):
        run.poll(1, 1, run.logs[1][first:end], asked=pages[at - 1][1] if at else 0, is_seek=not at)
    assert found(run.judged()) == {Anomaly.POLL_SKIP: 1}


def test_a_page_that_shows_another_record_is_inconsistent():
    run = good_run()
    run.poll(1, 1, [moved(run.logs[1][5], 0)], is_seek=True)
    assert found(run.judged()) == {Anomaly.INCONSISTENT_OFFSETS: 1}


def test_a_record_that_a_reader_saw_and_that_is_gone_is_read_then_lost():
    run = LoadRun()
    run.write(EVEN, 0)
    run.write(ODD, 0, fate=Fate.UNKNOWN, is_stored=True)
    run.poll(1, 0, run.logs[0], is_seek=True)
    verdict = run.judged({0: run.logs[0][:1], 1: []})
    assert found(verdict) == {Anomaly.READ_THEN_LOST: 1}


# -- what cannot be judged -------------------------------------------------------------------------


def test_a_run_in_which_nothing_was_acknowledged_proves_nothing():
    run = LoadRun()
    run.write(EVEN, 0, fate=Fate.REFUSED, is_stored=False)
    assert not run.judged().is_conclusive


def test_of_a_partition_that_was_not_read_nothing_is_said():
    run = good_run()
    run.poll(1, 1, run.logs[1], is_seek=True)
    verdict = run.judged({0: run.logs[0]})
    assert found(verdict) == {}
    assert verdict.unread == ("partition 1: not read to its end",)
    assert not verdict.is_conclusive


def test_what_was_read_of_an_unreadable_partition_is_judged():
    run = good_run()
    checker = Checker()
    for event in run.events:
        checker.note_write(event)
    for record in run.logs[1][:4]:
        checker.read(1, *record)
    checker.found_corrupt(1, "the checksum of the batch does not match")
    checker.end_partition(0)
    verdict = checker.verdict()
    assert verdict.found == {Anomaly.CORRUPT_RECORD: 1, Anomaly.LOST_WRITE: 3}
    assert verdict.unread == ("partition 1: the checksum of the batch does not match",)


@pytest.mark.parametrize("acks", ["0", "1"])
def test_without_acks_all_a_loss_is_counted_and_no_fault(acks):
    run = good_run(acks=acks)
    run.poll(1, 1, run.logs[1][:-2], is_seek=True)
    verdict = run.judged({0: run.logs[0], 1: run.logs[1][:-2]})
    assert found(verdict) == {Anomaly.LOST_UNSAFE: 2}
    assert verdict.faults == 0


def test_what_a_reader_saw_stays_whatever_its_writer_asked_for():
    run = good_run(acks="1")
    run.poll(1, 1, run.logs[1], is_seek=True)
    verdict = run.judged({0: run.logs[0], 1: run.logs[1][:-2]})
    assert found(verdict) == {Anomaly.LOST_UNSAFE: 2, Anomaly.READ_THEN_LOST: 2}
    assert verdict.faults == 2


@pytest.mark.parametrize(
    ("acks", "anomaly"), [("0", Anomaly.REORDERED_UNSAFE), ("1", Anomaly.NONMONOTONIC_SEND)]
)
def test_without_any_acks_there_is_no_order(acks, anomaly):
    run = LoadRun(acks=acks)
    for _ in range(3):
        run.write(EVEN, 0)
    first, second, third = run.logs[0]
    verdict = run.judged({0: [first, moved(third, 1), moved(second, 2)], 1: []})
    assert verdict.found[anomaly] == 1
    assert (verdict.faults == 0) is (acks == "0")


def test_without_acks_all_a_duplicate_is_still_a_fault():
    run = good_run(acks="1")
    verdict = run.judged({0: [*run.logs[0], moved(run.logs[0][1], 3)], 1: run.logs[1]})
    assert verdict.faults == 1


def test_a_ledger_that_contradicts_itself_is_an_error():
    checker = Checker()
    sent = Sent(at_s=0.0, writer=1, first=1, endpoint="", fingerprints=b"12345678")
    with pytest.raises(LedgerError, match="sent record 1 after 0"):
        checker.note_write(sent)
    run = good_run()
    with pytest.raises(LedgerError, match="settled record 0 before it was sent"):
        checker.note_write(next(e for e in run.events if isinstance(e, Settled)))


def test_a_run_has_one_topic():
    checker = Checker()
    opened = LoadRun().events[0]
    checker.note_write(opened)
    assert checker.topic == "t"
    with pytest.raises(LedgerError, match="two topics: t and u"):
        checker.note_write(replace(opened, topic="u"))
