"""The state machine under random histories: invariants, and that replay and snapshots give the same bytes."""

import contextlib
import dataclasses
from itertools import pairwise
from typing import get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milena.model.errors import CorruptLogError, MilenaError
from raft_meta.machine import codec, invariants
from raft_meta.machine import commands as c
from raft_meta.machine.apply import apply
from raft_meta.machine.image import Image, Partition
from tests.support.machine.commands import random_history

SEEDS = st.integers(min_value=0, max_value=1 << 32)


def image_bytes(image: Image) -> bytes:
    return b"".join(codec.encode_image(image))


def replay(image: Image, log: list[bytes]) -> Image:
    for command in log:
        image = apply(image, image.index + 1, codec.decode_envelope(command)).image
    return image


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_every_image_of_a_random_history_keeps_its_invariants(seed: int) -> None:
    _, results = random_history(seed, 150)
    for at, result in enumerate(results):
        assert not invariants.violations(result.image), f"after command {at} of seed {seed}"


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_epochs_grow_with_every_change(seed: int) -> None:
    log, results = random_history(seed, 150)
    images = [result.image for result in results]
    for data, before, after in zip(log[1:], images, images[1:], strict=False):
        command = codec.decode_envelope(data).command
        if isinstance(command, c.CorrectTime):
            assert after.now_ms >= min(before.now_ms, command.now_ms)
        else:
            assert after.now_ms >= before.now_ms
        for key, new in after.partitions.items():
            old = before.partitions.get(key)
            if old is None or old == new:
                continue
            if isinstance(command, c.GiveUpReplicas):
                check_given_up(command.broker_id, old, new)
            else:
                check_step(old, new)


def check_given_up(broker_id: int, old: Partition, new: Partition) -> None:
    """Nobody joins, the damaged copy counts for nothing, and what was told of it before ends with the leader epoch."""
    assert new.partition_epoch == old.partition_epoch + 1
    assert new.leader_epoch == old.leader_epoch + 1
    assert new.leader is not None
    assert broker_id not in {new.leader, *new.isr, *new.eligible}
    assert {*new.isr} <= {*old.isr, *old.eligible}
    assert new.unclean_epoch == old.unclean_epoch


def check_step(old: Partition, new: Partition) -> None:
    assert new.partition_epoch > old.partition_epoch
    has_leavers = not {*old.replicas} <= {*new.replicas}
    assert new.leader_epoch - old.leader_epoch == (has_leavers or new.leader != old.leader) or (
        # A fence may first follow a plan and then find its new leader lost as well.
        new.leader is None and new.leader_epoch > old.leader_epoch
    )
    if new.unclean_epoch == old.unclean_epoch:
        assert {*new.isr} <= {*old.isr, *old.eligible} or new.leader == old.leader


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.integers(min_value=0, max_value=100))
def test_replay_and_snapshot_give_the_same_bytes(seed: int, cut: int) -> None:
    log, results = random_history(seed, 100)
    wanted = image_bytes(results[-1].image)
    assert image_bytes(replay(Image(), log)) == wanted
    restored = codec.decode_image(codec.encode_image(replay(Image(), log[:cut])))
    assert image_bytes(replay(restored, log[cut:])) == wanted


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_a_refused_command_changes_nothing_but_the_answer(seed: int) -> None:
    _, results = random_history(seed, 100)
    for before, after in pairwise(results):
        if after.error is not None:
            assert after.image.partitions is before.image.partitions
            assert after.image.brokers is before.image.brokers
            assert after.image.topics is before.image.topics
            with pytest.raises(type(after.error)):
                codec.decode_response(after.response)


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_what_did_not_change_is_the_same_object(seed: int) -> None:
    """Nodes tell by identity what they have to look at."""
    _, results = random_history(seed, 150)
    for before, after in pairwise(results):
        for domain in ("brokers", "topics", "partitions"):
            former = getattr(before.image, domain)
            for key, state in getattr(after.image, domain).items():
                assert (state == former.get(key)) == (state is former.get(key)), f"{domain} {key}"


@settings(max_examples=100, deadline=None)
@given(SEEDS, st.data())
def test_a_harmed_snapshot_is_refused_whole(seed: int, data: st.DataObject) -> None:
    _, results = random_history(seed, 40)
    whole = image_bytes(results[-1].image)
    at = data.draw(st.integers(min_value=0, max_value=len(whole) - 1))
    flipped = bytearray(whole)
    flipped[at] ^= 1 << data.draw(st.integers(min_value=0, max_value=7))
    for harmed in (bytes(flipped), whole[:at], whole + b"\0"):
        with pytest.raises(CorruptLogError):
            codec.decode_image([harmed])


@settings(max_examples=100, deadline=None)
@given(SEEDS, st.lists(st.integers(min_value=1, max_value=2000), max_size=20))
def test_a_snapshot_may_be_cut_anywhere(seed: int, lengths: list[int]) -> None:
    _, results = random_history(seed, 30)
    whole = image_bytes(results[-1].image)
    chunks, position = [], 0
    for length in lengths:
        chunks.append(whole[position : position + length])
        position += length
    assert codec.decode_image([*chunks, whole[position:]]) == results[-1].image


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_hostile_bytes_are_corrupt_and_nothing_else(data: bytes) -> None:
    for decode in (codec.decode_envelope, lambda raw: codec.decode_image([raw])):
        with pytest.raises(CorruptLogError):
            decode(data)
    with contextlib.suppress(MilenaError):
        codec.decode_response(data)


@settings(max_examples=200, deadline=None)
@given(SEEDS, st.data())
def test_a_harmed_command_is_corrupt_or_another_command(seed: int, data: st.DataObject) -> None:
    log, _ = random_history(seed, 10)
    harmed = bytearray(data.draw(st.sampled_from(log)))
    harmed[data.draw(st.integers(min_value=0, max_value=len(harmed) - 1))] = data.draw(
        st.integers(min_value=0, max_value=255)
    )
    try:
        envelope = codec.decode_envelope(bytes(harmed))
    except CorruptLogError:
        return
    assert codec.decode_envelope(codec.encode_envelope(envelope)) == envelope


NUMBERS = st.integers(min_value=-(1 << 63), max_value=(1 << 63) - 1)


def strategy_of(annotation: object, **known: st.SearchStrategy) -> st.SearchStrategy:
    """Values of one of the annotations that commands use."""
    if dataclasses.is_dataclass(annotation):
        hints = get_type_hints(annotation)
        made = {name: strategy_of(hint) for name, hint in hints.items() if name not in known}
        return st.builds(annotation, **made, **known)
    arguments = get_args(annotation)
    if get_origin(annotation) is tuple:
        if arguments[-1] is Ellipsis:
            return st.lists(strategy_of(arguments[0]), max_size=4).map(tuple)
        return st.tuples(*map(strategy_of, arguments))
    if arguments:
        return st.none() | strategy_of(arguments[0])
    plain = {str: st.text(max_size=20), bytes: st.binary(max_size=20), bool: st.booleans()}
    return plain.get(annotation, NUMBERS)


@settings(max_examples=20, deadline=None)
@given(st.data())
@pytest.mark.parametrize("kind", codec.TAGS.values(), ids=lambda kind: kind.__name__)
def test_every_command_crosses_the_codec(kind: type[c.Command], data: st.DataObject) -> None:
    envelope = data.draw(strategy_of(c.Envelope, command=strategy_of(kind)))
    encoded = codec.encode_envelope(envelope)
    assert codec.decode_envelope(encoded) == envelope
    assert codec.encode_envelope(codec.decode_envelope(encoded)) == encoded
