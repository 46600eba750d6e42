"""Every decoder against mutations of what it takes: a correct value or a typed error, in bounded time and memory."""

import time
import tracemalloc
from functools import cache

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz.mutations import EXTREMES, KINDS, Edit, mutated
from tests.fuzz.targets import CORPUS, TARGETS, Target, corpus_of, run, target_of

CORPUS_BYTES_MAX = 4096

PEAK_BYTES_MAX = 160 << 20
"""Above what any target may allocate for one input. The worst that is allowed is one call of msgpack: 128 MiB."""
SECONDS_MAX = 5.0
"""For one input, on a machine that does other things, too."""

shares = st.integers(0, (1 << 16) - 1)
edit_lists = st.lists(
    st.builds(Edit, st.integers(0, KINDS - 1), shares, shares, st.integers(0, 255)),
    min_size=1,
    max_size=4,
)


@cache
def seeds_of(target: Target) -> list[bytes]:
    return target.seeds()


@pytest.fixture(scope="module", autouse=True)
def _memory_is_watched():
    tracemalloc.start()
    yield
    tracemalloc.stop()


def run_within_bounds(target: Target, data: bytes) -> bool:
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    began = time.process_time()
    is_taken = run(target, data)
    seconds = time.process_time() - began
    _, peak = tracemalloc.get_traced_memory()
    assert peak - before < PEAK_BYTES_MAX, f"{peak - before} bytes for an input of {len(data)}"
    assert seconds < SECONDS_MAX, f"{seconds} s for an input of {len(data)} bytes"
    return is_taken


by_name = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)


@by_name
def test_sound_inputs_are_taken(target):
    taken = [run_within_bounds(target, seed) for seed in seeds_of(target)]
    assert any(taken)


def mutate_and_run(target: Target, examples: int) -> None:
    seeds = seeds_of(target)

    # Without shrinking: under a watched memory it takes minutes, and inputs are small as they are.
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(
        st.integers(0, len(seeds) - 1),
        st.integers(0, len(seeds) - 1),
        edit_lists,
        st.booleans(),
    )
    def check(first, second, edits, is_resealed):
        data = mutated(seeds[first], edits, seeds[second])
        run_within_bounds(target, target.reseal(data) if is_resealed else data)

    check()


@by_name
def test_spoiled_inputs_end_in_typed_errors(target):
    mutate_and_run(target, 30)


@pytest.mark.long
@by_name
def test_many_spoiled_inputs_end_in_typed_errors(target):
    mutate_and_run(target, 5_000)


@by_name
@settings(max_examples=15, deadline=None, database=None)
@given(data=st.binary(max_size=300))
def test_any_bytes_end_in_typed_errors(target, data):
    run_within_bounds(target, data)


@by_name
def test_every_truncation_ends_in_a_typed_error(target):
    for seed in seeds_of(target)[:2]:
        step = max(1, len(seed) // 30)
        for length in range(0, len(seed), step):
            run_within_bounds(target, seed[:length])
            run_within_bounds(target, target.reseal(seed[:length]))


@by_name
def test_extreme_values_anywhere_end_in_typed_errors(target):
    seed = min(seeds_of(target), key=len)
    for number, extreme in enumerate(EXTREMES):
        for at in range(number % 7, min(len(seed), 200), 7):
            data = target.reseal(seed[:at] + extreme + seed[at + len(extreme) :])
            run_within_bounds(target, data)


KEPT = [(path.stem, data) for path in sorted(CORPUS.iterdir()) for data in corpus_of(path.stem)]


@pytest.mark.parametrize(("name", "data"), KEPT, ids=[f"{name}-{len(data)}" for name, data in KEPT])
def test_what_was_interesting_once_is_still_answered(name, data):
    assert len(data) <= CORPUS_BYTES_MAX
    run_within_bounds(target_of(name), data)
