"""Rules of what tasks ask as: a token of their own, made once for a while, or as the driver where there can be none."""

import logging
from types import SimpleNamespace

import pytest

from milena.cluster.access_views import AccessView, NewToken, TokenView
from milena.cluster.credentials import ANONYMOUS, Credentials
from milena.errors import (
    AnswerError,
    CredentialsRefusedError,
    NotNowError,
    NotPermittedError,
    TargetNotFoundError,
)
from milena.model.secret import Secret
from spark_ext.cluster.task_tokens import (
    GRANTS_MAX,
    TaskTokens,
    read_grants,
    transaction_grants,
    write_grants,
)
from spark_ext.errors import OptionError
from spark_ext.options.credentials import TaskToken, TaskTokenRule
from tests.support.time.virtual_time import LoopClock, after, virtual

HOUR_MS = 3_600_000
DRIVERS = Credentials(user="ada", password=Secret("canary"), ca="c", client_id="q")
GRANTS = read_grants(["clicks"])


def rule(use=TaskToken.AUTO, lifetime_ms=HOUR_MS):
    return TaskTokenRule(use=use, lifetime_ms=lifetime_ms)


class Cluster:
    """Says who asks, and makes tokens; ``refusals`` come first, one a token that is asked for."""

    def __init__(self, mode="required", user="ada", lifetime_ms_max=None):
        self.view = AccessView(
            mode=mode, version=1, principal="User:ada", user=user, token_id=None, is_superuser=False
        )
        self.made = []
        self.refusals = []
        self.lifetime_ms_max = lifetime_ms_max
        self.admin = SimpleNamespace(url="http://a:1", access=self)

    async def state(self):
        if isinstance(self.view, Exception):
            raise self.view
        return self.view

    async def create_token(self, user, *, note, lifetime_ms, grants):
        if self.refusals:
            raise self.refusals.pop(0)
        lifetime_ms = min(lifetime_ms, self.lifetime_ms_max or lifetime_ms)
        self.made.append((user, lifetime_ms, grants))
        view = TokenView(
            token_id=str(len(self.made)),
            user=user,
            note=note,
            grants=grants,
            # A clock of the cluster's own.
            created_ms=17,
            expires_ms=17 + lifetime_ms,
        )
        return NewToken(view=view, token=Secret(f"minted-{len(self.made)}"))


def refusal(kind, message="no"):
    return kind(message, status=403, error_code=40301)


async def asked(tokens, cluster, given=DRIVERS, using=None, grants=GRANTS):
    return await tokens.credentials(cluster, given, using or rule(), grants)


@virtual
async def test_tasks_get_a_token_that_is_good_for_what_they_do_and_for_a_while():
    cluster = Cluster()
    found = await asked(TaskTokens(LoopClock()), cluster)
    assert found == Credentials(token=Secret("minted-1"), ca="c", client_id="q")
    assert cluster.made == [("ada", HOUR_MS, GRANTS)]


@virtual
async def test_a_token_serves_until_half_of_its_time_is_over():
    cluster, tokens = Cluster(), TaskTokens(LoopClock())
    first = await asked(tokens, cluster)
    await after(HOUR_MS / 2 - 1)
    assert await asked(tokens, cluster) == first
    await after(1)
    assert await asked(tokens, cluster) != first
    await asked(tokens, cluster, grants=read_grants(["other"]))
    await asked(tokens, cluster, given=Credentials(token=Secret("another")))
    assert len(cluster.made) == 4


@virtual
async def test_a_secret_that_is_replaced_in_its_file_makes_another_one(tmp_path):
    cluster, tokens = Cluster(), TaskTokens(LoopClock())
    file = tmp_path / "token"
    given = Credentials(token_file=file)
    file.write_text("mln_first_secret")
    first = await asked(tokens, cluster, given=given)
    assert await asked(tokens, cluster, given=given) == first
    file.write_text("mln_second_secret")
    assert await asked(tokens, cluster, given=given) != first, "it goes with the one that made it"


@virtual
async def test_one_that_ends_with_the_drivers_own_token_is_renewed_by_that():
    cluster, tokens = Cluster(lifetime_ms_max=60_000), TaskTokens(LoopClock())
    first = await asked(tokens, cluster)
    await after(30_000)
    assert await asked(tokens, cluster) != first


