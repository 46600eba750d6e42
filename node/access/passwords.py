"""Passwords: hashes that are slow to make, one at a time, on a thread that gives way to all others.

A hash takes some 35 ms and 19 MiB on purpose, so that who steals it learns little. That makes passwords the dearest
thing that a stranger may ask for. So they are looked at one after the other, and a wrong one is followed by a rest: all
of them together take a fifth of a core and no more. An address that was wrong lately is a suspect. Suspects wait for
each other, in a short queue, and only the first of them for its turn among those who never were wrong.

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
from raft_meta.machine.access.access import VERIFIERS_MAX

WAITING_MAX = 64
"""Some 2 s of work, if they are right: who comes then is told to come again."""
SUSPECTS_WAITING_MAX = 16
"""Some 3 s, as they are wrong."""
WRONG_REST_MS = 300
"""A wrong one costs two hashes, some 70 ms, whoever its user is."""
SUSPECT_MS = 300_000
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

    def is_suspect(self, address: str, now_ms: float) -> bool:
        """Whether one came from an address within ``SUSPECT_MS``."""
        last = self._spent.get(address)
        return last is not None and now_ms < last[1] + SUSPECT_MS

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
        self._turn = _Queue(WAITING_MAX)
        self._suspects = _Queue(SUSPECTS_WAITING_MAX)
        self._decoy = ""

    async def hash(self, password: str) -> str:
        """A verifier of this password, with a salt of its own (PHC string format).

        Raises:
            TooManyRequestsError: too many are waiting.
        """
        async with self._turn:
            return await self._hash(password)

    async def find(self, verifiers: Sequence[str], password: str, address: str) -> str | None:
        """The verifier of this password; None: there is none. That takes as long where there are none at all.

        Raises:
            TooManyRequestsError: too many are waiting, or too many wrong ones came from the address.
        """
        now_ms = self._clock.now_ms()
        self.wrong.check(address, now_ms)
        if not self.wrong.is_suspect(address, now_ms):
            return await self._find(verifiers, password, address)
        async with self._suspects:
            return await self._find(verifiers, password, address)

    def refusal(self, address: str) -> TooManyRequestsError | None:
        """Why no password from this address would be looked at now; None: it would be."""
        now_ms = self._clock.now_ms()
        queue = self._suspects if self.wrong.is_suspect(address, now_ms) else self._turn
        return queue.refusal() or self.wrong.refusal(address, now_ms)

    async def _find(self, verifiers: Sequence[str], password: str, address: str) -> str | None:
        async with self._turn:
            if not self._decoy:
                self._decoy = await self._hash(self._random_bytes(SALT_BYTES).hex())
            decoys = (self._decoy,) * (VERIFIERS_MAX - len(verifiers))
            found = await self._work(lambda: _first(verifiers, decoys, password))
            if found is not None:
                return found
            self.wrong.add(address, self._clock.now_ms())
            # In its turn, and before the answer: who asks one after the other asks the more slowly.
            await self._clock.sleep(WRONG_REST_MS)
            return None

    async def _hash(self, password: str) -> str:
        salt = self._random_bytes(SALT_BYTES)
        return await self._work(lambda: _HASHER.hash(password, salt=salt))

    async def _work(self, work: Callable[[], _Found]) -> _Found:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


class _Queue:
    """Those who wait for one thing, first come, first served: ``places`` of them, with the one who has it."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._taken = 0
        self._lock = asyncio.Lock()

    def refusal(self) -> TooManyRequestsError | None:
        if self._taken < self._places:
            return None
        return TooManyRequestsError(
            f"{self._taken} passwords are waiting to be looked at; a token takes no such time"
        )

    async def __aenter__(self) -> None:
        refusal = self.refusal()
        if refusal is not None:
            raise refusal
        self._taken += 1
        try:
            await self._lock.acquire()
        except BaseException:
            self._taken -= 1
            raise

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
        self._taken -= 1


def _first(verifiers: Sequence[str], decoys: Sequence[str], password: str) -> str | None:
    """The verifier of a password. A wrong one takes as long whether its user has no password, one or two."""
    found = [verifier for verifier in verifiers if _fits(verifier, password)]
    if found:
        return found[0]
    for decoy in decoys:
        _fits(decoy, password)
    return None


def _fits(verifier: str, password: str) -> bool:
    try:
        return _HASHER.verify(verifier, password)
    except (VerificationError, InvalidHashError):
        return False
