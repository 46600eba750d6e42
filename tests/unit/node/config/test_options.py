"""Sources and their order, refusals and what they say, and the page that is made from the code."""

import socket
from dataclasses import fields
from pathlib import Path

import pytest

from http_api.ports.node import ApiLimits
from milena.model.errors import StartupError
from node.config.docs import markdown
from node.config.kinds import Address
from node.config.options import OPTIONS, NodeConfig
from node.config.rules import secret_of, warnings_of
from node.config.sources import load_config, variable_of

THREE = "1=a:7082,2=b:7082,3=c:7082"


def load(
    flags: dict[str, object] | None = None, environment: dict[str, str] | None = None, toml=None
):
    return load_config(toml, environment or {}, flags or {})


@pytest.fixture
def toml(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "milena.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_defaults_are_a_node_that_just_works():
    config = load()
    assert config == NodeConfig()
    assert config.is_single
    assert config.creates_topics
    assert config.voters == {1: Address("127.0.0.1", 7082)}
    assert warnings_of(config) == ()


def test_later_sources_win(toml):
    path = toml('node_id = 2\nrack = "file"\nlog_level = "debug"\n')
    environment = {"MILENA_RACK": "environment", "MILENA_LOG_LEVEL": "error", "PATH": "/bin"}
    config = load({"rack": "flag", "log_format": None}, environment, path)
    assert (config.node_id, config.rack, config.log_level) == (2, "flag", "error")


def test_every_default_is_one_that_its_own_kind_allows():
    config = NodeConfig()
    for name, meta in OPTIONS.items():
        value = getattr(config, name)
        if value not in (None, (), {}):
            assert meta.kind.parse(meta.kind.show(value)) == value, name


def test_limits_of_the_api_are_settings_of_the_same_name():
    assert {item.name for item in fields(ApiLimits)} <= set(OPTIONS)
    assert load().limits == ApiLimits()
    assert load({"request_bytes_max": "1_000_000"}).limits.request_bytes_max == 1_000_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nodeid = 1\n", "unknown key 'nodeid' (did you mean 'node_id'?)"),
        ("node_id = 0\n", "node_id = 0: out of range; allowed: 1 to 999999999"),
        ("node_id = true\n", "node_id = True: not a whole number"),
        ("node_id = 1.5\n", "not a whole number"),
        ("rack = 3\n", "rack = 3: not a text"),
        ("node_id = \n", "is not TOML"),
        ("[peers]\n1 = 'a:1'\n2 = 'b:1'\n", "2 voters survive no more failures than 1"),
    ],
)
def test_a_file_is_refused_with_its_name_and_the_reason(toml, text: str, said: str):
    path = toml(text)
    with pytest.raises(StartupError) as caught:
        load(toml=path)
    assert str(path) in caught.value.message
    assert said in caught.value.message


def test_a_file_that_is_missing_is_refused(tmp_path: Path):
    with pytest.raises(StartupError, match=r"configuration file \S+: No such file or directory$"):
        load(toml=tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("MILENA_NODE_ID", "x", "environment variable MILENA_NODE_ID: node_id = 'x': not a whole"),
        ("MILENA_AUTO_CREATE_TOPICS", "maybe", "neither true nor false; allowed: true or false"),
        ("MILENA_LOG_LEVEL", "loud", "allowed: debug or info or warning or error"),
        ("MILENA_LISTEN", "8082", "not HOST:PORT"),
        ("MILENA_LISTEN", "h:99999", "the port is not within 0 to 65535"),
        ("MILENA_PEER_ADVERTISE", "h:0", "the port is not within 1 to 65535"),
        ("MILENA_PEER_ADVERTISE", "0.0.0.0:7082", "no client can connect to a wildcard address"),
        ("MILENA_ADVERTISE", "ftp://x", "not an http:// or https:// URL"),
        ("MILENA_ADVERTISE", "http://x/path", "a path, query or user"),
        ("MILENA_PEERS", "a:1", "'a:1' is not ID=HOST:PORT"),
        ("MILENA_PEERS", "0=a:1", "'0' is not a node id"),
        ("MILENA_PEERS", "1=a:1,1=b:1,2=c:1", "node id 1 stands there twice"),
        ("MILENA_NODEID", "1", "unknown variable MILENA_NODEID (did you mean 'MILENA_NODE_ID'?)"),
        ("MILENA_node_id", "1", "unknown variable MILENA_node_id"),
    ],
)
def test_a_variable_is_refused_with_its_name_its_value_and_what_is_allowed(variable, value, said):
    with pytest.raises(StartupError) as caught:
        load(environment={variable: value})
    assert said in caught.value.message


def test_a_bad_flag_is_named_as_the_user_wrote_it():
    with pytest.raises(StartupError, match="flag --heartbeat-ms: heartbeat_ms = '9': out of range"):
        load({"heartbeat_ms": "9"})


def test_a_secret_is_not_shown_when_it_is_refused():
    with pytest.raises(StartupError) as caught:
        load(environment={"MILENA_CLUSTER_SECRET": "hunter2"})
    assert "hunter2" not in caught.value.message


