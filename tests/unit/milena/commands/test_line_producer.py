"""Lines to records through a producer on paper: what is sent, what is counted, when it stops."""

import asyncio
import threading

import pytest

from milena.commands.producing.line_producer import LineOptions, LineProducer
from milena.commands.producing.line_source import BadSourceError
from milena.commands.producing.lines import LINE_BYTES_MAX, LineRule
from milena.commands.producing.produce import report_trouble
from milena.commands.producing.tally import ProduceTally
from milena.commands.target import EXIT_REFUSED
from milena.errors import BadRecordError, NotNowError, UnreachableError
from milena.producing.deliveries import DeliveryRun
from tests.support.time.fake_clock import FakeClock


class PaperDeliveries:
    """Of one partition each, as told."""

    def __init__(self, runs):
        self.runs = runs


class PaperProducer:
    """Acknowledges on flush, or as told: ``refuse`` and ``fail`` are values. Odd records go to partition 1."""

    def __init__(self, *, refuse=(), fail=(), error=None):
        self.sent = []
        self.calls = 0
        self.flushed = 0
        self._refuse, self._fail, self._error = refuse, fail, error
        self._waiting = []

    async def send_many(
        self,
        topic,
        values,
        *,
        keys=None,
        partition=None,
        headers=(),
        timestamp_ms=None,
        on_delivery=None,
    ):
        self.calls += 1
        if set(values) & {*self._refuse}:
            raise self._error or BadRecordError("not this one")
        runs = []
        for place, value in enumerate(values):
            self.sent.append((None if keys is None else keys[place], value))
            number = len(self.sent)
            late = NotNowError("late", status=503, error_code=50302)
            error = late if value in self._fail else None
            at = None if error else number
            runs.append(DeliveryRun(partition or number % 2, [place], at, error))
        self._waiting.append((on_delivery, PaperDeliveries(runs)))

    async def flush(self):
        self.flushed += 1
        for on_delivery, deliveries in self._waiting:
            on_delivery(deliveries)
        self._waiting.clear()


class Pieces:
    """A source of pieces; an exception among them is raised in its turn."""

    def __init__(self, *pieces):
        self._pieces = [*pieces, b""]
        self._position = 0

    def read(self):
        piece = self._pieces.pop(0)
        if isinstance(piece, Exception):
            raise piece
        self._position += len(piece)
        return piece, self._position


async def run(producer, *pieces, on_progress=lambda _: None, clock=None, **options):
    rule = LineRule(**options.pop("rule", {}))
    lines = LineProducer(
        LineOptions(topic="t", rule=rule, **options), producer, clock or FakeClock()
    )
    return await lines.run(Pieces(*pieces), on_progress)


async def test_every_line_is_sent_and_counted():
    producer, positions = PaperProducer(), []
    tally = await run(producer, b"a\nb", b"c\n\nlast", on_progress=positions.append)
    assert producer.sent == [(None, b"a"), (None, b"bc"), (None, b""), (None, b"last")]
    assert (tally.lines, tally.acknowledged, tally.failed) == (4, 4, 0)
    assert tally.sent_bytes == 7
    assert {p: t.records for p, t in tally.partitions.items()} == {0: 2, 1: 2}
    assert (tally.partitions[1].first_offset, tally.partitions[1].last_offset) == (1, 3)
    assert positions == [3, 10, 10]


async def test_a_bad_line_stops_there_and_what_came_before_is_written():
    producer = PaperProducer()
    tally = await run(producer, b"k=1\nbad\nk=2\n", rule={"key_separator": b"="})
    assert producer.sent == [(b"k", b"1")]
    assert tally.bad_line.line == 2
    assert (tally.acknowledged, tally.skipped) == (1, 0)


async def test_bad_lines_may_be_skipped_and_the_first_is_remembered():
    producer = PaperProducer()
    tally = await run(
        producer, b"bad\nk=1\nbad\n", rule={"key_separator": b"="}, is_skipping_bad_lines=True
    )
    assert producer.sent == [(b"k", b"1")]
    assert (tally.skipped, tally.bad_line.line) == (2, 1)
    assert "2 bad lines skipped" in tally.summary_text(1)


async def test_lines_of_one_piece_are_sent_together():
    producer = PaperProducer()
    await run(producer, b"1\n2\n3\n4", b"\n5\n6\n")
    assert producer.calls == 2
    assert [value for _, value in producer.sent] == [b"1", b"2", b"3", b"4", b"5", b"6"]


@pytest.mark.parametrize("rate", [None, 1.0])
async def test_records_that_were_written_before_are_left_out_and_not_waited_for(rate):
    producer, clock = PaperProducer(), FakeClock()
    tally = await run(
        producer,
        b"k=1\nbad\nk=2\nk=3",
        b"\nbad\nk=4\nk=5\n",
        rule={"key_separator": b"="},
        is_skipping_bad_lines=True,
        written_before=4,
        rate=rate,
        clock=clock,
    )
    assert producer.sent == [(b"k", b"5")]
    assert (tally.left_out, tally.lines, tally.skipped, tally.sent_bytes) == (4, 7, 2, 2)
    assert "4 written before" in tally.summary_text(1)
    assert tally.summary_json(1)["written_before"] == 4
    assert clock.now_ms() == FakeClock().now_ms()


async def test_a_source_that_ends_before_what_was_written_leaves_all_of_it_out():
    producer = PaperProducer()
    tally = await run(producer, b"1\n2\n", written_before=3)
    assert (producer.sent, tally.left_out, tally.acknowledged) == ([], 2, 0)


