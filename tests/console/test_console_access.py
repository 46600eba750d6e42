"""A closed cluster in a browser: signing in, what one may and may not, users, tokens and entries."""

import asyncio
import base64
import json

import pytest

from milena import Credentials, Secret
from tests.support.clusters.live_cluster import call, ok, running_cluster
from tests.support.http.console_forms import open_form, until_enabled

pytestmark = [pytest.mark.integration, pytest.mark.long]

PASSWORD = "correct horse <battery>"
ADMIN = Credentials(user="admin", password=Secret(PASSWORD))
ROWS = "[...document.querySelectorAll('[aria-label={}] tbody tr')].map((r) => r.innerText.split('\\t'))"


def basic(user: str, password: str = PASSWORD) -> dict[str, str]:
    given = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"Authorization": f"Basic {given}"}


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    """A node that asks who comes: the first user, and alice, who may look at the cluster and read orders."""
    folder = tmp_path_factory.mktemp("closed")
    file = folder / "password"
    file.write_text(PASSWORD, encoding="utf-8")
    with running_cluster(
        folder / "nodes", node_count=1, admin_password_file=file, credentials=ADMIN
    ) as cluster:
        node = cluster.nodes[0]

        def do(line: str, body: object) -> object:
            return ok(call(node, line, body, headers=basic("admin")))

        do("PUT /users/alice", {"password": PASSWORD})
        cluster_id = ok(call(node, "GET /metadata", headers=basic("admin")))["cluster_id"]
        entry = {"principal": "User:alice", "host": "*", "pattern_type": "LITERAL"}
        for kind, name, operation in (
            ("CLUSTER", "kafka-cluster", "DESCRIBE"),
            ("TOPIC", "orders", "READ"),
        ):
            what = {"resource_type": kind, "resource_name": name, "operation": operation}
            do(f"POST /v3/clusters/{cluster_id}/acls", {**entry, **what, "permission": "ALLOW"})
        for topic in ("orders", "salaries"):
            do("POST /admin/topics", {"topic_name": topic, "partitions_count": 1})
        do("POST /topics/orders", {"records": [{"value": "first"}]})
        yield node


async def sign_in(browser, node, user, place="#/", password=PASSWORD):
    page = await browser.open(f"{node.url}/console/{place}")
    await page.fill("input[name=user]", user)
    await page.fill("input[name=password]", password)
    await page.click(".login button")
    return page


def tokens_of(node, user):
    return ok(call(node, f"GET /users/{user}/tokens", headers=basic("admin")))["tokens"]


async def test_a_stranger_is_asked_who_they_are_and_told_what_was_wrong(browser, closed):
    page = await sign_in(browser, closed, "alice", password="wrong")
    await page.until_shown("Credentials refused")
    assert await page.run("document.querySelector('input[name=user]') !== null")
    # No box of the browser's own is open: the page still answers, and nothing of the cluster is in it.
    assert "orders" not in await page.run("document.body.innerText")
    assert not page.faults


async def test_the_password_becomes_a_token_that_nothing_but_the_tab_has(browser, closed):
    page = await sign_in(browser, closed, "alice")
    await page.until_shown("Healthy")
    await page.until_shown("User:alice")
    (token,) = await asyncio.to_thread(tokens_of, closed, "alice")
    assert token["note"] == "console"
    stored = "JSON.stringify([{...localStorage}, document.cookie, location.href])"
    assert await page.run(stored) == json.dumps(
        [{}, "", f"{closed.url}/console/#/"], separators=(",", ":")
    )
    kept = json.loads(await page.run("Object.values(sessionStorage).join()"))
    assert (kept["user"], kept["tokenId"]) == ("alice", token["token_id"])
    assert PASSWORD not in json.dumps(kept)
    assert kept["endsMs"] <= token["expires_ms"] + 60_000
    # What is shown for a shell has no secret in it.
    assert "$(cat milena.token)" in await page.run(
        "document.querySelector('.curl pre').textContent"
    )
    assert "mln_" not in await page.run("document.documentElement.outerHTML")
    # Loaded again it is as it was; a tab that is opened beside it has none.
    await page.call("Page.reload")
    await page.until_shown("Healthy")
    await page.until_shown("User:alice")
    beside = await browser.open(f"{closed.url}/console/")
    await beside.until("document.querySelector('input[name=user]') !== null")
    await asyncio.to_thread(
        call,
        closed,
        f"DELETE /users/alice/tokens/{token['token_id']}",
        headers=basic("admin"),
    )
    # A token that was deleted is forgotten, too.
    await page.call("Page.reload")
    await page.until("document.querySelector('input[name=user]') !== null")
    assert await page.run("sessionStorage.length") == 0
    page = await sign_in(browser, closed, "alice")
    await page.click("button", "Sign out")
    await page.until("document.querySelector('input[name=user]') !== null")
    assert await page.run("sessionStorage.length") == 0
    while await asyncio.to_thread(tokens_of, closed, "alice"):
        await asyncio.sleep(0.05)
    assert not page.faults


