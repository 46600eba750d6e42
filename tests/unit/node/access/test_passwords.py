"""Passwords: what a hash is good for, how long strangers wait, and that others never wait for them."""

import asyncio
import random

import pytest

from milena.model.errors import TooManyRequestsError
from node.access import passwords as module
from node.access.passwords import (
    ADDRESSES_MAX,
    SUSPECT_MS,
    SUSPECTS_WAITING_MAX,
    WAITING_MAX,
    WRONG_AT_ONCE,
    WRONG_REST_MS,
    Passwords,
    WrongPasswords,
)
from tests.support.fakes.access import HandClock
from tests.support.time.virtual_time import LoopExecutor

HERE = "10.0.0.1"


def made(pool: LoopExecutor | None = None) -> tuple[Passwords, HandClock]:
    clock = HandClock()
    rng = random.Random(1)
    passwords = Passwords(pool=pool or LoopExecutor(), clock=clock, random_bytes=rng.randbytes)
    return passwords, clock


async def test_a_hash_is_argon2id_with_a_salt_of_its_own_and_knows_its_password_alone():
    passwords, _ = made()
    one, two = await passwords.hash("a good password"), await passwords.hash("a good password")
    assert one.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    assert one != two
    assert await passwords.find((two, one), "a good password", HERE) in (one, two)
    assert await passwords.find((two, one), "a good password ", HERE) is None
    assert await passwords.find((), "a good password", HERE) is None
    assert await passwords.find(("no hash at all", two), "a good password", HERE) == two


async def test_who_is_unknown_costs_a_hash_as_well():
    class Counting(LoopExecutor):
        count = 0

        def submit(self, fn, /, *args, **kwargs):
            self.count += 1
            return super().submit(fn, *args, **kwargs)

    pool = Counting()
    passwords, _ = made(pool)
    verifier = await passwords.hash("a good password")
    await passwords.find((), "x", HERE)
    before = pool.count
    await passwords.find((), "x", HERE)
    unknown = pool.count - before
    await passwords.find((verifier,), "x", HERE)
    assert unknown == pool.count - before - unknown == 1


async def waiting_for(passwords: Passwords, password: str, verifier: str, addresses: list[str]):
    """Looks that have begun, one for each address, and have come as far as they come by themselves."""
    looks = [
        asyncio.ensure_future(passwords.find((verifier,), password, address))
        for address in addresses
    ]
    for _ in range(5):
        await asyncio.sleep(0)
    return looks


async def test_the_queue_has_an_end_and_whoever_is_in_it_gets_an_answer():
    pool = LoopExecutor()
    passwords, _ = made(pool)
    verifier = await passwords.hash("a good password")
    pool.hold()
    waiting = await waiting_for(passwords, "a good password", verifier, [HERE] * WAITING_MAX)
    assert passwords.refusal(HERE) is not None
    with pytest.raises(TooManyRequestsError, match=f"{WAITING_MAX} passwords are waiting"):
        await passwords.find((verifier,), "a good password", HERE)
    pool.release()
    assert await asyncio.gather(*waiting) == [verifier] * WAITING_MAX
    assert passwords.refusal(HERE) is None


async def test_who_gives_up_while_waiting_leaves_the_place_to_others():
    pool = LoopExecutor()
    passwords, _ = made(pool)
    verifier = await passwords.hash("a good password")
    pool.hold()
    waiting = await waiting_for(passwords, "a good password", verifier, [HERE] * WAITING_MAX)
    for look in waiting[1:]:
        look.cancel()
    await asyncio.gather(*waiting[1:], return_exceptions=True)
    waiting += await waiting_for(passwords, "a good password", verifier, [HERE])
    pool.release()
    assert await waiting[0] == await waiting[-1] == verifier


async def test_every_wrong_one_is_followed_by_a_rest_and_a_right_one_is_not():
    passwords, clock = made()
    verifier = await passwords.hash("a good password")
    before_ms = clock.ms
    assert await passwords.find((verifier,), "a good password", HERE) == verifier
    assert clock.ms == before_ms
    # From wherever they come: who has many addresses takes no more of a core.
    for number in range(10):
        assert await passwords.find((verifier,), "guess", f"10.0.1.{number}") is None
        assert clock.ms == before_ms + WRONG_REST_MS * (number + 1)


