"""The walk of docs/security.md on the chart's pods, and what its later sections promise an operator there."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helm.podlab.release import (
    CLIENT,
    HEADLESS,
    NAME,
    SET,
    URL,
    Release,
    milena_lab,
)
from tests.support.http.console import STEP_END, Step, steps

pytestmark = [pytest.mark.integration, pytest.mark.long]

TEXT = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
WALK_S = 300.0
SECRET_OF_SHOP = "/tmp/walk/again.token"


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """A release of the defaults. The tests that use it are chapters of one story."""
    with milena_lab(tmp_path_factory.mktemp("walk")) as running:
        running.helm("install")
        running.start_client()
        yield running


def here(text: str) -> str:
    """A command of the page, or what it prints, where the nodes are pods."""
    for ordinal in range(3):
        text = text.replace(f"localhost:{8082 + ordinal}", f"{SET}-{ordinal}.{HEADLESS}:8082")
    return text


def in_client(release: Release, script: str) -> str:
    """What a shell prints in a pod that comes as the first user."""
    lines = f"export MILENA_URL={URL}; mkdir -p /tmp/walk; cd /tmp/walk; {script}"
    return release.lab.execute(CLIENT, "bash", "-uc", lines, timeout_s=WALK_S).out


def test_the_walk_of_the_page_holds(closed: Release) -> None:
    """But for its first commands: here the chart has made the password, and told it."""
    walk = [step for step in steps(TEXT) if "admin-password" not in step.command]
    assert len(walk) == len(steps(TEXT)) - 2
    script = "".join(f"{here(step.command)}\necho '{STEP_END}'\n" for step in walk)
    printed = in_client(closed, f"exec 2>complaints\n{script}").split(f"{STEP_END}\n")[:-1]
    assert len(printed) == len(walk)
    for step, output in zip(walk, printed, strict=True):
        Step(step.command, here(step.expected)).check(output)
    complaints = in_client(closed, "cat complaints").splitlines()
    # The service was named, and not the nodes: docs/kubernetes.md says so.
    assert all(line.startswith("nodes that are not asked") for line in complaints), complaints


def test_who_uses_up_its_quota_is_told_when_to_come_again(closed: Release) -> None:
    made = in_client(closed, f"umask 077; milena tokens create --user shop --out {SECRET_OF_SHOP}")
    assert made, "a token"
    assert "request_rate" in in_client(closed, "milena quotas set request_rate=1 --user shop")
    look = (
        f'curl -s -o /dev/null -w "%{{http_code}} %header{{retry-after}}\\n" '
        f'-H "Authorization: Bearer $(cat {SECRET_OF_SHOP})" {URL}/topics'
    )
    answers = in_client(closed, f"for _ in $(seq 20); do {look}; done").split("\n")
    assert "200 " in answers
    assert any(answer.startswith("429 ") and int(answer[4:]) >= 1 for answer in answers), answers
    assert in_client(closed, "milena topics list"), "others have all that they had"


def test_every_pods_log_tells_who_changed_what_and_no_secret(closed: Release) -> None:
    token = in_client(closed, f"cat {SECRET_OF_SHOP}").strip()
    assert token.startswith("mln_")
    for pod in closed.node_pods(3):
        log = closed.lab.log(pod)
        lines = [json.loads(line) for line in log.splitlines() if '"milena.audit"' in line]
        told = {(line["principal"], line["action"]) for line in lines}
        actions = ("put_user", "alter_acls", "create_token", "delete_tokens", "alter_quota")
        assert told >= {("User:admin", action) for action in actions}, pod
        assert token not in log
        assert token.split("_", 2)[2] not in log


def test_the_release_tests_itself_after_all_that(closed: Release) -> None:
    assert "Succeeded" in closed.lab.helm("test", NAME)
