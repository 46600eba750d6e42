"""Connections under a bound: who rested longest goes first."""

from http_api.serving.connections import Connections


class Connection:
    def __init__(self, connections):
        self.is_open = True
        connections.add(self)

    def force_close(self):
        self.is_open = False


def test_the_one_that_rested_longest_makes_room():
    connections = Connections(2)
    first, second = Connection(connections), Connection(connections)
    third = Connection(connections)
    assert [first.is_open, second.is_open, third.is_open] == [False, True, True]
    assert len(connections) == 2
    assert connections.closed_count == 1


def test_one_that_is_worked_for_stays():
    connections = Connections(2)
    first, second = Connection(connections), Connection(connections)
    connections.work(first)
    third = Connection(connections)
    assert [first.is_open, second.is_open, third.is_open] == [True, False, True]


def test_work_makes_young():
    connections = Connections(2)
    first, second = Connection(connections), Connection(connections)
    connections.work(first)
    connections.rest(first)
    Connection(connections)
    assert [first.is_open, second.is_open] == [True, False]


def test_a_new_one_is_closed_when_all_others_are_worked_for():
    connections = Connections(1)
    first = Connection(connections)
    connections.work(first)
    second = Connection(connections)
    assert [first.is_open, second.is_open] == [True, False]


def test_what_is_gone_is_forgotten():
    connections = Connections(1)
    first = Connection(connections)
    connections.work(first)
    connections.discard(first)
    connections.rest(first)
    second = Connection(connections)
    connections.discard(second)
    connections.work(second)
    assert len(connections) == 0
    assert connections.closed_count == 0


def test_distrust_ends_with_good_credentials_and_with_the_connection():
    connections = Connections(2)
    first, second = Connection(connections), Connection(connections)
    connections.distrust(first)
    connections.distrust(second)
    connections.trust(first)
    assert not connections.is_distrusted(first)
    connections.discard(second)
    assert not connections.is_distrusted(second)
    connections.distrust(second)
    assert not connections.is_distrusted(second)


def test_one_that_makes_room_is_forgotten_with_its_distrust():
    connections = Connections(1)
    first = Connection(connections)
    connections.distrust(first)
    Connection(connections)
    assert not connections.is_distrusted(first)