async def test_suspects_wait_for_each_other_and_the_others_for_one_of_them_at_most():
    pool = LoopExecutor()
    passwords, clock = made(pool)
    verifier = await passwords.hash("a good password")
    suspects = [f"10.0.1.{number}" for number in range(SUSPECTS_WAITING_MAX)]
    one_more = "10.0.2.1"
    for address in (*suspects, one_more):
        assert await passwords.find((verifier,), "guess", address) is None
    pool.hold()
    guesses = await waiting_for(passwords, "another guess", verifier, suspects)
    assert passwords.refusal(one_more) is not None
    with pytest.raises(TooManyRequestsError, match=f"{SUSPECTS_WAITING_MAX} passwords are waiting"):
        await passwords.find((verifier,), "a good password", one_more)
    assert passwords.refusal(HERE) is None
    [look] = await waiting_for(passwords, "a good password", verifier, [HERE])
    pool.release()
    before_ms = clock.ms
    assert await look == verifier
    assert clock.ms == before_ms + WRONG_REST_MS
    assert await asyncio.gather(*guesses) == [None] * SUSPECTS_WAITING_MAX


async def test_an_address_that_sends_many_at_once_delays_others_by_one():
    pool = LoopExecutor()
    passwords, clock = made(pool)
    verifier = await passwords.hash("a good password")
    pool.hold()
    # All of them have begun before the first one is found wrong.
    guesses = await waiting_for(passwords, "guess", verifier, ["10.0.1.1"] * (WAITING_MAX - 4))
    [look] = await waiting_for(passwords, "a good password", verifier, [HERE])
    pool.release()
    before_ms = clock.ms
    assert await look == verifier
    assert clock.ms == before_ms + WRONG_REST_MS
    found = await asyncio.gather(*guesses, return_exceptions=True)
    assert found[:WRONG_AT_ONCE] == [None] * WRONG_AT_ONCE
    refused = [one for one in found if isinstance(one, TooManyRequestsError)]
    assert len(refused) > len(guesses) // 4
    assert passwords.refusal("10.0.1.2") is None


async def test_passwords_of_many_addresses_wait_as_long_as_there_are_places():
    pool = LoopExecutor()
    passwords, _ = made(pool)
    verifier = await passwords.hash("a good password")
    pool.hold()
    addresses = [f"10.0.2.{number}" for number in range(WAITING_MAX)]
    waiting = await waiting_for(passwords, "a good password", verifier, addresses)
    with pytest.raises(TooManyRequestsError, match=f"{WAITING_MAX} passwords are waiting"):
        await passwords.find((verifier,), "a good password", HERE)
    pool.release()
    assert await asyncio.gather(*waiting) == [verifier] * WAITING_MAX
    assert passwords.refusal(HERE) is None


def test_an_address_is_a_suspect_for_a_while():
    wrong = WrongPasswords()
    assert not wrong.is_suspect(HERE, 0)
    wrong.add(HERE, 0)
    assert wrong.is_suspect(HERE, SUSPECT_MS - 1)
    assert not wrong.is_suspect(HERE, SUSPECT_MS)
    assert not wrong.is_suspect("10.0.0.2", 0)


def test_wrong_passwords_of_an_address_run_out_and_come_back_with_time():
    wrong = WrongPasswords()
    for _ in range(WRONG_AT_ONCE):
        wrong.check(HERE, 0)
        wrong.add(HERE, 0)
    with pytest.raises(TooManyRequestsError, match=r"from 10\.0\.0\.1"):
        wrong.check(HERE, 0)
    wrong.check("10.0.0.2", 0)
    with pytest.raises(TooManyRequestsError):
        wrong.check(HERE, 999)
    wrong.check(HERE, 1000)
    wrong.add(HERE, 1000)
    with pytest.raises(TooManyRequestsError):
        wrong.check(HERE, 1000)
    for _ in range(WRONG_AT_ONCE):
        wrong.check(HERE, 1_000_000)
        wrong.add(HERE, 1_000_000)


def test_as_many_addresses_are_remembered_as_there_is_room_for():
    wrong = WrongPasswords()
    for _ in range(WRONG_AT_ONCE):
        wrong.add(HERE, 0)
    for number in range(ADDRESSES_MAX):
        wrong.add(f"a{number}", 1)
    # The one that was wrong longest ago is forgotten.
    wrong.check(HERE, 1)


async def test_who_was_right_spends_nothing():
    passwords, clock = made()
    verifier = await passwords.hash("a good password")
    for _ in range(3):
        await passwords.find((verifier,), "a good password", HERE)
    for _ in range(WRONG_AT_ONCE):
        passwords.wrong.add(HERE, clock.now_ms())
    with pytest.raises(TooManyRequestsError):
        await passwords.find((verifier,), "a good password", HERE)
    assert await passwords.find((verifier,), "a good password", "10.0.0.2") == verifier


@pytest.mark.parametrize("count", range(3))
async def test_a_wrong_password_takes_as_many_looks_whatever_its_user_has(monkeypatch, count):
    looks = []
    look = module._fits
    monkeypatch.setattr(module, "_fits", lambda *given: looks.append(given) or look(*given))
    passwords, _ = made()
    verifiers = [await passwords.hash(f"a good password {number}") for number in range(count)]
    assert await passwords.find(verifiers, "a wrong one", HERE) is None
    assert len(looks) == 2
