"""A history is read as it was written."""

import pytest

from tests.chaos.history import (
    Ended,
    Fault,
    FinalRead,
    Goals,
    GroupPosition,
    Heal,
    History,
    Meta,
    Outcome,
    Phase,
    Read,
    ReadFailed,
    Started,
    TransactionTried,
    View,
    Write,
    decode_event,
    encode_event,
    load,
)

EVENTS = [
    Meta(at_s=0, scenario="storm", seed=3, has_quorum=False, is_idempotent=True,
         goals=Goals(recovery_s=2.0, is_strict=True)),
    Started(at_s=1.5),
    Write(at_s=2.0, sent_s=1.9, record="k:0", partition=1, node=2, acks="all",
          outcome=Outcome.UNKNOWN, offset=None, error="HTTP 504 50401"),
    Read(at_s=3.0, reader="r0", partition=1, node=3, from_offset=0,
         records=((0, "k:0"), (1, "!damaged 'x'")), phase=Phase.FINAL),
    ReadFailed(at_s=3.1, reader="r1", partition=0, node=1, error="TimeoutError"),
    Fault(at_s=4.0, began_s=3.9, operation="torn", target="dead", partition=2, nodes=(1, 3),
          detail="cut 7 bytes"),
    Heal(at_s=5.0, crashed={"2": -9, "3": None}),
    FinalRead(at_s=6.0, partition=0, node=1, is_complete=False, end_offset=12),
    Ended(at_s=7.0),
    TransactionTried(at_s=8.0, sent_s=7.5, name="t0#1", node=1, outcome=Outcome.FAILED,
                     writes=((0, "t0:0", 3), (2, "t0:1", None)), consumed=((1, 0, "k:0"),),
                     moved=((1, 0, 1),), again=Outcome.OK, error="HTTP 409 40926"),
    GroupPosition(at_s=9.0, place=1, node=3, next_offset=None),
    Read(at_s=9.5, reader="u0", partition=3, node=1, from_offset=2, records=(),
         phase=Phase.RUN, view=View.UNCOMMITTED),
]  # fmt: skip


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
def test_an_event_comes_back_from_its_line(event):
    assert decode_event(encode_event(event)) == event


def test_a_history_has_a_line_an_event_and_one_clock(tmp_path):
    path = tmp_path / "history.jsonl"
    times = iter([100.0, 101.23456])
    with History(path, clock=lambda: next(times)) as history:
        assert history.now_s() == 1.2346
        for event in EVENTS:
            history.add(event)
        assert history.events == EVENTS
    with path.open() as lines:
        assert load(lines) == EVENTS


def test_a_line_cut_short_is_left_out():
    whole = encode_event(EVENTS[1])
    assert load([f"{whole}\n", whole[:10]]) == [EVENTS[1]]
