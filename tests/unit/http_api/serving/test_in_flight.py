"""What is in flight: its bounds, and who gets what of it when it is more than half full."""

import random
from contextlib import ExitStack

import pytest

from http_api.ports.node import ApiLimits
from http_api.serving.in_flight import LATELY_S, InFlight, InFlightPlace, RequestBytes
from http_api.serving.places import Streams
from milena.model.errors import TooManyRequestsError


def of(places: int, byte_count: int = 1 << 20) -> InFlight:
    return InFlight(ApiLimits(requests_in_flight_max=places, bytes_in_flight_max=byte_count))


def takes(in_flight: InFlight, caller: str, now_s: float = 0.0) -> bool:
    try:
        in_flight.admit(caller, now_s)
    except TooManyRequestsError:
        return False
    return True


def test_who_is_alone_may_have_all_but_what_is_for_newcomers():
    in_flight = of(16)
    assert [takes(in_flight, "ann") for _ in range(15)] == [True] * 14 + [False]
    assert takes(in_flight, "bob")
    assert takes(in_flight, "cid")
    assert not takes(in_flight, "dan")
    small = of(7)
    assert [takes(small, "ann") for _ in range(8)] == [True] * 7 + [False]
    in_flight = small
    in_flight.leave("ann")
    assert takes(in_flight, "ann")


def test_below_half_nobody_is_refused_anything():
    in_flight = of(100)
    for caller in range(20):
        assert takes(in_flight, str(caller))
        in_flight.leave(str(caller))
    assert all(takes(in_flight, "greedy") for _ in range(50))
    assert not takes(in_flight, "greedy")


def test_a_greedy_one_gives_way_to_one_that_there_was_no_room_for():
    in_flight = of(7)
    assert all(takes(in_flight, "greedy") for _ in range(7))
    assert not takes(in_flight, "modest")
    # From now on it has a share: whoever is the faster, the place that is given back is its.
    for _ in range(3):
        in_flight.leave("greedy")
        assert not takes(in_flight, "greedy")
        assert takes(in_flight, "modest")
    in_flight.leave("greedy")
    assert not takes(in_flight, "greedy")
    in_flight.leave("greedy")
    assert takes(in_flight, "greedy")


def test_who_was_not_here_for_a_while_has_no_share_any_more():
    in_flight = of(8)
    assert takes(in_flight, "modest")
    in_flight.leave("modest")
    for now_s, most in ((0.5, 4), (LATELY_S + 0.5, 4), (2 * LATELY_S + 1, 7)):
        taken = 0
        while takes(in_flight, "greedy", now_s):
            taken += 1
        assert taken == most, now_s
        for _ in range(taken):
            in_flight.leave("greedy")


def test_who_waits_for_an_answer_is_here_however_long_that_takes():
    in_flight = of(8)
    assert takes(in_flight, "modest")
    taken = 0
    while takes(in_flight, "greedy", 100.0):
        taken += 1
    assert taken == 4


def test_bytes_are_shared_out_as_well():
    in_flight = of(100, byte_count=1000)
    in_flight.admit("greedy", 0)
    in_flight.admit("modest", 0)
    in_flight.reserve("greedy", 500)
    with pytest.raises(TooManyRequestsError, match="500 of them of greedy"):
        in_flight.reserve("greedy", 1)
    in_flight.reserve("modest", 300)
    assert not in_flight.has_room_for("modest", 76, 0)
    assert in_flight.has_room_for("modest", 75, 0)
    assert in_flight.has_room_for("other", 200, 0)
    in_flight.release("greedy", 500)
    in_flight.reserve("greedy", 100)


def test_interfaces_share_the_bytes_and_each_has_a_reserve():
    shared, told = RequestBytes(80), []
    alone = shared.use()
    assert alone.most == 80
    other = shared.use(on_room=lambda: told.append(1))
    third = shared.use(at_most=5)
    assert (alone.most, other.most, third.most) == (65, 65, 5)
    other.add(40)
    assert (alone.most, third.most) == (35, 5)
    alone.add(35)
    assert (other.most, third.most) == (40, 5)
    assert not told
    alone.remove(35)
    assert told
    # More than there was room for may have arrived. The reserve is there nevertheless.
    other.add(50)
    assert alone.most == 10


def test_a_request_without_a_body_needs_no_bytes():
    shared = RequestBytes(80)
    in_flight, other = InFlight(ApiLimits(), shared), shared.use()
    in_flight.reserve("ann", 70)
    other.add(80)
    assert in_flight.has_room_for("bob", 0, 0)
    assert not in_flight.has_room_for("bob", 1, 0)