def test_variables_of_other_programs_and_of_service_links_are_left_alone():
    names = [
        "MILENA_URL",
        "MILENA_PURE",
        "MILENA_SERVICE_HOST",
        "MILENA_SERVICE_PORT_API",
        "MILENA_PORT",
        "MILENA_PORT_8082_TCP_ADDR",
        "MILENA_HEADLESS_SERVICE_PORT",
    ]
    assert load(environment=dict.fromkeys(names, "tcp://10.0.0.1:8082")) == NodeConfig()
    assert not any(variable_of(option) in names for option in OPTIONS)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"peers": THREE, "join": "a:1"}, "a voter or joins as an observer"),
        ({"peers": THREE, "node_id": 4}, "node_id = 4 is not among peers (1, 2, 3)"),
        ({"peers": "1=a:1,2=a:1,3=c:1"}, "the same address"),
        ({"join": "a:1", "peer_listen": "127.0.0.1:0"}, "set peer_advertise"),
        ({"heartbeat_ms": 600}, "more than a third of broker_session_ms = 1500"),
        ({"election_timeout_ms_min": 1000}, "must be below election_timeout_ms_max = 1000"),
        ({"raft_append_period_ms": 250}, "must be below half of election_timeout_ms_min = 500"),
        ({"produce_timeout_ms_max": 100}, "produce_timeout_ms_default is above"),
        ({"tls_cert_file": "c.pem"}, "tls_cert_file is set and tls_key_file is not"),
        ({"peer_tls_ca_file": "c.pem"}, "peer_tls_ca_file is set and peer_tls_cert_file is not"),
        ({"tls_client_ca_file": "c.pem"}, "tls_client_ca_file needs tls_cert_file"),
        ({"cluster_secret": "12345678", "cluster_secret_file": "f"}, "are both set; give one"),
        ({"reset_admin": "true"}, "reset_admin needs admin_password_file"),
        ({"admin_user": "ANONYMOUS"}, "is who comes without credentials; choose another name"),
        ({"peer_listen": "0.0.0.0:7082"}, "open beyond this machine and nothing protects it"),
        ({"peer_listen": "10.1.2.3:7082"}, "set MILENA_CLUSTER_SECRET or cluster_secret_file"),
        ({"kafka_advertise": "a:9092"}, "kafka_advertise is set and kafka_listen is not"),
        ({"kafka_external_listen": "127.0.0.1:1"}, "and kafka_listen is not; set both"),
        (
            {"kafka_listen": "127.0.0.1:1", "kafka_external_advertise": "a:9092"},
            "kafka_external_advertise is set and kafka_external_listen is not",
        ),
        (
            {"listen": "127.0.0.1:7082"},
            "listen = 127.0.0.1:7082 and peer_listen = 127.0.0.1:7082 are the same port; give one",
        ),
        ({"kafka_listen": "0.0.0.0:8082"}, "listen = 127.0.0.1:8082 and kafka_listen = 0.0.0.0:"),
        ({"kafka_listen": "localhost:7082"}, "peer_listen = 127.0.0.1:7082 and kafka_listen = lo"),
        ({"listen": "[::]:9092", "kafka_listen": "10.1.2.3:9092"}, "listen = [::]:9092 and kafka"),
        (
            {"kafka_listen": "127.0.0.1:9092", "kafka_external_listen": "127.0.0.1:9092"},
            "kafka_listen = 127.0.0.1:9092 and kafka_external_listen = 127.0.0.1:9092 are the same",
        ),
        ({"kafka_one_address": "true"}, "kafka_one_address needs the address that all nodes share"),
        ({"kafka_listen": "127.0.0.1:1", "kafka_one_address": "true"}, "set kafka_external_adv"),
    ],
)
def test_contradictions_are_refused(flags: dict[str, object], said: str):
    with pytest.raises(StartupError) as caught:
        load(flags)
    assert said in caught.value.message


@pytest.mark.parametrize(
    "flags",
    [
        {"listen": "127.0.0.1:0", "peer_listen": "127.0.0.1:0", "kafka_listen": "127.0.0.1:0"},
        {"kafka_listen": "127.0.0.1:9092", "kafka_external_listen": "10.1.2.3:9092"},
        {"kafka_listen": "localhost:9092", "kafka_external_listen": "10.1.2.3:9092"},
        {"kafka_listen": "127.0.0.1:9092", "kafka_external_listen": "127.0.0.1:9094"},
    ],
)
def test_interfaces_at_different_addresses_or_ports_are_no_contradiction(flags: dict[str, object]):
    load(flags)


def test_kafka_clients_reach_a_node_where_it_listens_or_where_it_says():
    config = load(
        {"kafka_listen": "127.0.0.1:0", "admin_password_file": "p", "access_mode": "optional"}
    )
    assert str(config.kafka_address(9092)) == "127.0.0.1:9092"
    told = load({"kafka_listen": "localhost:9092", "kafka_advertise": "node-1.example.org:19092"})
    assert str(told.kafka_address(9092)) == "node-1.example.org:19092"


