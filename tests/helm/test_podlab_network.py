"""Names and packet rules of the runner's network."""

import struct

import pytest

from tests.helm.podlab.dns_wire import (
    NO_SUCH_NAME,
    TYPE_A,
    DnsFormatError,
    encode_answer,
    parse_question,
)
from tests.helm.podlab.dns_zone import endpoints, resolve
from tests.helm.podlab.firewall import rules_for
from tests.helm.podlab.manifest import Document, Manifest
from tests.helm.podlab.pods import status

AAAA = 28
DOMAIN = "default.svc.cluster.local"


def query(name: str, record_type: int = TYPE_A) -> bytes:
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    return (
        struct.pack(">HHHHHH", 7, 0x0100, 1, 0, 0, 0)
        + labels
        + struct.pack(">BHH", 0, record_type, 1)
    )


def a_pod(
    name: str, number: int, *, ready: bool = True, app: str = "db", phase: str = "Running"
) -> Manifest:
    document: Document = {
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": app}},
        "spec": {
            "hostname": name,
            "subdomain": "db-headless",
            "containers": [{"ports": [{"name": "api", "containerPort": 8082}]}],
        },
        "status": status(phase=phase, is_ready=ready, ip=f"10.0.0.{number}"),
    }
    return Manifest(document)


def service(name: str, address: str, *, publishes: bool = False) -> Manifest:
    return Manifest(
        {
            "metadata": {"name": name},
            "spec": {
                "clusterIP": address,
                "publishNotReadyAddresses": publishes,
                "selector": {"app": "db"},
                "ports": [{"port": 80, "targetPort": "api"}],
            },
        }
    )


READY, UNREADY = a_pod("db-0", 1), a_pod("db-1", 2, ready=False)
STRANGER = a_pod("other", 3, app="other")
PODS = [READY, UNREADY, STRANGER]
HEADLESS, PUBLISHING = (
    service("db-headless", "None"),
    service("db-headless", "None", publishes=True),
)
CLUSTER_IP = service("db", "10.96.0.1")


class TestPackets:
    def test_a_question_is_read(self) -> None:
        question = parse_question(query("DB.default"))
        assert (question.query_id, question.name, question.record_type) == (7, "db.default", TYPE_A)

    @pytest.mark.parametrize(
        "packet",
        [b"", b"\x00" * 12, query("a.b")[:-3], query("a")[:12] + b"\xc0\x0c\x00\x01\x00\x01"],
    )
    def test_what_is_no_question_is_refused(self, packet: bytes) -> None:
        with pytest.raises(DnsFormatError):
            parse_question(packet)

    def test_an_answer_repeats_the_question_and_gives_addresses(self) -> None:
        packet = query("db.default")
        answer = encode_answer(parse_question(packet), ["10.0.0.1", "10.0.0.2"])
        query_id, flags, questions, answers, *_ = struct.unpack_from(">HHHHHH", answer)
        assert (query_id, flags & 0xF, questions, answers) == (7, 0, 1, 2)
        assert answer[12 : len(packet)] == packet[12:]
        assert answer.endswith(bytes([10, 0, 0, 2]))

    def test_no_such_name_differs_from_no_such_record(self) -> None:
        unknown = encode_answer(parse_question(query("x")), None)
        assert unknown[3] & 0xF == NO_SUCH_NAME
        other_type = encode_answer(parse_question(query("db", AAAA)), ["10.0.0.1"])
        assert other_type[3] & 0xF == 0
        assert struct.unpack_from(">H", other_type, 6) == (0,)