def test_the_bound_of_one_body_is_no_matter_of_shares():
    in_flight = InFlight(ApiLimits(request_bytes_max=10))
    assert in_flight.has_room_for("ann", 10, 0)
    assert not in_flight.has_room_for("ann", 11, 0)


def test_a_body_that_came_counts_again_whether_or_not_there_is_room():
    in_flight = of(1)
    in_flight.admit("ann", 0)
    in_flight.leave("ann")
    in_flight.admit("bob", 0)
    with pytest.raises(TooManyRequestsError):
        in_flight.readmit("ann")
    assert in_flight.request_count == 2


def test_a_place_is_left_once_however_blocks_are_nested():
    in_flight = of(2)
    place, other = InFlightPlace(in_flight), InFlightPlace(in_flight)
    other.take("ann", 0)
    place.take("ann", 0)
    with place.aside():
        assert in_flight.request_count == 1
        with place.aside(is_asked_again=True), place.aside():
            assert in_flight.request_count == 1
        with pytest.raises(KeyError), place.aside():
            raise KeyError
        assert in_flight.request_count == 1
    assert in_flight.request_count == 2
    place.leave()
    place.leave()
    assert in_flight.request_count == 1
    with place.aside():
        assert in_flight.request_count == 1
    other.leave()
    assert (in_flight.request_count, in_flight._held) == (0, {})


def test_a_place_that_is_asked_for_again_counts_whether_or_not_there_is_room():
    in_flight = of(1)
    place, other = InFlightPlace(in_flight), InFlightPlace(in_flight)
    place.take("ann", 0)
    with pytest.raises(TooManyRequestsError), place.aside(is_asked_again=True):
        other.take("bob", 0)
    assert in_flight.request_count == 2
    place.leave()
    with other.aside(is_asked_again=True):
        place.take("ann", 0)
        place.leave()
    assert in_flight.request_count == 1


def test_what_is_counted_is_given_back_and_nobody_is_remembered_for_it():
    rng = random.Random(7)
    in_flight, under_way = of(20, byte_count=200), []
    for step in range(5_000):
        caller, size = f"c{rng.randrange(30)}", rng.randrange(20)
        if takes(in_flight, caller, step / 100):
            try:
                in_flight.reserve(caller, size)
            except TooManyRequestsError:
                size = 0
            under_way.append((caller, size))
        if under_way and rng.random() < 0.6:
            caller, size = under_way.pop(rng.randrange(len(under_way)))
            in_flight.release(caller, size)
            in_flight.leave(caller)
        assert in_flight.request_count == len(under_way) <= 20
        assert in_flight.body_bytes == sum(size for _, size in under_way) <= 200
    for caller, size in under_way:
        in_flight.leave(caller, size)
    assert (in_flight.request_count, in_flight.body_bytes, in_flight._held) == (0, 0, {})


def test_of_twenty_modest_ones_none_is_ever_refused_beside_a_greedy_one():
    """The greedy one takes every place that is free, a thousand times between any two of theirs."""
    in_flight = of(64)
    refused = dict.fromkeys(range(20), 0)
    greedy: list[None] = []
    for now_ms in range(3_000):
        while takes(in_flight, "greedy", now_ms / 1000):
            greedy.append(None)
        modest = now_ms % 20
        if takes(in_flight, str(modest), now_ms / 1000):
            in_flight.leave(str(modest))
        else:
            refused[modest] += 1
        for _ in range(min(2, len(greedy))):
            greedy.pop()
            in_flight.leave("greedy")
    assert not any(refused.values())


class TestStreams:
    """Streams are shared in the same way, and no caller has more than half."""

    def taken(self, streams, stack, caller, most=100):
        for count in range(most):
            try:
                stack.enter_context(streams.place(caller))
            except TooManyRequestsError:
                return count
        return most

    def test_one_caller_cannot_take_all(self):
        streams = Streams(64)
        with ExitStack() as stack:
            assert self.taken(streams, stack, "greedy") == 32
            assert self.taken(streams, stack, "other") == 24
            # The last ones are for callers that have none.
            newcomers = [self.taken(streams, stack, f"new {n}", 1) for n in range(9)]
            assert newcomers == [1] * 8 + [0]
        assert len(streams) == 0
        with ExitStack() as stack:
            assert self.taken(streams, stack, "other") == 32

    def test_a_stream_of_many_partitions_counts_as_many(self):
        streams = Streams(64)
        with streams.place("a", 40), pytest.raises(TooManyRequestsError), streams.place("a", 1):
            pass

    def test_few_are_not_shared(self):
        streams = Streams(2)
        with ExitStack() as stack:
            assert self.taken(streams, stack, "only") == 2
