"""Where each leader epoch begins and ends."""

import pytest

from milena.model.errors import CorruptLogError
from storage.state.leader_epochs import LeaderEpochs


def epochs(*entries):
    return LeaderEpochs(entries)


def test_a_new_epoch_begins_where_its_first_batch_is():
    table = LeaderEpochs()
    assert table.last_epoch == -1
    table.assign(3, 10)
    table.assign(3, 12)
    table.assign(5, 20)
    assert table.entries == ((3, 10), (5, 20))
    assert table.last_epoch == 5


def test_an_epoch_must_not_fall():
    table = epochs((3, 10), (5, 20))
    with pytest.raises(CorruptLogError, match="epoch 4 at offset 30 does not follow epoch 5"):
        table.assign(4, 30)
    with pytest.raises(CorruptLogError, match="negative"):
        LeaderEpochs().assign(-1, 0)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [(2, (-1, -1)), (3, (3, 20)), (4, (3, 20)), (5, (5, 40)), (7, (7, 99)), (50, (7, 99))],
)
def test_the_end_of_an_epoch_is_where_the_next_one_begins(asked, answer):
    """KIP-101: the largest epoch not above the asked one, and its end; the last one ends at the log end."""
    assert epochs((3, 10), (5, 20), (7, 40)).end_of(asked, 99) == answer


def test_the_epoch_of_an_offset():
    table = epochs((3, 10), (5, 20))
    assert [table.epoch_at(offset) for offset in (9, 10, 19, 20, 1000)] == [-1, 3, 3, 5, 5]


def test_truncation_forgets_epochs_that_begin_above():
    table = epochs((3, 10), (5, 20), (7, 40))
    assert not table.truncate_to(41)
    assert table.truncate_to(40)
    assert table.entries == ((3, 10), (5, 20))
    assert table.truncate_to(0)
    assert table.entries == ()


@pytest.mark.parametrize(
    ("log_start", "left"),
    [
        (0, (3, 5, 7)),
        (10, (3, 5, 7)),
        (20, (3, 5, 7)),
        (21, (5, 7)),
        (40, (5, 7)),
        (41, (7,)),
        (99, (7,)),
    ],
)
def test_the_epoch_of_the_last_record_below_the_log_start_stays(log_start, left):
    table = epochs((3, 10), (5, 20), (7, 40))
    table.advance_start(log_start)
    starts = {3: 10, 5: 20, 7: 40}
    assert table.entries == tuple((epoch, starts[epoch]) for epoch in left)
    table.advance_start(log_start)
    assert len(table.entries) == len(left)


def test_an_empty_log_remembers_its_last_epoch_and_where_it_ended():
    table = epochs((3, 10), (5, 20))
    table.advance_start(60)
    assert table.entries == ((5, 20),)
    assert table.end_of(5, 60) == (5, 60)
    table.assign(5, 60)
    table.assign(6, 60)
    assert table.entries == ((5, 20), (6, 60))
    assert table.end_of(5, 61) == (5, 60)
    assert table.end_of(4, 61) == (-1, -1)


def test_the_file_holds_the_table():
    table = epochs((3, 10), (5, 20))
    assert LeaderEpochs.decode(table.encode()).entries == table.entries
    assert LeaderEpochs.decode(LeaderEpochs().encode()).entries == ()


def test_a_damaged_file_is_refused():
    content = epochs((3, 10), (5, 20)).encode()
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1
        with pytest.raises(CorruptLogError):
            LeaderEpochs.decode(bytes(damaged))
    with pytest.raises(CorruptLogError):
        LeaderEpochs.decode(content[:5])


def test_clear_forgets_all():
    table = epochs((3, 10))
    table.clear()
    assert table.last_epoch == -1