@virtual
async def test_nobody_is_asked_where_there_is_nothing_to_hide():
    cluster = Cluster()
    tokens = TaskTokens(LoopClock())
    assert await asked(tokens, cluster, given=ANONYMOUS) is ANONYMOUS
    certified = Credentials(cert="cert.pem", client_id="q")
    assert await asked(tokens, cluster, given=certified) is certified
    assert await asked(tokens, cluster, using=rule(TaskToken.NEVER)) is DRIVERS
    assert cluster.made == []


@pytest.mark.parametrize("view", [None, refusal(TargetNotFoundError)])
@virtual
async def test_an_open_cluster_is_as_it_was(view, caplog):
    cluster = Cluster(mode="off", user=None)
    cluster.view = view or cluster.view
    with caplog.at_level(logging.INFO):
        assert await asked(TaskTokens(LoopClock()), cluster) is DRIVERS
    assert caplog.text == ""


@virtual
async def test_who_can_have_no_tokens_hands_on_what_it_has_and_says_so_once(caplog):
    """One whom an issuer vouches for: the cluster has no user of that name."""
    cluster, tokens = Cluster(user=None), TaskTokens(LoopClock())
    for _ in range(3):
        assert await asked(tokens, cluster) is DRIVERS
    (told,) = (record.getMessage() for record in caplog.records)
    assert told == (
        "tasks ask as the driver does, with its secret: User:ada is not a user of the cluster's own, and has no tokens"
    )
    with pytest.raises(OptionError, match=r"milena\.taskToken: .*User:ada is not a user"):
        await asked(tokens, cluster, using=rule(TaskToken.ALWAYS))


@virtual
async def test_a_full_cluster_is_told_and_asked_again_later(caplog):
    cluster, tokens = Cluster(), TaskTokens(LoopClock())
    cluster.refusals = [refusal(AnswerError, "there are 100000 tokens")]
    assert await asked(tokens, cluster) is DRIVERS
    assert "there are 100000 tokens" in caplog.text
    assert "canary" not in caplog.text
    await after(HOUR_MS / 2)
    assert (await asked(tokens, cluster)).token == Secret("minted-1")


@virtual
async def test_a_token_with_grants_makes_one_with_the_same():
    cluster = Cluster()
    cluster.refusals = [refusal(NotPermittedError)]
    await asked(TaskTokens(LoopClock()), cluster)
    assert cluster.made == [("ada", HOUR_MS, None)]


@virtual
async def test_what_can_pass_is_waited_for_and_wrong_credentials_are_not_handed_on():
    cluster = Cluster()
    cluster.refusals = [refusal(NotNowError), refusal(NotNowError)]
    assert (await asked(TaskTokens(LoopClock()), cluster)).token == Secret("minted-1")
    cluster.view = refusal(CredentialsRefusedError)
    with pytest.raises(CredentialsRefusedError):
        await asked(TaskTokens(LoopClock()), cluster)


def rights(grants):
    return {(g.resource_type, g.name, *g.operations, g.pattern_type) for g in grants}


def test_grants_are_for_what_the_tasks_do():
    assert rights(read_grants({"a", "b"})) == {
        ("TOPIC", "a", "READ", "LITERAL"),
        ("TOPIC", "b", "READ", "LITERAL"),
    }
    many = [str(n) for n in range(GRANTS_MAX + 1)]
    assert rights(read_grants(many)) == {("TOPIC", "*", "READ", "LITERAL")}
    assert rights(write_grants("a")) == {("TOPIC", "a", "WRITE", "LITERAL")}
    assert ("CLUSTER", "kafka-cluster", "CREATE", "LITERAL") in rights(write_grants(None))
    assert rights(transaction_grants("a", "id", None, is_prefix=False)) == {
        ("TOPIC", "a", "WRITE", "LITERAL"),
        ("TRANSACTIONAL_ID", "id", "WRITE", "LITERAL"),
    }
    assert rights(transaction_grants("a", "id", "spark-", is_prefix=True)) == {
        ("TOPIC", "a", "WRITE", "LITERAL"),
        ("TOPIC", "a", "READ", "LITERAL"),
        ("TRANSACTIONAL_ID", "id", "WRITE", "LITERAL"),
        ("GROUP", "spark-", "READ", "PREFIXED"),
    }