async def test_a_session_that_is_over_is_not_restored_and_a_given_token_is_not_kept(
    browser, closed
):
    made = ok(
        await asyncio.to_thread(
            call, closed, "POST /users/alice/tokens", {"note": "own"}, headers=basic("admin")
        )
    )
    page = await browser.open(f"{closed.url}/console/")
    await page.choose(".login select", "token")
    await page.fill("input[name=token]", made["token"])
    await page.click(".login button")
    await page.until_shown("User:alice")
    assert await page.run("sessionStorage.length") == 0
    await page.call("Page.reload")
    await page.until("document.querySelector('input[name=user]') !== null")
    over = {"header": f"Bearer {made['token']}", "endsMs": 1}
    await page.run(
        "import('./api.js').then(({ credentials }) => credentials.take("
        f"{{ ...{json.dumps(over)}, endsMs: Date.now() + 1000 }}))"
    )
    await page.until_shown("User:alice")
    await page.run(
        f"sessionStorage.setItem(Object.keys(sessionStorage)[0], {json.dumps(json.dumps(over))})"
    )
    await page.call("Page.reload")
    await page.until("document.querySelector('input[name=user]') !== null")
    assert not page.faults


async def test_who_may_less_sees_less_and_is_told_why(browser, closed):
    page = await sign_in(browser, closed, "alice", "#/topics")
    await page.until("[...document.querySelectorAll('td a')].some((e) => e.innerText === 'orders')")
    assert "salaries" not in await page.run("document.body.innerText")
    await page.run("location.hash = '#/messages/orders?from=live'")
    await page.until_shown("Following: 0 records received")
    written = {"records": [{"value": "<i>live</i>"}]}
    await asyncio.to_thread(call, closed, "POST /topics/orders", written, headers=basic("admin"))
    await page.until_shown("<i>live</i>")
    form = await open_form(page, "Write a record")
    await page.fill(f"{form} label:nth-of-type(4) textarea", "1")
    await page.click(f"{form} form button")
    await page.until_shown("User:alice may not WRITE TOPIC orders")
    await page.run("location.hash = '#/access'")
    await page.until_shown("Only superusers can change the mode")
    await page.run("location.hash = '#/access/admin'")
    await page.until_shown("Only the user and superusers can see these tokens")
    # Her own tokens are hers.
    await page.run("location.hash = '#/access/alice'")
    await page.until(f"{ROWS.format('Tokens')}.some((r) => r[1] === 'console')")
    assert not page.faults


async def test_a_token_that_is_taken_away_ends_the_session(browser, closed):
    page = await sign_in(browser, closed, "alice")
    await page.until_shown("Healthy")
    for token in await asyncio.to_thread(tokens_of, closed, "alice"):
        where = f"DELETE /users/alice/tokens/{token['token_id']}"
        await asyncio.to_thread(call, closed, where, headers=basic("admin"))
    await page.until("document.querySelector('input[name=user]') !== null")
    assert not page.faults


async def test_a_superuser_makes_a_user_an_entry_and_a_token_and_takes_them_back(browser, closed):
    page = await sign_in(browser, closed, "admin", "#/access")
    form = await open_form(page, "Create a user")
    await page.fill(f"{form} input", "shop@example.org")
    await page.click(f"{form} form button")
    await page.until(f"{ROWS.format('Users')}.some((r) => r[0] === 'shop@example.org')")
    form = await open_form(page, "Add an entry")
    await until_enabled(page, form, is_on=False)
    await page.fill(f"{form} label:nth-of-type(1) input", "User:shop@example.org")
    await page.fill(f"{form} label:nth-of-type(5) input", "ord")
    await page.choose(f"{form} label:nth-of-type(6) select", "PREFIXED")
    await page.click(f"{form} form button")
    row = ["User:shop@example.org", "allow", "READ", "topic ord…", "anywhere", "remove …"]
    await page.until(
        f"{ROWS.format('Entries')}.some((r) => r + '' === {json.dumps(','.join(row))})"
    )
    await page.run("location.hash = '#/access/shop%40example.org'")
    form = await open_form(page, "Create a token")
    await page.fill(f"{form} input", "<b>nightly</b>")
    await page.click(f"{form} form button")
    token = await page.until(f"document.querySelector('{form} pre')?.textContent")
    answer = await asyncio.to_thread(
        call, closed, "GET /topics/orders", headers={"Authorization": f"Bearer {token}"}
    )
    assert answer.status == 200
    await page.click("td button", "delete …")
    form = await open_form(page, "Delete a token")
    await page.click(f"{form} form button")
    await page.until_shown("The user has no tokens.")
    form = await open_form(page, "Delete the user")
    await page.fill(f"{form} input", "shop@example.org")
    await page.click(f"{form} form button")
    await page.until("location.hash === '#/access'")
    await page.until(f"{ROWS.format('Users')}.length === 2")
    assert not page.faults
