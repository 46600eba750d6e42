"""Passwords: what a hash is good for, how long strangers wait, and that others never wait for them."""

import asyncio
import random

import pytest

from milena.model.errors import TooManyRequestsError
from node.access.passwords import (
    ADDRESSES_MAX,
    WAITING_MAX,
    WRONG_AT_ONCE,
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


async def test_the_queue_has_an_end_and_whoever_is_in_it_gets_an_answer():
    pool = LoopExecutor()
    passwords, _ = made(pool)
    verifier = await passwords.hash("a good password")
    pool.hold()
    waiting = [
        asyncio.ensure_future(passwords.find((verifier,), "a good password", HERE))
        for _ in range(WAITING_MAX)
    ]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting_decoy = len(waiting)
    with pytest.raises(TooManyRequestsError, match="waiting"):
        await passwords.find((verifier,), "a good password", HERE)
    pool.release()
    # The first of them made the hash that strangers are held against.
    assert waiting_decoy == WAITING_MAX
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert results.count(verifier) >= 1


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
