"""The bound on bytes of all clients' requests: who stops, and that nothing waits for ever."""

from http_api.serving.in_flight import RequestBytes
from node.kafka.budget import FrameBudget


class Client:
    """A connection as the budget sees it."""

    def __init__(self) -> None:
        self.is_busy = False
        self.is_held = False

    def hold(self, is_held: bool) -> None:
        assert self.is_held is not is_held
        self.is_held = is_held


def test_connections_go_on_when_bytes_are_given_back() -> None:
    budget, one, other = FrameBudget(RequestBytes(10)), Client(), Client()
    one.is_busy = True
    budget.take(one, 10)
    assert not one.is_held
    budget.take(other, 1)
    assert other.is_held
    budget.take(one, 1)
    assert one.is_held
    budget.give_back(one, 1)
    assert one.is_held
    assert other.is_held
    budget.give_back(one, 9)
    assert not one.is_held
    assert not other.is_held
    assert budget.held_bytes == 2


def test_if_all_wait_for_bytes_the_first_of_them_gets_them() -> None:
    budget, first, second = FrameBudget(RequestBytes(10)), Client(), Client()
    budget.take(first, 6)
    budget.take(second, 6)
    assert not second.is_held
    budget.take(first, 6)
    assert first.is_held
    budget.take(second, 6)
    assert not second.is_held
    second.is_busy = True
    budget.take(second, 1)
    assert second.is_held
    assert first.is_held
    budget.give_back(second, 19)
    assert not first.is_held
    assert not second.is_held


def test_a_connection_that_closes_gives_everything_back() -> None:
    budget, one, other = FrameBudget(RequestBytes(10)), Client(), Client()
    one.is_busy = True
    budget.take(one, 20)
    budget.take(other, 5)
    assert other.is_held
    budget.leave(one)
    assert not other.is_held
    assert budget.held_bytes == 5
    budget.give_back(one, 20)
    assert budget.held_bytes == 5


def test_a_held_connection_that_leaves_for_another_bound_is_read_again() -> None:
    budget, one, other = FrameBudget(RequestBytes(10)), Client(), Client()
    one.is_busy = other.is_busy = True
    budget.take(one, 10)
    budget.take(other, 5)
    assert other.is_held
    assert budget.leave(other) == 5
    assert not other.is_held
    assert not one.is_held


def test_the_connection_that_is_read_is_one_that_has_begun_a_frame() -> None:
    budget, answered, waiting = FrameBudget(RequestBytes(10)), Client(), Client()
    answered.is_busy = True
    budget.take(waiting, 6)
    budget.take(answered, 6)
    budget.take(waiting, 6)
    assert answered.is_held
    assert waiting.is_held
    budget.give_back(answered, 6)
    assert answered.is_held
    assert not waiting.is_held


def test_a_connection_that_has_its_last_response_may_be_the_one_that_is_read() -> None:
    budget, first, second = FrameBudget(RequestBytes(10)), Client(), Client()
    first.is_busy = True
    budget.take(first, 8)
    budget.take(second, 6)
    budget.give_back(first, 2)
    # The response is there before the connection rests.
    assert first.is_busy
    assert second.is_held
    first.is_busy = False
    budget.rest()
    assert not second.is_held
