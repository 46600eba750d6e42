"""The bound on bytes of requests: whatever clients of both interfaces do, nothing waits for ever."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from http_api.serving.in_flight import RequestBytes
from node.kafka.budget import FrameBudget

BYTES_MAX = 40
CLIENTS = 3


class Client:
    """A connection with bytes of unfinished frames and, while it is busy, of requests in work."""

    def __init__(self, budget: FrameBudget) -> None:
        self.budget = budget
        self.is_busy = False
        self.is_held = False
        self.bytes = 0

    def hold(self, is_held: bool) -> None:
        assert self.is_held is not is_held
        self.is_held = is_held

    def receive(self, count: int, *, ends_frame: bool) -> None:
        if not self.is_held:
            self.is_busy = self.is_busy or ends_frame
            self.bytes += count
            self.budget.take(self, count)

    def answer(self, count: int) -> None:
        """Send a response; the last one leaves before the connection rests."""
        if self.is_busy:
            self.bytes -= min(count, self.bytes)
            self.budget.give_back(self, self.budget._bytes[self] - self.bytes)
            if count % 2 or not self.bytes:
                self.is_busy = False
                self.budget.rest()

    def sign_in(self, budget: FrameBudget) -> None:
        if self.budget is not budget:
            count = self.budget.leave(self)
            assert (count, self.is_held) == (self.bytes, False)
            self.budget = budget
            budget.take(self, count)

    def close(self) -> None:
        self.budget.leave(self)
        self.bytes, self.is_busy = 0, False


STEPS = st.tuples(
    st.sampled_from(
        ["part", "part", "frame", "frame", "answer", "sign-in", "close", "http", "http-end"]
    ),
    st.integers(0, CLIENTS - 1),
    st.sampled_from([1, 8, 40]),
)


@given(st.lists(STEPS, max_size=80))
@example([("frame", 1, 40), ("part", 2, 40), ("answer", 1, 40)])
@settings(max_examples=300, deadline=None)
def test_there_is_always_a_client_that_can_go_on(steps: list[tuple[str, int, int]]) -> None:
    shared = RequestBytes(BYTES_MAX)
    http = shared.use()
    budgets = signed_in, strangers = FrameBudget(shared), FrameBudget(shared, at_most=5)
    clients = [Client(budgets[number == 0]) for number in range(CLIENTS)]
    for step, place, count in steps:
        client = clients[place]
        if step in ("part", "frame"):
            client.receive(count, ends_frame=step == "frame")
        elif step == "answer":
            client.answer(count)
        elif step == "sign-in":
            client.sign_in(signed_in)
        elif step == "close":
            client.close()
        elif step == "http-end":
            http.remove(min(count, http.held))
        elif http.held + count <= http.most:
            http.add(count)
        for budget in (signed_in, strangers):
            mine = [one for one in clients if one.budget is budget]
            assert budget.held_bytes == sum(one.bytes for one in mine)
            if budget.held_bytes <= budget._use.most:
                assert not any(one.is_held for one in mine)
            else:
                waiting = [one for one in mine if one.bytes]
                assert any(one.is_busy or not one.is_held for one in waiting)