@pytest.mark.parametrize("rule", [{}, {"null_marker": b"-"}, {"key_separator": b"="}])
async def test_a_line_above_the_bound_is_a_bad_line(rule):
    producer = PaperProducer()
    text = b"a=1\n" + b"x" * (LINE_BYTES_MAX + 1) + b"\nb=2\n"
    tally = await run(producer, text, rule=rule, is_skipping_bad_lines=True)
    assert len(producer.sent) == 2
    assert (tally.lines, tally.skipped, tally.bad_line.line) == (3, 1, 2)
    assert "longer than" in tally.bad_line.reason


async def test_failed_lines_are_counted_from_the_first_of_the_input():
    producer = PaperProducer(fail=(b"k5", b"k6"))
    text = b"a=1\nbad\na=2\n", b"bad\na=k5\na=k6\na=3\n"
    tally = await run(producer, *text, rule={"key_separator": b"="}, is_skipping_bad_lines=True)
    assert tally.first_failure[0] == 5
    assert (tally.lines, tally.skipped, tally.failed, tally.acknowledged) == (7, 2, 2, 3)


async def test_a_refusal_that_is_no_records_fault_ends_the_run():
    error = UnreachableError("no node")
    producer = PaperProducer(refuse=(b"2",), error=error)
    tally = await run(producer, b"1\n", b"0\n2\n3\n", b"4\n")
    assert producer.sent == [(None, b"1")]
    assert tally.first_failure == (2, error)
    assert (tally.lines, tally.acknowledged, tally.failed) == (2, 1, 1)


@pytest.mark.parametrize("how", ["refuse", "fail"])
async def test_the_first_record_that_was_not_acknowledged_is_named(how):
    producer = PaperProducer(**{how: (b"2",)})
    tally = await run(producer, b"1\n2\n3\n")
    line, error = tally.first_failure
    assert line == 2
    assert error.message in ("not this one", "late")
    assert tally.failed == 1
    assert tally.acknowledged == (1 if how == "refuse" else 2)
    assert tally.summary_json(1000)["first_failed_line"] == 2


@pytest.mark.parametrize(
    ("acknowledged", "said"),
    [
        (0, "no such name; 0 records written: correct the cause, and repeat the run"),
        (
            2,
            "no such name; 2 records written, all from lines before it: to go on, give the input from line 3 on",
        ),
    ],
)
def test_a_refused_line_says_how_to_go_on(acknowledged, said, capsys):
    line = acknowledged + 1
    tally = ProduceTally(
        lines=line,
        acknowledged=acknowledged,
        failed=1,
        first_failure=(line, BadRecordError("no such name.")),
        unsent_line=line,
    )
    assert report_trouble(tally, is_named=False) == EXIT_REFUSED
    assert f"milena: line {line} was not acknowledged: {said}" in capsys.readouterr().err


async def test_a_source_that_breaks_loses_nothing_of_what_it_gave():
    producer = PaperProducer()
    with pytest.raises(BadSourceError):
        await run(producer, b"a\nb\nhalf", BadSourceError("torn"))
    assert producer.sent == [(None, b"a"), (None, b"b")]
    assert producer.flushed == 1


async def test_stopping_ends_a_read_that_waits():
    class Silent:
        def __init__(self):
            self.asked = asyncio.Event()
            self.loop = asyncio.get_running_loop()
            self.pieces = [b"a\n"]
            self.is_released = threading.Event()

        def read(self):
            if self.pieces:
                return self.pieces.pop(), 0
            self.loop.call_soon_threadsafe(self.asked.set)
            self.is_released.wait()
            return b"", 0

    producer, source = PaperProducer(), Silent()
    lines = LineProducer(LineOptions(topic="t", rule=LineRule()), producer, FakeClock())
    running = asyncio.create_task(lines.run(source, lambda _: None))
    await source.asked.wait()
    lines.stop()
    tally = await running
    source.is_released.set()
    assert tally.is_interrupted
    assert (tally.lines, tally.acknowledged) == (1, 1)


def test_without_offsets_partitions_are_counted_all_the_same():
    tally = ProduceTally()
    tally.on_run(DeliveryRun(0, [0], None, None), [1])
    assert tally.summary_json(0)["partitions"] == [
        {"partition": 0, "records": 1, "first_offset": None, "last_offset": None}
    ]
    assert tally.summary_text(0).startswith("1 record, 0 bytes")


async def test_at_a_rate_lines_are_sent_when_they_are_due():
    producer, clock = PaperProducer(), FakeClock()
    running = asyncio.create_task(run(producer, b"a\nb\nc\n", clock=clock, rate=2))
    while not clock.sleepers():
        await asyncio.sleep(0)
    assert [value for _, value in producer.sent] == [b"a"]
    await clock.advance(499)
    assert len(producer.sent) == 1
    await clock.advance(1)
    assert [value for _, value in producer.sent] == [b"a", b"b"]
    await clock.advance(500)
    assert (await running).acknowledged == 3


async def test_a_stop_does_not_wait_for_the_next_line_to_be_due():
    producer, clock = PaperProducer(), FakeClock()
    options = LineOptions(topic="t", rule=LineRule(), rate=0.001)
    lines = LineProducer(options, producer, clock)
    running = asyncio.create_task(lines.run(Pieces(b"a\nb\n"), lambda _: None))
    while not clock.sleepers():
        await asyncio.sleep(0)
    lines.stop()
    assert (await running).acknowledged == 1
