"""The console's files: whole, told to browsers as they should be treated, and nothing beside them."""

import gzip
import hashlib
import re
from pathlib import Path

import pytest
from yarl import URL

from http_api.console.files import ConsoleFiles, console_files
from http_api.routes import ROUTES

STATIC = Path(__file__).parents[4] / "http_api" / "console" / "static"
NAMES = sorted(
    path.relative_to(STATIC).as_posix()
    for path in STATIC.rglob("*")
    if path.is_file() and path.name != "missing.html"
)
TEXTS = [name for name in NAMES if name.endswith((".js", ".html", ".css", ".svg"))]
PLAIN = {"Accept-Encoding": "identity"}
OWN = [name for name in TEXTS if not name.startswith("vendor/")]


def text_of(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


async def test_the_page_is_behind_a_slash_so_that_its_files_lie_beside_it(api):
    answer = await api.get("/console", allow_redirects=False)
    # Without a slash in front: a proxy may serve this node below a path of its own.
    assert (answer.status, answer.headers["Location"], answer.body) == (302, "console/", b"")
    assert (await api.get("/console/", headers=PLAIN)).body == (STATIC / "index.html").read_bytes()


@pytest.mark.parametrize("name", NAMES)
async def test_each_file_is_served_as_it_is_by_its_type(api, name):
    answer = await api.get(f"/console/{name}", headers=PLAIN)
    assert answer.body == (STATIC / name).read_bytes()
    types = {"js": "javascript", "css": "css", "html": "html", "svg": "svg", "txt": "plain"}
    assert types[name.rpartition(".")[2]] in answer.headers["Content-Type"]


@pytest.mark.parametrize(
    "path", ["/console", "/console/", "/console/app.js", "/console/nothing", "/console/%3Cb%3E"]
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST"])
async def test_every_answer_binds_the_browser_to_this_node(api, method, path):
    headers = (await api.call(method, path, allow_redirects=False)).headers
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert policy.pop("require-trusted-types-for") == "'script'"
    assert set(policy.values()) == {"'self'", "'none'"}
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


async def test_a_file_that_the_browser_has_is_not_sent_again(api):
    first = await api.get("/console/app.js")
    assert first.headers["Cache-Control"] == "no-cache"
    tag = first.headers["ETag"]
    again = await api.get("/console/app.js", headers={"If-None-Match": f'"other", {tag}'})
    assert (again.status, again.body, again.headers["ETag"]) == (304, b"", tag)
    assert (await api.get("/console/app.js", headers={"If-None-Match": '"other"'})).status == 200


@pytest.mark.parametrize(
    ("accepted", "is_packed"),
    [("gzip, deflate, br", True), ("gzip", True), ("gzip;q=0", False), ("br", False), ("", False)],
)
async def test_who_takes_gzip_gets_the_same_in_fewer_bytes(api, accepted, is_packed):
    headers = {"Accept-Encoding": accepted}
    async with api.session.get(
        f"{api.base_url}/console/app.js", headers=headers, auto_decompress=False
    ) as answer:
        body = await answer.read()
        assert ("Content-Encoding" in answer.headers) is is_packed
        assert answer.headers["Vary"] == "Accept-Encoding"
    whole = (STATIC / "app.js").read_bytes()
    assert (gzip.decompress(body) if is_packed else body) == whole


async def test_a_tag_tells_a_files_bytes_apart():
    tags = set()
    for body in (b"a", b"b"):
        found = ConsoleFiles({"missing.html": b"", "app.js": body})
        tags.add(found._files["app.js"].tag)
    assert len(tags) == 2


async def test_heads_have_the_headers_alone(api):
    answer = await api.call("HEAD", "/console/app.js", headers=PLAIN)
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["Content-Length"] == str((STATIC / "app.js").stat().st_size)


async def test_files_are_only_read(api):
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        answer = await api.call(method, "/console/app.js")
        assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD, OPTIONS")
    answer = await api.call("OPTIONS", "/console/app.js")
    assert (answer.status, answer.headers["Allow"]) == (204, "GET, HEAD, OPTIONS")


@pytest.mark.parametrize(
    "name",
    [
        "nothing",
        "files.py",
        "../files.py",
        "..%2ffiles.py",
        "%2e%2e/files.py",
        "vendor/../../files.py",
        "vendor",
        "vendor/",
        "/etc/passwd",
        "/app.js",
        "app.js/",
        "./app.js",
        "app%2ejs",
        "APP.JS",
        "missing.html",
        "__init__.py",
        "<script>alert(1)</script>",
        "%3Cscript%3E",
        "%ff",
        "x" * 8000,
        "a/b/c",
    ],
)
async def test_nothing_but_the_files_is_there(api, name):
    url = URL(f"{api.base_url}/console/{name}", encoded=True)
    async with api.session.get(url) as response:
        body = await response.read()
        assert response.status == 404
    assert b"{" not in body
    assert b"alert" not in body
    assert b"import " not in body


async def test_what_is_missing_leads_back_however_deep_it_was_looked_for(api):
    for path, back in (("x", "./"), ("x/", "../"), ("a/b/c", "../../")):
        body = (await api.get(f"/console/{path}")).body.decode()
        assert f'href="{back}console.css"' in body
        assert f'<a href="{back}">' in body


async def test_other_paths_are_the_apis(api):
    for path in ("/consoles", "/Console", "/x/console/", "/"):
        assert "Content-Security-Policy" not in (await api.get(path)).headers
    assert (await api.get("/consoles")).error == (404, 404)


async def test_no_endpoint_is_in_the_consoles_place():
    assert not [route.path for route in ROUTES if route.path.startswith("/console")]


@pytest.mark.parametrize("name", TEXTS)
def test_no_file_names_another_host(name):
    found = set(re.findall(r"https?://[\w.]+", text_of(name)))
    # Names of markup languages, which nobody asks.
    assert found <= {"http://www.w3.org"}


@pytest.mark.parametrize("name", OWN)
def test_text_never_becomes_markup_or_code(name):
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|javascript:"
        r'|<script(?! type="module" src=)| on\w+="| style="'
    )
    assert not re.findall(forbidden, text_of(name))


def test_every_import_is_of_a_file_that_is_there():
    for name in TEXTS:
        folder = (STATIC / name).parent
        for path in re.findall(r'(?:from ?|import ?)"(\.[^"]+)"', text_of(name)):
            assert (folder / path).is_file(), (name, path)
        assert not re.findall(r'from ?"[^.]', text_of(name))


def test_every_own_module_is_imported():
    used = {path for name in TEXTS for path in re.findall(r'"\./([\w/]+\.js)"', text_of(name))}
    used |= set(re.findall(r'src="([\w.]+)"', text_of("index.html")))
    assert {name for name in NAMES if name.endswith(".js") and "/" not in name} <= used


def test_other_peoples_files_are_those_that_their_list_names():
    listed = dict(
        re.findall(r"^  (\S+) +([0-9a-f]{64})$", text_of("vendor/LICENSES.txt"), re.MULTILINE)
    )
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (STATIC / "vendor").glob("*.js")
    }
    assert listed == found


def test_the_page_stays_small():
    sizes = {name: (STATIC / name).stat().st_size for name in TEXTS}
    assert max(sizes.values()) < 32 << 10
    scripts = [(STATIC / name).read_bytes() for name in TEXTS if name.endswith(".js")]
    assert sum(len(gzip.compress(body)) for body in scripts) < 120_000


def test_files_are_read_once():
    assert console_files() is console_files()
