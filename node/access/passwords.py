"""Passwords: slow hashes, computed one at a time on a low-priority thread.

A hash takes about 35 ms and 19 MiB, on purpose: someone who steals a hash can try only few passwords. So checking a
password is the most expensive request that a caller without an account can send. Therefore passwords are checked one
after the other, with a pause after each wrong one. All wrong passwords together use at most a fifth of a core.

Each address has one password in the queue; its others wait behind that one. So an address that sends many passwords
before the first one is found wrong delays another address by one check. An address that recently sent a wrong password
is a suspect. Suspects wait in a short queue of their own. Only the first of them waits in the main queue, together with
addresses that sent no wrong password.

Source: OWASP's Password Storage Cheat Sheet, argon2id.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from typing import TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from milena.model.access import ScramMechanism
from milena.model.clock import Clock
from milena.model.errors import TooManyRequestsError
from node.access import scram
from raft_meta.machine.access.access import VERIFIERS_MAX
from raft_meta.machine.image import ScramCredential

WAITING_MAX = 64
"""Places in the main queue, and of one address: about 2 s of work if the passwords are right. Further callers are told
to retry later."""
SUSPECTS_WAITING_MAX = 16
"""Places in the suspects' queue: about 3 s of work if the passwords are wrong."""
WRONG_REST_MS = 300
"""The pause after a wrong password, in ms. The check itself computes two hashes, for every user: about 70 ms."""
SUSPECT_MS = 300_000
SALT_BYTES = 16
WRONG_AT_ONCE = 30
WRONG_PER_S = 1.0
"""How many wrong passwords an address may try at once, and how many more per second."""
ADDRESSES_MAX = 10_000

_Found = TypeVar("_Found")
_HASHER = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)


class WrongPasswords:
    """Counts the wrong passwords of each address, with one token bucket per address. Pure; times are monotonic ms.

    ``what``: what is counted, for error messages.
    """

    def __init__(self, what: str = "passwords") -> None:
        self._what = what
        self._spent: dict[str, tuple[float, float]] = {}
        """Address → (count at the time of the last wrong password, that time). The count falls with time."""

    def refusal(self, address: str, now_ms: float) -> TooManyRequestsError | None:
        """Return an error if an address must wait, because it sent too many wrong passwords; else None."""
        if self._count(address, now_ms) <= WRONG_AT_ONCE - 1:
            return None
        return TooManyRequestsError(
            f"too many wrong {self._what} came from {address}; one is looked at every {1 / WRONG_PER_S:g} s"
        )

    def check(self, address: str, now_ms: float) -> None:
        """Refuse an address that sent too many wrong passwords.

        Raises:
            TooManyRequestsError: the address must wait.
        """
        refusal = self.refusal(address, now_ms)
        if refusal is not None:
            raise refusal

    def add(self, address: str, now_ms: float) -> None:
        """Count one more wrong password of this address."""
        count = self._count(address, now_ms)
        self._spent.pop(address, None)
        if len(self._spent) >= ADDRESSES_MAX:
            # Forget the address whose last wrong password is the oldest.
            del self._spent[next(iter(self._spent))]
        self._spent[address] = (count + 1, now_ms)

    def is_suspect(self, address: str, now_ms: float) -> bool:
        """Return whether the address sent a wrong password within ``SUSPECT_MS``."""
        last = self._spent.get(address)
        return last is not None and now_ms < last[1] + SUSPECT_MS

    def _count(self, address: str, now_ms: float) -> float:
        count, since_ms = self._spent.get(address, (0.0, now_ms))
        return max(0.0, count - (now_ms - since_ms) / 1000 * WRONG_PER_S)


class Passwords:
    """Makes hashes of passwords and checks passwords. Owned by the event loop; the pool computes the hashes."""

    def __init__(
        self, *, pool: Executor, clock: Clock, random_bytes: Callable[[int], bytes]
    ) -> None:
        self._pool = pool
        self._clock = clock
        self._random_bytes = random_bytes
        self.wrong = WrongPasswords()
        self._turn = _Queue(WAITING_MAX)
        self._suspects = _Queue(SUSPECTS_WAITING_MAX)
        self._addresses: dict[str, _Queue] = {}
        """The queues of addresses that wait. Each has one place in the queues above, which bounds their number."""
        self._decoy = ""

    async def hash(self, password: str) -> str:
        """Return a verifier (a hash with its own salt, in PHC string format) of this password.

        Raises:
            TooManyRequestsError: too many callers wait.
        """
        async with self._turn:
            return await self._hash(password)

    async def scram(self, mechanism: ScramMechanism, password: str) -> ScramCredential:
        """Return a SCRAM credential of this password.

        Raises:
            TooManyRequestsError: too many callers wait.
        """
        salt = self._random_bytes(scram.SALT_BYTES)
        async with self._turn:
            return await self._work(lambda: scram.credential_of(mechanism, password, salt=salt))

    async def find(self, verifiers: Sequence[str], password: str, address: str) -> str | None:
        """Return the verifier that matches this password, or None. Even without verifiers, this takes as long.

        Raises:
            TooManyRequestsError: too many callers wait, or the address sent too many wrong passwords.
        """
        refusal = self.refusal(address)
        if refusal is not None:
            raise refusal
        async with self._turn_of(address):
            # Another password of this address may have been wrong in the meantime.
            now_ms = self._clock.now_ms()
            self.wrong.check(address, now_ms)
            if not self.wrong.is_suspect(address, now_ms):
                return await self._find(verifiers, password, address)
            async with self._suspects:
                return await self._find(verifiers, password, address)

    @asynccontextmanager
    async def _turn_of(self, address: str) -> AsyncIterator[None]:
        """Wait until no other password of this address is looked at."""
        queue = self._addresses.setdefault(address, _Queue(WAITING_MAX))
        try:
            async with queue:
                yield
        finally:
            if queue.is_empty:
                self._addresses.pop(address, None)

    def refusal(self, address: str) -> TooManyRequestsError | None:
        """Return the error that a password from this address would get without a check; None if it would be checked.

        The error says that too many passwords wait, or that the address sent too many wrong ones.
        """
        now_ms = self._clock.now_ms()
        queue = self._addresses.get(address)
        if queue is None:
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
            # Pause before the next password is checked, and before the response. So a client that tries passwords one
            # after the other is slowed down, too.
            await self._clock.sleep(WRONG_REST_MS)
            return None

    async def _hash(self, password: str) -> str:
        salt = self._random_bytes(SALT_BYTES)
        return await self._work(lambda: _HASHER.hash(password, salt=salt))

    async def _work(self, work: Callable[[], _Found]) -> _Found:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


class _Queue:
    """A first-come-first-served queue. ``places``: how many callers may be in it, with the one whose turn it is."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._taken = 0
        self._lock = asyncio.Lock()

    @property
    def is_empty(self) -> bool:
        """Whether no caller is in the queue."""
        return not self._taken

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
    """Return the verifier that matches a password; None if there is none.

    A wrong password takes as long for a user with no, one or two verifiers.
    """
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