class TestNames:
    def test_a_service_has_its_address(self) -> None:
        assert resolve(f"db.{DOMAIN}", [CLUSTER_IP], PODS) == ["10.96.0.1"]

    def test_a_headless_service_has_its_ready_pods(self) -> None:
        assert resolve(f"db-headless.{DOMAIN}", [HEADLESS], PODS) == ["10.0.0.1"]
        assert resolve(f"db-headless.{DOMAIN}", [PUBLISHING], PODS) == ["10.0.0.1", "10.0.0.2"]

    def test_a_pod_has_a_name_while_it_is_published(self) -> None:
        name = f"db-1.db-headless.{DOMAIN}"
        assert resolve(name, [HEADLESS], PODS) is None
        assert resolve(name, [PUBLISHING], PODS) == ["10.0.0.2"]

    @pytest.mark.parametrize(
        "name", ["db", f"gone.{DOMAIN}", f"db-0.db.{DOMAIN}", f"a.db-0.db-headless.{DOMAIN}"]
    )
    def test_other_names_do_not_exist(self, name: str) -> None:
        assert resolve(name, [CLUSTER_IP, PUBLISHING], PODS) is None

    def test_a_finished_pod_serves_nobody(self) -> None:
        assert endpoints(PUBLISHING, [a_pod("db-2", 4, phase="Succeeded")]) == []

    def test_a_service_without_a_selector_has_no_pods(self) -> None:
        assert endpoints(Manifest({"spec": {}}), PODS) == []


class TestRules:
    def test_new_connections_are_spread_evenly(self) -> None:
        both = [READY, a_pod("db-1", 2)]
        rules = rules_for(READY, services=[CLUSTER_IP], policies=[], all_pods=both)
        first, second = [line for line in rules.splitlines() if "DNAT" in line]
        assert "-d 10.96.0.1/32 -p tcp -m tcp --dport 80" in first
        assert "--probability 0.50000 -j DNAT --to-destination 10.0.0.1:8082" in first
        assert "statistic" not in second
        assert second.endswith("10.0.0.2:8082")

    def test_a_service_without_pods_refuses(self) -> None:
        rules = rules_for(READY, services=[CLUSTER_IP], policies=[], all_pods=[])
        assert "-j REJECT --reject-with tcp-reset" in rules
        assert "DNAT" not in rules

    def test_without_a_policy_everything_is_let_in(self) -> None:
        assert "DROP" not in rules_for(STRANGER, services=[], policies=[policy()], all_pods=PODS)

    def test_a_policy_lets_in_who_it_names_and_the_probes(self) -> None:
        rules = rules_for(READY, services=[], policies=[policy()], all_pods=PODS).splitlines()
        assert "-A INPUT -s 198.18.0.1/32 -j ACCEPT" in rules
        assert "-A INPUT -s 10.0.0.2/32 -p tcp -m tcp --dport 8082 -j ACCEPT" in rules
        assert not [rule for rule in rules if "10.0.0.3" in rule]
        assert rules.index("-A INPUT -j DROP") > rules.index("-A INPUT -i lo -j ACCEPT")

    def test_an_empty_peer_selector_takes_all_pods(self) -> None:
        rules = rules_for(READY, services=[], policies=[policy({})], all_pods=PODS)
        assert "-s 10.0.0.3/32 -p tcp -m tcp --dport 8082" in rules

    def test_a_rule_without_ports_means_all_and_a_block_is_a_network(self) -> None:
        spec: Document = {
            "podSelector": {},
            "policyTypes": ["Egress"],
            "egress": [{"to": [{"ipBlock": {"cidr": "10.9.0.0/16"}}]}],
        }
        rules = rules_for(READY, services=[], policies=[Manifest({"spec": spec})], all_pods=PODS)
        assert "-A OUTPUT -d 10.9.0.0/16 -j ACCEPT" in rules
        assert "-A OUTPUT -j DROP" in rules
        assert "INPUT" not in rules


def policy(peers: Document | None = None) -> Manifest:
    wanted: Document = {"matchLabels": {"app": "db"}} if peers is None else peers
    return Manifest(
        {
            "spec": {
                "podSelector": {"matchLabels": {"app": "db"}},
                "policyTypes": ["Ingress"],
                "ingress": [{"ports": [{"port": "api"}], "from": [{"podSelector": wanted}]}],
            }
        }
    )
