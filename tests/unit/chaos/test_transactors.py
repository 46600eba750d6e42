"""What a program makes of the answers about its transactions: committed, aborted, or unknown."""

import asyncio

import pytest

from tests.chaos import transactors as transactors_module
from tests.chaos.adapter import META_MEDIA
from tests.chaos.history import History, Outcome
from tests.chaos.reading import PageReader
from tests.chaos.setup import milena_setup
from tests.chaos.transaction_calls import Session, TransactionCalls
from tests.chaos.transactors import Draft, Transactors
from tests.unit.chaos.test_nemesis import PaperNode

OK, FAILED, UNKNOWN = Outcome.OK, Outcome.FAILED, Outcome.UNKNOWN
YES, ABORTED, COMMITTED, CHANGED, STALE = (
    (200, {}),
    *((409, {"error_code": code}) for code in (40926, 40927, 40928, 40924)),
)
NOT_NOW, NOBODY_KNOWS, LOST = (503, {"error_code": 50301}), (504, {"error_code": 50401}), None
SESSION = Session(producer_id=7, producer_epoch=3, header="7:3:1000")


class ScriptedAdapter:
    """Answers in turn; None: the answer is lost. The last one stays."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.urls = []

    async def call(self, _method, url, _timeout_s, *, headers, **_):
        assert headers["Accept"] == META_MEDIA
        self.urls.append(url)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise TimeoutError
        return answer


@pytest.fixture
def history(tmp_path):
    with History(tmp_path / "history") as found:
        yield found


def program(history, monkeypatch, *answers):
    monkeypatch.setattr(transactors_module, "AGAIN_SHARE", 0.0)
    monkeypatch.setattr(transactors_module, "HEDGED_SHARE", 0.0)
    monkeypatch.setattr(transactors_module, "RETRY_AFTER_S", 0.0)
    monkeypatch.setattr(transactors_module, "PATIENCE_S", -1.0)
    adapter, setup = ScriptedAdapter(*answers), milena_setup("none", 1.0, 1)
    nodes = [PaperNode(n, []) for n in (1, 2, 3)]
    return adapter, Transactors(
        setup, nodes, adapter, history, PageReader(setup, adapter, history)
    ), Draft("s0#0", nodes[0], 0.0)  # fmt: skip


@pytest.mark.parametrize(
    ("answers", "outcome", "asked"),
    [
        ([YES], OK, 1),
        ([ABORTED], FAILED, 1),
        ([NOT_NOW, YES], OK, 2),
        ([LOST, YES], OK, 2),
        ([LOST, ABORTED], FAILED, 2),
        ([NOBODY_KNOWS, COMMITTED], OK, 2),
        ([CHANGED], FAILED, 5),
        ([STALE], FAILED, 5),
        ([LOST, STALE], UNKNOWN, 5),
        ([NOT_NOW, LOST, NOT_NOW], UNKNOWN, 5),
        ([NOT_NOW, NOT_NOW, NOT_NOW, NOT_NOW, LOST], FAILED, 5),
        # The abort, at last, settles what the commit did.
        ([LOST, LOST, LOST, LOST, YES], FAILED, 5),
        ([LOST, LOST, LOST, LOST, COMMITTED], OK, 5),
    ],
)
def test_a_commit_is_asked_for_until_it_is_certain(history, monkeypatch, answers, outcome, asked):
    adapter, transactors, draft = program(history, monkeypatch, *answers)
    asyncio.run(transactors._commit(draft, SESSION))
    assert (draft.outcome, len(adapter.urls)) == (outcome, asked)
    ends = [url.rpartition(":")[2] for url in adapter.urls]
    assert ends == ["commit", "commit", "commit", "commit", "abort"][:asked]


@pytest.mark.parametrize(
    ("answers", "key", "outcome", "asked"),
    [
        ([NOT_NOW], None, FAILED, 1),
        ([LOST], None, UNKNOWN, 1),
        ([NOT_NOW], "k", FAILED, 4),
        ([LOST, NOT_NOW], "k", UNKNOWN, 4),
        ([NOBODY_KNOWS], "k", UNKNOWN, 4),
    ],
)
def test_a_request_is_repeated_under_its_key_alone(
    history, monkeypatch, answers, key, outcome, asked
):
    adapter, transactors, draft = program(history, monkeypatch, *answers)
    asyncio.run(transactors._request(draft, "t0", [0, 2], key))
    assert (draft.outcome, len(adapter.urls)) == (outcome, asked)
    assert {place for place, _, _ in draft.writes} == {0, 2}


def test_the_same_is_asked_for_a_while_where_an_answer_was_lost(history, monkeypatch):
    lost = [LOST] * 9
    for ask, answers, end in (
        (lambda t, draft: t._commit(draft, SESSION), [*lost, YES], OK),
        (lambda t, draft: t._request(draft, "t0", [0, 2], "k"), [*lost, NOT_NOW], UNKNOWN),
        (lambda t, draft: t._commit(draft, SESSION), [NOT_NOW], FAILED),
    ):
        adapter, transactors, draft = program(history, monkeypatch, *answers)
        times = iter([1.0] * 9 + [9.0] * 99)
        monkeypatch.setattr(history, "now_s", lambda times=times: next(times))
        monkeypatch.setattr(transactors_module, "PATIENCE_S", 5.0)
        asyncio.run(ask(transactors, draft))
        assert draft.outcome is end
        assert len(adapter.urls) == (5 if end is FAILED else 10)


def written(*offsets):
    return 200, {"writes": [{"offsets": [{"offset": offset}]} for offset in offsets]}


@pytest.mark.parametrize(
    ("answers", "outcome", "again"),
    [
        ([written(1, 2), written(1, 2)], OK, None),
        ([written(1, 2), written(1, 3)], OK, FAILED),
        ([written(1, 2), NOT_NOW], OK, None),
        ([NOT_NOW, written(1, 2)], OK, None),
        ([LOST, written(1, 2)], OK, None),
        ([NOT_NOW, NOT_NOW], FAILED, None),
    ],
)
def test_two_nodes_that_are_asked_at_once_give_one_answer(
    history, monkeypatch, answers, outcome, again
):
    _, transactors, draft = program(history, monkeypatch, *answers)
    monkeypatch.setattr(transactors_module, "HEDGED_SHARE", 1.0)
    monkeypatch.setattr(transactors._rng, "randint", lambda *_: 1)
    asyncio.run(transactors._request(draft, "t0", [0, 2], "k"))
    assert (draft.outcome, draft.again) == (outcome, again)


def test_where_its_records_stand_is_told_in_their_order():
    answer = {"writes": [{"offsets": [{"offset": 4}, {"offset": 5}]}, {"offsets": [{"offset": 0}]}]}
    calls = TransactionCalls(ScriptedAdapter((200, answer)), timeout_s=1.0)
    writes = {("left", 0): [("a", 1), ("a", 2)], ("right", 1): [("a", 3)]}
    told = asyncio.run(calls.transact("", writes, idempotency_key=None))
    assert [(r.outcome, r.offset) for r in told] == [(OK, 4), (OK, 5), (OK, 0)]
