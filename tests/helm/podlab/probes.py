"""Probes: what is asked how often, and what a row of answers means. Pure.

Source: https://kubernetes.io/docs/concepts/configuration/liveness-readiness-startup-probes/
"""

from dataclasses import dataclass

from tests.helm.podlab.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRule:
    """A probe's handler and numbers, the defaults of Kubernetes filled in."""

    handler: Manifest
    initial_delay_s: float
    period_s: float
    timeout_s: float
    success_threshold: int
    failure_threshold: int


def parse_probe(container: Manifest, name: str) -> ProbeRule | None:
    """A container's ``startupProbe``, ``readinessProbe`` or ``livenessProbe``, if it has one."""
    if not container.has(name):
        return None
    probe = container.part(name)
    return ProbeRule(
        handler=probe,
        initial_delay_s=probe.number("initialDelaySeconds"),
        period_s=probe.number("periodSeconds", 10),
        timeout_s=probe.number("timeoutSeconds", 1),
        success_threshold=probe.number("successThreshold", 1),
        failure_threshold=probe.number("failureThreshold", 3),
    )


@dataclass
class ProbeTally:
    """Counts answers in a row. ``note`` says what is known for sure, or None while it is not."""

    rule: ProbeRule
    successes: int = 0
    failures: int = 0

    def note(self, *, is_good: bool) -> bool | None:
        """One more answer: True or False once enough of the same came in a row."""
        if is_good:
            self.successes, self.failures = self.successes + 1, 0
            return True if self.successes >= self.rule.success_threshold else None
        self.successes, self.failures = 0, self.failures + 1
        return False if self.failures >= self.rule.failure_threshold else None
