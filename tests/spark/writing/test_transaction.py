"""A batch's transaction: what several tasks come to, what refusals mean, and how long a call is repeated."""

from dataclasses import replace

import pytest

from milena.cluster.transport import WrittenPart
from milena.errors import (
    AnswerError,
    NotNowError,
    ProducerFencedError,
    UnknownResultError,
    UnreachableError,
)
from milena.records import ProducerIdentity, TopicPartition
from spark_ext.cluster.patience import PATIENCE_MS, patiently
from spark_ext.errors import BatchAbortedError
from spark_ext.writing.transaction import (
    BatchNumber,
    BatchTransaction,
    TaskWritten,
    commit,
    explained,
    merged,
    transactions_of,
)
from tests.support.time.virtual_time import LoopClock, virtual

OPEN = BatchTransaction(
    urls=("http://a:1",),
    transactional_id="orders",
    identity=ProducerIdentity(7, 2),
    began_ms=17,
)
NUMBER = BatchNumber(group="spark-q", batch_id=3)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def part(end_offset, records):
    return WrittenPart(end_offset=end_offset, records=records)


def written(*parts, transaction=OPEN, number=NUMBER):
    return TaskWritten(transaction=transaction, number=number, parts=parts)


SKIPPED = TaskWritten(transaction=OPEN, number=NUMBER, is_skipped=True)


def test_a_write_names_its_transaction_and_the_longest_time():
    assert OPEN.header == "7:2:900000"


def test_what_tasks_wrote_to_a_partition_is_counted_together():
    tasks = [[(T0, part(5, 2)), (T1, part(9, 1))], [], [(T0, part(4, 3))]]
    assert merged(tasks) == {T0: part(5, 5), T1: part(9, 1)}


@pytest.mark.parametrize("messages", [[], [None], [SKIPPED, SKIPPED], [written(), written()]])
def test_a_batch_without_records_or_committed_before_asks_nobody(messages):
    commit(messages, "t")


@pytest.mark.parametrize(
    "other",
    [
        SKIPPED,
        written(number=BatchNumber(group="spark-q", batch_id=4)),
        written(transaction=replace(OPEN, identity=ProducerIdentity(7, 4))),
    ],
)
def test_tasks_that_contradict_each_other_are_no_batch(other):
    with pytest.raises(BatchAbortedError, match="another query commits batches of the same"):
        commit([written((T0, part(5, 2))), other], "t")


def test_a_transaction_is_known_from_any_task_that_has_ended():
    assert transactions_of([None, SKIPPED, None]) == {OPEN}
    assert transactions_of([None, None]) == set()


def refusal(kind, code=None):
    return kind("why", status=409, error_code=code)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (40924, "its transaction is over, since another write has started under the id"),
        (40926, "its transaction is over"),
        (40412, "its transaction is over"),
        (40928, "a task that was run again has other rows than before"),
        (42211, "a task that was run again has other rows than before"),
        (40912, "or its topic has other partitions"),
    ],
)
def test_a_refusal_that_ends_the_batch_says_so(code, words):
    with pytest.raises(BatchAbortedError) as caught, explained(OPEN.transactional_id):
        raise refusal(AnswerError, code)
    assert caught.value.message.startswith("nothing of this batch counts: ")
    assert words in caught.value.message
    assert caught.value.message.endswith("transactionalId orders: why")


def test_other_refusals_are_left_as_they_are():
    with pytest.raises(AnswerError, match="why"), explained(OPEN.transactional_id):
        raise refusal(AnswerError, 42208)


class Answers:
    """Fails with these one after the other, then answers; ``None`` at the end: never."""

    def __init__(self, *failures):
        self.failures = list(failures)
        self.calls = 0

    async def __call__(self):
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0) if len(self.failures) > 1 else self.failures[0]
        return "answer"


@virtual
async def test_what_may_pass_is_asked_again_until_the_patience_ends():
    clock = LoopClock()
    passing = [
        UnreachableError("down"),
        refusal(NotNowError),
        refusal(UnknownResultError),
    ]
    asked = Answers(*passing, UnreachableError("for ever"))
    began_ms = clock.now_ms()
    with pytest.raises(UnreachableError, match="for ever"):
        await patiently(asked, clock)
    assert clock.now_ms() - began_ms == PATIENCE_MS
    assert asked.calls > len(passing)


@virtual
async def test_an_answer_is_an_answer_and_a_refusal_one():
    assert await patiently(Answers(), LoopClock()) == "answer"
    asked = Answers(refusal(ProducerFencedError))
    with pytest.raises(ProducerFencedError):
        await patiently(asked, LoopClock())
    assert asked.calls == 1
