"""The judge must find every fault that is planted into the fake cluster, and nothing in the correct one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.judge.driver import Driver, Plan, plan
from tests.judge.fake import FAULTS, STEPS, FakeCluster
from tests.judge.rules import RULES, Verdicts


def judge(faults: frozenset[str], seeds: int, until: tuple[str, ...] = ()) -> Verdicts:
    """Judge the fake cluster with faults over several seeds, until one of some rules is broken."""
    verdicts = Verdicts()
    for seed in range(seeds):
        fake = FakeCluster(faults)
        driver = Driver(fake, (1, 2, 3), verdicts, "c", clock=fake.now, sleep=fake.sleep)
        drawn = plan(f"fake/{seed}", kinds=STEPS, workers=1)
        episode = Plan(drawn.seed, drawn.steps)
        world = driver.world(episode, f"f{seed}")
        driver.prepare(episode, world)
        driver.run(episode, world)
        driver.end(episode, world)
        if any(finding.rule in until for finding in verdicts.findings):
            break
    return verdicts


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    verdicts = judge(frozenset(), 12)
    assert [finding.line() for finding in verdicts.findings] == []
    assert {"J-value", "J-read-ack", "J-tail", "J-lag", "J-successor", "J-tx-isolation"} <= set(
        verdicts.checks
    )


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_planted_fault_is_found(fault: str) -> None:
    verdicts = judge(frozenset({fault}), 60, FAULTS[fault])
    found = {finding.rule for finding in verdicts.findings}
    assert found & set(FAULTS[fault]), [finding.line() for finding in verdicts.findings]


def test_every_planted_fault_names_rules_that_there_are() -> None:
    assert {rule for rules in FAULTS.values() for rule in rules} <= set(RULES)


def test_documents_name_the_rules_that_there_are() -> None:
    docs = Path(__file__).resolve().parents[2] / "docs"
    guarantees = (docs / "guarantees.md").read_text(encoding="utf-8")
    named = {
        rule
        for line in re.findall(r"judge: ([^|]*)\|", guarantees)
        for rule in re.findall(r"`(J-[a-z-]+)`", line)
    }
    assert named
    assert named <= set(RULES)
    told = re.findall(
        r"^\| `(J-[a-z-]+)` \| (.*) \|$",
        (docs / "judge.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert dict(told) == RULES
