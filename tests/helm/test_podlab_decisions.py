"""What the runner's controllers decide: rollouts, jobs, budgets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helm.podlab.budget import Headcount, desired_healthy, disruptions_allowed, may_evict
from tests.helm.podlab.jobs import JobStep, JobTally, next_step, tally
from tests.helm.podlab.manifest import Manifest
from tests.helm.podlab.rollout import Action, CreatePod, DeletePod, PodSeen, SetSpec, plan


def wanted(**changes: object) -> SetSpec:
    fields: dict[str, object] = {
        "replicas": 3,
        "is_parallel": True,
        "update_partition": 0,
        "update_revision": "new",
        "current_revision": "old",
    }
    return SetSpec(**{**fields, **changes})  # type: ignore[arg-type]


def pod(
    ordinal: int, revision: str = "new", *, available: bool = True, terminating: bool = False
) -> PodSeen:
    return PodSeen(
        ordinal=ordinal,
        revision=revision,
        is_available=available and not terminating,
        is_terminating=terminating,
    )


def create(*ordinals: int, revision: str = "new") -> list[Action]:
    return [CreatePod(ordinal=ordinal, revision=revision) for ordinal in ordinals]


def test_parallel_starts_all_at_once() -> None:
    assert plan(wanted(), []) == create(0, 1, 2)


def test_ordered_starts_one_and_waits_for_it() -> None:
    spec = wanted(is_parallel=False)
    assert plan(spec, []) == create(0)
    assert plan(spec, [pod(0, available=False)]) == []
    assert plan(spec, [pod(0)]) == create(1)


def test_a_rollout_takes_the_highest_that_is_old_and_waits_for_those_above() -> None:
    assert plan(wanted(), [pod(0, "old"), pod(1, "old"), pod(2, "old")]) == [DeletePod(ordinal=2)]
    assert plan(wanted(), [pod(0, "old"), pod(1, "old"), pod(2, terminating=True)]) == []
    assert plan(wanted(), [pod(0, "old"), pod(1, "old"), pod(2, available=False)]) == []
    assert plan(wanted(), [pod(0, "old"), pod(1, "old"), pod(2)]) == [DeletePod(ordinal=1)]
    assert plan(wanted(), [pod(0), pod(1), pod(2)]) == []


def test_parallel_rolls_though_a_lower_pod_is_away_but_ordered_does_not() -> None:
    seen = [pod(0, available=False), pod(1, "old"), pod(2)]
    assert plan(wanted(), seen) == [DeletePod(ordinal=1)]
    assert plan(wanted(is_parallel=False), seen) == []


def test_what_is_below_the_partition_stays_old() -> None:
    seen = [pod(0, "old"), pod(1, "old"), pod(2)]
    assert plan(wanted(update_partition=2), seen) == []
    assert plan(wanted(update_partition=2), [pod(1, "old"), pod(2)]) == create(0, revision="old")


def test_on_delete_rolls_nothing() -> None:
    assert plan(wanted(update_partition=None), [pod(n, "old") for n in range(3)]) == []


def test_surplus_goes_at_once_or_from_the_end() -> None:
    seen = [pod(n) for n in range(5)]
    assert plan(wanted(), seen) == [DeletePod(ordinal=4), DeletePod(ordinal=3)]
    assert plan(wanted(is_parallel=False), seen) == [DeletePod(ordinal=4)]
    assert plan(wanted(is_parallel=False), [*seen[:4], pod(4, terminating=True)]) == []


@given(
    is_parallel=st.booleans(),
    replicas=st.integers(1, 6),
    delays=st.lists(st.integers(0, 3), min_size=60),
)
def test_a_rollout_ends_and_never_takes_two(
    is_parallel: bool, replicas: int, delays: list[int]
) -> None:
    """Pods that were replaced become available after some rounds; at no time is a second one taken."""
    spec = wanted(replicas=replicas, is_parallel=is_parallel)
    pods_seen = {n: pod(n, "old") for n in range(replicas)}
    waiting: dict[int, int] = {}
    for delay in delays:
        for action in plan(spec, list(pods_seen.values())):
            if isinstance(action, DeletePod):
                assert all(seen.is_available for seen in pods_seen.values()), (
                    "a second one is taken"
                )
                del pods_seen[action.ordinal]
            else:
                pods_seen[action.ordinal] = pod(action.ordinal, available=False)
                waiting[action.ordinal] = delay
        for ordinal, left in list(waiting.items()):
            waiting[ordinal] = left - 1
            if left == 0:
                pods_seen[ordinal] = pod(ordinal)
                del waiting[ordinal]
    assert all(seen.revision == "new" for seen in pods_seen.values())


@pytest.mark.parametrize(
    ("phases", "step"),
    [
        ([], JobStep.START_POD),
        (["Pending"], JobStep.WAIT),
        (["Running"], JobStep.WAIT),
        (["Failed"], JobStep.START_POD),
        (["Failed", "Failed", "Failed"], JobStep.FAIL),
        (["Failed", "Succeeded"], JobStep.COMPLETE),
    ],
)
def test_a_job_tries_until_it_succeeds_or_runs_out(phases: list[str], step: JobStep) -> None:
    assert next_step(tally(phases), completions=1, backoff_limit=2) is step


def test_tally_counts_what_is_under_way() -> None:
    assert tally(["", "Running", "Failed", "Succeeded"]) == JobTally(
        active=2, succeeded=1, failed=1
    )


def budget(**spec: object) -> Manifest:
    return Manifest({"spec": spec})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("spec", "expected", "desired"),
    [
        ({"maxUnavailable": 1}, 3, 2),
        ({"maxUnavailable": "50%"}, 3, 1),
        ({"maxUnavailable": 9}, 3, 0),
        ({"minAvailable": 2}, 5, 2),
        ({"minAvailable": "51%"}, 5, 3),
        ({"minAvailable": 9}, 5, 5),
    ],
)
def test_percentages_are_rounded_up(spec: dict[str, object], expected: int, desired: int) -> None:
    assert desired_healthy(budget(**spec), expected) == desired


def test_a_ready_pod_costs_the_budget() -> None:
    whole, short = Headcount(expected=3, healthy=3), Headcount(expected=3, healthy=2)
    assert disruptions_allowed(budget(maxUnavailable=1), whole) == 1
    assert may_evict(budget(maxUnavailable=1), whole, is_ready=True)
    assert not may_evict(budget(maxUnavailable=1), short, is_ready=True)


def test_an_unready_pod_may_go_while_the_others_are_enough() -> None:
    enough, short = Headcount(expected=3, healthy=2), Headcount(expected=3, healthy=1)
    assert may_evict(budget(maxUnavailable=1), enough, is_ready=False)
    assert not may_evict(budget(maxUnavailable=1), short, is_ready=False)
    always = budget(maxUnavailable=1, unhealthyPodEvictionPolicy="AlwaysAllow")
    assert may_evict(always, short, is_ready=False)
