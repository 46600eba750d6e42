"""How many pods of a PodDisruptionBudget may be evicted. Pure.

Percentages are of the expected number of pods and are rounded up, for both fields.
Source: https://kubernetes.io/docs/tasks/run-application/configure-pdb/
"""

import math
from dataclasses import dataclass

from tests.helm.podlab.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Headcount:
    """Pods under a budget: how many their controllers want, and how many are ready now."""

    expected: int
    healthy: int


def desired_healthy(budget: Manifest, expected: int) -> int:
    """How many pods must stay healthy."""
    if budget.has("spec.minAvailable"):
        return min(_count(budget.scalar("spec.minAvailable"), expected), expected)
    unavailable = _count(budget.scalar("spec.maxUnavailable", "1"), expected)
    return max(expected - unavailable, 0)


def disruptions_allowed(budget: Manifest, pods: Headcount) -> int:
    """How many healthy pods may go now."""
    return max(pods.healthy - desired_healthy(budget, pods.expected), 0)


def may_evict(budget: Manifest, pods: Headcount, *, is_ready: bool) -> bool:
    """Whether one more pod may go: a ready one costs the budget, an unready one as the policy says."""
    if is_ready:
        return disruptions_allowed(budget, pods) > 0
    if budget.text("spec.unhealthyPodEvictionPolicy", "IfHealthyBudget") == "AlwaysAllow":
        return True
    return pods.healthy >= desired_healthy(budget, pods.expected)


def _count(text: str, expected: int) -> int:
    return math.ceil(expected * int(text[:-1]) / 100) if text.endswith("%") else int(text)
