"""Who a query asks as: what options and the environment say, what contradicts, what goes to tasks; nothing shows it."""

import pickle

import pytest

from milena import BadCredentialsError, Credentials, Secret
from milena.cluster.credentials import ANONYMOUS, NAMES
from milena.cluster.view import NodeView
from spark_ext.cluster.questions import all_urls
from spark_ext.errors import OptionError
from spark_ext.options.credentials import CREDENTIALS, carried, options_of
from spark_ext.options.ignored import warn_ignored
from spark_ext.options.parsing import (
    Fetching,
    parse_read_options,
    parse_stream_options,
    parse_write_options,
    parse_write_stream_options,
)

CANARY = "canary-6c1f"
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
JAAS = "kafka.sasl.jaas.config"
PROTOCOL = "kafka.security.protocol"


def parse(options=None, *, environment=None, url="http://a:1"):
    given = {"url": url, "subscribe": "t", **(options or {})}
    return parse_read_options(given, environment or {}).fetching.credentials


def refusal(options, **others):
    with pytest.raises(OptionError) as caught:
        parse(options, **others)
    assert "\n" not in caught.value.message
    assert CANARY not in caught.value.message
    return caught.value.message


def test_every_attribute_has_an_option():
    assert tuple(CREDENTIALS.values()) == NAMES
    assert parse() == ANONYMOUS
    assert parse({"milena.token": "x"}) == Credentials(token=Secret("x"))
    assert parse({"MILENA.TOKENFILE": "f", "milena.ca": "c"}) == Credentials(token_file="f", ca="c")
    named = {"milena.user": "u", "milena.passwordFile": "p", "milena.cert": "c", "milena.key": "k"}
    assert parse(named) == Credentials(user="u", password_file="p", cert="c", key="k")
    assert options_of(parse(named)) == named


def test_reads_writes_and_streams_take_the_same():
    who = {"url": "http://a:1", "milena.user": "u", "milena.password": "p"}
    wanted = Credentials(user="u", password=Secret("p"))
    stream = parse_stream_options({**who, "subscribe": "t"}, {})
    assert stream.read.fetching.credentials == wanted
    assert parse_write_options(who, {}).credentials == wanted
    assert parse_write_stream_options({**who, "transactionalId": "x"}, {}).credentials == wanted


def test_options_go_before_the_environment():
    environment = {"MILENA_TOKEN_FILE": "f", "MILENA_CA": "c", "MILENA_TOKEN": ""}
    assert parse(environment=environment) == Credentials(token_file="f", ca="c")
    said = {"milena.user": "u", "milena.password": "p"}
    assert parse(said, environment=environment) == Credentials(
        user="u", password=Secret("p"), ca="c"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"milena.token": CANARY, "milena.tokenFile": "f"}, "token and token_file: give one of"),
        ({"milena.token": CANARY, "milena.user": "u"}, "token and user: give one of the two"),
        ({"milena.password": CANARY}, "password: give user, too"),
        ({"milena.user": "u"}, "user: give password_file or password, too"),
        ({"milena.key": "k"}, "key: give cert, too"),
        ({"milena.token": f"{CANARY} x"}, "token must be one word of visible ASCII"),
        ({"milena.tokn": CANARY}, "milena.tokn: no such option; did you mean milena.token?"),
        ({"url": f"http://u:{CANARY}@a:1"}, "http://a:1 is not a URL of a node"),
    ],
)
def test_what_contradicts_is_refused_in_the_clients_words(options, words):
    assert words in refusal(options)


@pytest.mark.parametrize(
    ("config", "password"),
    [
        (f'{LOGIN} username="u" password="p w;\\"x";', 'p w;"x'),
        (f"  kafkashaded.{LOGIN}\n  password=p\n  username='u' ;", "p"),
        (f'{LOGIN} username="u" password="p"', "p"),
    ],
)
def test_a_login_of_kafkas_is_a_user_with_a_password(config, password):
    wanted = Credentials(user="u", password=Secret(password))
    environment = {"MILENA_TOKEN_FILE": "f"}
    assert parse({JAAS: config, "kafka.sasl.mechanism": "PLAIN"}, environment=environment) == wanted
    assert parse({JAAS: config, PROTOCOL: "SASL_PLAINTEXT"}) == wanted
    assert parse({JAAS: config, PROTOCOL: "SASL_SSL"}, url="https://a:1") == wanted


