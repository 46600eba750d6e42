"""How long consumers have not been heard of. Pure: whoever was heard last stands last, so looking costs nothing."""

from collections import OrderedDict
from collections.abc import Collection, Iterator

from raft_meta.machine.image import ConsumerKey


class IdleClocks:
    """Consumers in the order in which they were last heard of.

    Invariants:
        Times ascend. A consumer with a call under way is never idle.
    """

    __slots__ = ("_busy", "_heard_ms", "_idle_ms")

    def __init__(self, idle_ms: int) -> None:
        self._idle_ms = idle_ms
        self._heard_ms: OrderedDict[ConsumerKey, int] = OrderedDict()
        self._busy: dict[ConsumerKey, int] = {}

    def __len__(self) -> int:
        return len(self._heard_ms)

    def __iter__(self) -> Iterator[ConsumerKey]:
        return iter(self._heard_ms)

    def __contains__(self, key: ConsumerKey) -> bool:
        return key in self._heard_ms

    def keep(self, keys: Collection[ConsumerKey], now_ms: int) -> None:
        """Watch exactly these; a new one's time is full."""
        for key in [key for key in self._heard_ms if key not in keys]:
            del self._heard_ms[key]
        for key in keys:
            if key not in self._heard_ms:
                self._heard_ms[key] = now_ms

    def begin(self, key: ConsumerKey, now_ms: int) -> None:
        """A call."""
        self._busy[key] = self._busy.get(key, 0) + 1
        self.hear(key, now_ms)

    def end(self, key: ConsumerKey, now_ms: int) -> None:
        """The call is over: its time counts from now."""
        left = self._busy.pop(key) - 1
        if left:
            self._busy[key] = left
        if key in self._heard_ms:
            self.hear(key, now_ms)

    def hear(self, key: ConsumerKey, now_ms: int) -> None:
        """Its time is full again."""
        self._heard_ms[key] = now_ms
        self._heard_ms.move_to_end(key)

    def forget(self, key: ConsumerKey) -> None:
        """It is gone."""
        self._heard_ms.pop(key, None)

    def expired(self, now_ms: int, limit: int) -> list[ConsumerKey]:
        """Those not heard of for too long, at most ``limit`` of them, longest first."""
        found: list[ConsumerKey] = []
        for key, heard_ms in self._heard_ms.items():
            if now_ms - heard_ms < self._idle_ms or len(found) == limit:
                break
            if key not in self._busy:
                found.append(key)
        return found
