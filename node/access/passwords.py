"""Passwords: hashes that are slow to make, one at a time, on a thread that gives way to all others.

A hash takes some 35 ms and 19 MiB on purpose, so that who steals it learns little. That makes passwords the dearest
thing that a stranger may ask for: they wait in a queue that has an end, and whoever was wrong often waits longer.

Source: OWASP's Password Storage Cheat Sheet, argon2id.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from milena.model.clock import Clock
from milena.model.errors import TooManyRequestsError

WAITING_MAX = 64
"""Some 2 s of work: who comes then is told to come again."""
SALT_BYTES = 16
WRONG_AT_ONCE = 30
WRONG_PER_S = 1.0
"""Wrong passwords that an address may try, and how soon it may again."""
ADDRESSES_MAX = 10_000

_Found = TypeVar("_Found")
_HASHER = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)


class WrongPasswords:
    """How many wrong passwords came from which address: a token bucket for each. Pure; times are monotonic ms.

    ``what`` they are, for people, where they are no passwords.
    """

    def __init__(self, what: str = "passwords") -> None:
        self._what = what
        self._spent: dict[str, tuple[float, float]] = {}
        """Address → (wrong ones that still count, when that was so)."""

    def refusal(self, address: str, now_ms: float) -> TooManyRequestsError | None:
        """Why an address must wait from which too many came; None: it need not."""
        if self._count(address, now_ms) <= WRONG_AT_ONCE - 1:
            return None
        return TooManyRequestsError(
            f"too many wrong {self._what} came from {address}; one is looked at every {1 / WRONG_PER_S:g} s"
        )

    def check(self, address: str, now_ms: float) -> None:
        """Refuse an address from which too many came.

        Raises:
            TooManyRequestsError: it must wait.
        """
        refusal = self.refusal(address, now_ms)
        if refusal is not None:
            raise refusal

    def add(self, address: str, now_ms: float) -> None:
        """One more."""
        count = self._count(address, now_ms)
        self._spent.pop(address, None)
        if len(self._spent) >= ADDRESSES_MAX:
            # The one that was wrong longest ago.
            del self._spent[next(iter(self._spent))]
        self._spent[address] = (count + 1, now_ms)

    def _count(self, address: str, now_ms: float) -> float:
        count, since_ms = self._spent.get(address, (0.0, now_ms))
        return max(0.0, count - (now_ms - since_ms) / 1000 * WRONG_PER_S)


class Passwords:
    """Makes hashes and holds passwords against them. Belongs to the event loop; the work is the pool's."""

    def __init__(
        self, *, pool: Executor, clock: Clock, random_bytes: Callable[[int], bytes]
    ) -> None:
        self._pool = pool
        self._clock = clock
        self._random_bytes = random_bytes
        self.wrong = WrongPasswords()
        self._waiting = 0
        self._decoy = ""

    async def hash(self, password: str) -> str:
        """A verifier of this password, with a salt of its own (PHC string format).

        Raises:
            TooManyRequestsError: too many are waiting.
        """
        salt = self._random_bytes(SALT_BYTES)
        return await self._work(lambda: _HASHER.hash(password, salt=salt))

    async def find(self, verifiers: Sequence[str], password: str, address: str) -> str | None:
        """The verifier of this password; None: there is none. That takes as long where there are none at all.

        Raises:
            TooManyRequestsError: too many are waiting, or too many wrong ones came from the address.
        """
        self.wrong.check(address, self._clock.now_ms())
        if not self._decoy:
            self._decoy = await self.hash(self._random_bytes(SALT_BYTES).hex())
        tried = tuple(verifiers) or (self._decoy,)
        found = await self._work(lambda: _first(tried, password))
        if found not in verifiers:
            self.wrong.add(address, self._clock.now_ms())
            return None
        return found

    def refusal(self, address: str) -> TooManyRequestsError | None:
        """Why no password from this address would be looked at now; None: it would be."""
        return self._queue_refusal() or self.wrong.refusal(address, self._clock.now_ms())

    def _queue_refusal(self) -> TooManyRequestsError | None:
        if self._waiting < WAITING_MAX:
            return None
        return TooManyRequestsError(
            f"{self._waiting} passwords are waiting to be looked at; a token takes no such time"
        )

    async def _work(self, work: Callable[[], _Found]) -> _Found:
        refusal = self._queue_refusal()
        if refusal is not None:
            raise refusal
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self._waiting -= 1


def _first(verifiers: Sequence[str], password: str) -> str | None:
    found = None
    for verifier in verifiers:
        # All of them, whichever it is: the time tells nothing.
        try:
            if _HASHER.verify(verifier, password):
                found = verifier
        except (VerificationError, InvalidHashError):
            continue
    return found