def test_settings_of_a_login_that_change_nothing_are_taken(caplog):
    warn_ignored.cache_clear()
    plain = f'{LOGIN} username="u" password="{CANARY}"'
    more = f'{plain} debug=true user_x="{CANARY}";'
    assert parse({JAAS: more}) == parse({JAAS: f"{plain};"})
    assert [line.split(":")[0] for line in caplog.messages] == [
        f"option {name} of {JAAS} is ignored" for name in ("debug", "user_x")
    ]
    assert CANARY not in caplog.text


@pytest.mark.parametrize(
    "config",
    [
        f'{LOGIN} username="u" password="{CANARY};',
        f'{LOGIN} usrname="u" password="{CANARY}";',
        f'{LOGIN} password="{CANARY}";',
        f'org.example.ScramLoginModule required username="u" password="{CANARY}";',
        CANARY,
        "",
    ],
)
def test_another_login_is_refused_without_being_shown(config):
    told = refusal({JAAS: config})
    assert told.startswith(f"{JAAS}: expected …PlainLoginModule required")
    assert "milena.token" in told


SAID = {JAAS: f'{LOGIN} username="u" password="{CANARY}";'}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({**SAID, "milena.user": "v"}, f"{JAAS} and milena.user: give one of the two"),
        ({**SAID, PROTOCOL: "PLAINTEXT"}, "PLAINTEXT does not say who asks"),
        ({**SAID, PROTOCOL: "SASL_SSL"}, "SASL_SSL is https, and http://a:1 is not"),
        ({PROTOCOL: "SASL_PLAINTEXT"}, "SASL_PLAINTEXT says who asks: give"),
        ({PROTOCOL: "TLS"}, "expected PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL, got 'TLS'"),
        ({"kafka.sasl.mechanism": "GSSAPI"}, "expected PLAIN, got 'GSSAPI'; or give milena.token"),
        ({"kafka.sasl.kerberos.service.name": "x"}, "say who asks with milena.token"),
        ({"kafka.security.providers": "x"}, "say who asks with milena.token"),
    ],
)
def test_what_is_of_kafkas_and_cannot_be(options, words):
    assert words in refusal(options)


def test_a_protocol_that_agrees_with_the_urls_is_taken():
    assert parse({PROTOCOL: "plaintext"}, url="a:1, http://b:1") == ANONYMOUS
    assert parse({PROTOCOL: "SSL"}, url="https://a:1") == ANONYMOUS
    assert parse({PROTOCOL: "SASL_PLAINTEXT", "milena.token": "x"}) == Credentials(
        token=Secret("x")
    )


def test_tasks_have_secrets_and_no_files(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("a:b\n")
    by_token = carried(Credentials(token_file=secret, ca="c"))
    assert by_token == Credentials(token=Secret("a:b"), ca="c")
    by_password = carried(Credentials(user="u", password_file=secret))
    assert by_password == Credentials(user="u", password=Secret("a:b"))
    assert carried(by_password) is by_password
    assert pickle.loads(pickle.dumps(by_token)) == by_token
    secret.write_text(CANARY + " more")
    with pytest.raises(BadCredentialsError) as caught:
        carried(Credentials(token_file=secret))
    assert CANARY not in str(caught.value)


def test_nothing_prints_a_secret():
    options = parse_write_options({"url": "a:1", "milena.token": CANARY}, {})
    assert CANARY not in f"{options!r} {options}"
    assert CANARY not in repr(Fetching(urls=("a:1",), credentials=options.credentials))


class Metadata:
    """Of a cluster whose nodes name themselves so."""

    def __init__(self, *urls):
        self._urls = urls

    @property
    def metadata(self):
        return self

    async def view(self):
        self.nodes = [
            NodeView(node_id=n, url=url, rack=None, is_live=True, is_draining=False)
            for n, url in enumerate(self._urls)
        ]
        return self


async def test_tasks_send_credentials_to_no_node_that_the_driver_would_not():
    cluster = Metadata("http://a:2", "http://elsewhere:1", "https://b:1")
    asked_by_all = Fetching(urls=("http://a:1",))
    assert await all_urls(cluster, asked_by_all) == (
        "http://a:1",
        "http://a:2",
        "http://elsewhere:1",
        "https://b:1",
    )
    closed = Fetching(urls=("http://a:1",), credentials=Credentials(token=Secret("x")))
    assert await all_urls(cluster, closed) == ("http://a:1", "http://a:2", "https://b:1")