def test_kafka_clients_of_a_wildcard_are_told_the_name_of_the_machine():
    config = load({"kafka_listen": "0.0.0.0:9092"})
    assert config.kafka_address(9092).host == socket.gethostname()


def test_kafka_clients_outside_reach_a_node_under_another_address():
    both = {"kafka_listen": "127.0.0.1:9092", "kafka_external_listen": "127.0.0.1:0"}
    config = load(both)
    assert [str(config.kafka_address(19092, place)) for place in (0, 1)] == [
        "127.0.0.1:19092",
        "127.0.0.1:19092",
    ]
    told = load({**both, "kafka_external_advertise": "node-1.example.org:9094"})
    assert str(told.kafka_address(9092)) == "127.0.0.1:9092"
    assert str(told.kafka_address(19092, 1)) == "node-1.example.org:9094"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "[::1]", "localhost"])
def test_a_peer_port_on_loopback_needs_no_secret(host: str):
    load({"peer_listen": f"{host}:7082"})


@pytest.mark.parametrize(
    "protection",
    [
        {"cluster_secret": "12345678"},
        {"cluster_secret_file": "f"},
        {"peer_tls_cert_file": "c", "peer_tls_key_file": "k", "peer_tls_ca_file": "a"},
    ],
)
def test_a_peer_port_beyond_loopback_needs_a_secret_or_tls(protection: dict[str, object]):
    load({"peer_listen": "0.0.0.0:7082", **protection})


def test_an_open_api_without_credentials_is_warned_about():
    (warning,) = warnings_of(load({"listen": "0.0.0.0:8082"}))
    assert "beyond this machine" in warning
    tls = {"tls_cert_file": "c", "tls_key_file": "k", "tls_client_ca_file": "a"}
    assert warnings_of(load({"listen": "0.0.0.0:8082", **tls})) == ()


def test_an_open_kafka_interface_is_warned_about_like_the_api():
    listens = {"kafka_listen": "0.0.0.0:9092", "kafka_external_listen": "10.1.2.3:9094"}
    warnings = warnings_of(load(listens))
    assert [warning.partition(",")[0] for warning in warnings] == [
        "the Kafka interface listens on 0.0.0.0:9092",
        "the Kafka interface listens on 10.1.2.3:9094",
    ]
    assert "every client may read and write everything" in warnings[0]
    closed = {**listens, "admin_password_file": "p"}
    assert all("without TLS" in warning for warning in warnings_of(load(closed)))
    assert warnings_of(load({**closed, "tls_cert_file": "c", "tls_key_file": "k"})) == ()
    assert warnings_of(load({"kafka_listen": "127.0.0.1:9092"})) == ()


def test_voters_are_read_from_a_table_and_from_text_alike(toml):
    path = toml('[peers]\n1 = "a:7082"\n2 = "b:7082"\n3 = "[::1]:7082"\n')
    config = load(toml=path)
    assert config.voters == {1: Address("a", 7082), 2: Address("b", 7082), 3: Address("::1", 7082)}
    assert load({"peers": "1=a:7082, 2=b:7082 ,3=[::1]:7082"}) == config
    assert not config.is_single
    assert not config.creates_topics
    assert config.peer_address(1) == Address("a", 7082)


def test_a_node_that_joins_has_no_vote():
    config = load({"join": "a:7082,b:7082", "node_id": 9})
    assert config.voters == {}
    assert not config.is_single


def test_the_url_that_clients_use_follows_from_where_the_node_listens():
    assert load().url(8082) == "http://127.0.0.1:8082"
    assert load({"listen": "[::1]:0"}).url(40000) == "http://[::1]:40000"
    assert load({"advertise": "https://x.example/"}).url(1) == "https://x.example"
    assert "0.0.0.0" not in load({"listen": "0.0.0.0:0"}).url(40000)
    tls = {"tls_cert_file": "c", "tls_key_file": "k"}
    assert load(tls).url(8082) == "https://127.0.0.1:8082"


def test_secret_comes_from_the_setting_or_its_file(tmp_path: Path):
    path = tmp_path / "secret"
    path.write_text("  from the file \n", encoding="utf-8")
    assert secret_of(load()) == b""
    assert secret_of(load({"cluster_secret": "from the flag"})) == b"from the flag"
    assert secret_of(load({"cluster_secret_file": str(path)})) == b"from the file"
    path.write_text("short", encoding="utf-8")
    with pytest.raises(StartupError, match="must hold 8 to 1024 characters, not 5"):
        secret_of(load({"cluster_secret_file": str(path)}))
    with pytest.raises(StartupError, match="cannot read cluster_secret_file"):
        secret_of(load({"cluster_secret_file": str(tmp_path / "none")}))


def test_the_page_of_settings_is_current():
    page = Path(__file__).parents[4] / "docs" / "configuration.md"
    assert page.read_text(encoding="utf-8") == markdown(), (
        "run: python -m node.config.docs > docs/configuration.md"
    )
