"""The configuration of a node: one frozen value, read once and checked as a whole.

``node.config.sources`` reads it, ``node.config.rules`` checks it. Each field has its description and its kind as
metadata. The command line's options, the messages of a refusal and ``docs/configuration.md`` are made from these, so
that they always agree. A field ``peer_listen`` is ``peer_listen`` in TOML, ``MILENA_PEER_LISTEN`` in the environment
and ``--peer-listen`` as a flag.
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from http_api.ports.node import ApiLimits
from milena.model.access import USER_NAME, AccessMode
from node.config import kinds
from node.config.kinds import Address, OptionKind


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionDoc:
    """The metadata of a field."""

    kind: OptionKind
    doc: str
    group: str
    default: str | None = None
    """The documentation's text for a default that depends on other fields."""
    is_secret: bool = False
    """Whether the field has no flag, because every user of the machine can see command lines."""


@dataclass(frozen=True, slots=True)
class OptionGroup:
    """A section of the documentation."""

    name: str

    def option(
        self,
        kind: OptionKind,
        doc: str,
        *,
        default: Any = None,  # noqa: ANN401  (of the field's own type)
        says: str | None = None,
        is_secret: bool = False,
    ) -> Any:  # noqa: ANN401  (as ``dataclasses.field``)
        """Return a field of ``NodeConfig`` with its metadata. ``default``: the value, or ``dict`` for an empty one."""
        if says is None and default is None:
            says = "none"
        described = OptionDoc(
            kind=kind, doc=doc, group=self.name, default=says, is_secret=is_secret
        )
        if default is dict:
            return field(default_factory=dict, metadata={"option": described})
        return field(default=default, metadata={"option": described})


NODE = OptionGroup("Node")
CLUSTER = OptionGroup("Cluster")
SECURITY = OptionGroup("Security")
TOPICS = OptionGroup("Topics")
REPLICATION = OptionGroup("Replication and quorum")
GROUPS = OptionGroup("Consumer groups")
LIMITS = OptionGroup("Limits")
LOGS = OptionGroup("Logs")
_LIMITS = ApiLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """The options that an operator may set. Build it with ``load_config``; the constructor checks nothing by itself."""

    node_id: int = NODE.option(
        kinds.integer(1, 999_999_999),
        "Identity of this node in the cluster. It is stored in the data directory and never changes.",
        default=1,
    )
    data_dir: Path = NODE.option(
        kinds.path("directory"),
        "Directory that holds all data. The node creates it if it is missing. Only one node at a time may use it.",
        default=Path("milena-data"),
    )
    listen: Address = NODE.option(
        kinds.listen_address(),
        "Where the API listens: REST, metrics, health.",
        default=Address("127.0.0.1", 8082),
    )
    advertise: str | None = NODE.option(
        kinds.url(),
        "URL under which clients reach this node.",
        says="the address of `listen`; if that is a wildcard, the machine's name",
    )
    kafka_listen: Address | None = NODE.option(
        kinds.listen_address(),
        "Where the node listens for Kafka clients, which speak Kafka's own protocol. It needs the extra `kafka` "
        "of milena-node. Clients use the certificate, users and rights of the API.",
        says="none: no Kafka interface",
    )
    kafka_advertise: Address | None = NODE.option(
        kinds.dial_address(),
        "Address under which Kafka clients reach this node.",
        says="the address of `kafka_listen`",
    )
    kafka_external_listen: Address | None = NODE.option(
        kinds.listen_address(),
        "A second address where the node listens for Kafka clients. They learn the external addresses of all "
        "nodes, and the clients of `kafka_listen` learn the others. So clients outside a network can reach the "
        "nodes under other names than clients inside.",
    )
    kafka_external_advertise: Address | None = NODE.option(
        kinds.dial_address(),
        "Address under which the Kafka clients of `kafka_external_listen` reach this node.",
        says="the address of `kafka_external_listen`",
    )
    kafka_one_address: bool = NODE.option(
        kinds.switch(),
        "Whether all nodes have the same advertised address for Kafka clients, such as that of a load balancer. "
        "Any node then takes any request, and passes it on to the node that serves it. With "
        "`kafka_external_listen`, this holds for the external address alone.",
        default=False,
    )
    rack: str | None = NODE.option(
        kinds.word("up to 255 characters"),
        "Failure domain of this node, such as a zone. The replicas of a partition are spread over racks.",
    )
    drain_timeout_ms: int = NODE.option(
        kinds.integer(0, 600_000, "ms"),
        "Longest time that a graceful stop may take to hand over leadership and finish requests.",
        default=30_000,
    )

    peer_listen: Address = CLUSTER.option(
        kinds.listen_address(),
        "Where the node listens for other nodes: Raft messages, replication, forwarded requests.",
        default=Address("127.0.0.1", 7082),
    )
    peer_advertise: Address | None = CLUSTER.option(
        kinds.dial_address(),
        "Address under which other nodes reach this node.",
        says="this node's entry in `peers`, else from `peer_listen`",
    )
    peers: Mapping[int, Address] = CLUSTER.option(
        kinds.voters(),
        "Ids and peer addresses of the voters of the metadata quorum, including this node if it is a voter. Ids "
        "never change; addresses may. Empty: the cluster has only this node.",
        default=dict,
        says="empty",
    )
    join: tuple[Address, ...] = CLUSTER.option(
        kinds.addresses(),
        "Peer addresses of a running cluster that this node joins as an observer. An observer holds partitions "
        "and has no vote.",
        default=(),
        says="empty",
    )

    cluster_secret: str | None = SECURITY.option(
        kinds.word("8 to 1024 characters", pattern=r"(?s).{8,1024}"),
        "Secret that all nodes of a cluster share. Peers prove to each other that they have it.",
        is_secret=True,
    )
    cluster_secret_file: Path | None = SECURITY.option(
        kinds.path("file"),
        "File that holds the cluster secret: 8 to 1024 characters; surrounding white space is dropped.",
    )
    peer_tls_cert_file: Path | None = SECURITY.option(
        kinds.path("PEM file"),
        "Certificate chain that this node shows to its peers, both when it listens and when it connects.",
    )
    peer_tls_key_file: Path | None = SECURITY.option(
        kinds.path("PEM file"),
        "Private key of `peer_tls_cert_file`.",
    )
    peer_tls_ca_file: Path | None = SECURITY.option(
        kinds.path("PEM file"),
        "Authority that must have signed the certificates of peers. Each holder of such a certificate counts as a "
        "node of this cluster. It may claim any node id unless `peer_tls_verify_id` is on. The file is renewed "
        "without a restart, as certificates are.",
    )
    peer_tls_verify_id: bool = SECURITY.option(
        kinds.switch(),
        "Accept a peer as node ID only if its certificate has the alternative name `DNS:node-ID` or "
        "`URI:milena:node:ID`. If this is off, a peer with any certificate of `peer_tls_ca_file` may claim any "
        "node id.",
        default=False,
    )
    tls_cert_file: Path | None = SECURITY.option(
        kinds.path("PEM file"),
        "Certificate chain of the API. It turns HTTPS on.",
    )
    tls_key_file: Path | None = SECURITY.option(
        kinds.path("PEM file"),
        "Private key of `tls_cert_file`.",
    )
    tls_client_ca_file: Path | None = SECURITY.option(
        kinds.path("PEM file"),
        "Authority that must have signed the certificates of API clients. Without it, clients need no "
        "certificate. The file is renewed without a restart, as certificates are; open connections continue.",
    )
    tls_client_auth: str | None = SECURITY.option(
        kinds.choice("none", "optional", "required"),
        "Whether API clients must show a certificate of `tls_client_ca_file`. `optional` also accepts clients "
        "that show none, such as probes. A client that shows a certificate and sends no `Authorization` is the "
        "user that the certificate names.",
        says="`required` with `tls_client_ca_file`, else `none`",
    )
    tls_principal_rule: str | None = SECURITY.option(
        kinds.pattern(),
        "Pattern that finds the user in a client's certificate. It must match one name of the certificate as a "
        "whole; its first group is the user. Names are written `CN:`, `DNS:`, `URI:` or `EMAIL:` and the name, as "
        "in `URI:spiffe://example\\.org/user/(.+)`. If several names match, they must give the same user.",
        says="the subject's common name",
    )
    admin_password_file: Path | None = SECURITY.option(
        kinds.path("file"),
        "File that holds the first user's password: 8 to 1024 characters; surrounding white space is dropped. A "
        "cluster without users gets this user as a superuser, and `access_mode`. Until then the cluster accepts "
        "no callers.",
    )
    admin_user: str = SECURITY.option(
        kinds.word("1 to 255 letters, digits or . _ @ / + = -", pattern=USER_NAME),
        "Name of the first user.",
        default="admin",
    )
    access_mode: str = SECURITY.option(
        kinds.choice(AccessMode.REQUIRED, AccessMode.OPTIONAL),
        "The credentials that a cluster asks of callers once it has its first user. "
        "`required`: credentials and permission. "
        "`optional`: nothing; the nodes log a line for each request that `required` would refuse. To change the "
        "mode later, use `milena access set`.",
        default=AccessMode.REQUIRED,
    )
    reset_admin: bool = SECURITY.option(
        kinds.switch(),
        "When the node starts, make `admin_user` a superuser with the password in `admin_password_file`. Use it "
        "if you are locked out, and remove it afterwards.",
        default=False,
    )
    audit_file: Path | None = SECURITY.option(
        kinds.path("file"),
        "File to which the node adds a JSON line for each change of users, access, quotas, topics and moves.",
        says="the node's log",
    )
    access_silence_ms_max: int = SECURITY.option(
        kinds.integer(1_000, 86_400_000, "ms"),
        "How long a node without contact to the metadata quorum still uses the access rules that it knows. A "
        "caller whose access was revoked may go on for this long. After that, no caller can read from that node.",
        default=30_000,
    )
    oidc_issuer: str | None = SECURITY.option(
        kinds.word("any text without spaces", pattern=r"\S{1,1024}"),
        "Issuer whose tokens (OpenID Connect, JWT) are accepted as `User:oidc:NAME`. It must equal the `iss` of "
        "the tokens exactly. Use the same value on all nodes.",
    )
    oidc_audience: str | None = SECURITY.option(
        kinds.word("any text without spaces", pattern=r"\S{1,1024}"),
        "Audience that the `aud` of an issuer's token must contain. Tokens for other audiences are refused.",
    )
    oidc_jwks_file: Path | None = SECURITY.option(
        kinds.path("JWKS file"),
        "File with the issuer's public keys. A changed file is read again within a quarter of an hour.",
    )
    oidc_jwks_url: str | None = SECURITY.option(
        kinds.https_url(),
        "URL of the issuer's public keys. The node fetches them every quarter of an hour, and when a token names "
        "a new key. It trusts the system's authorities, or those of `SSL_CERT_FILE`.",
    )
    oidc_user_claim: str = SECURITY.option(
        kinds.word(),
        "Claim of an issuer's token that names the user. Use a claim that users cannot choose for themselves.",
        default="sub",
    )
    oidc_groups_claim: str | None = SECURITY.option(
        kinds.word(),
        "Claim of an issuer's token that lists groups. Access entries name them as `Group:NAME`.",
    )
    metrics_public: bool = SECURITY.option(
        kinds.switch(),
        "Let every caller read `/metrics`, which names topics and groups. Otherwise `/metrics` needs DESCRIBE on "
        "the cluster if the cluster asks callers for credentials.",
        default=False,
    )
    trusted_proxies: tuple[str, ...] = SECURITY.option(
        kinds.networks(),
        "Proxies that this node trusts: it takes the client's address from their `X-Forwarded-For` or `Forwarded`.",
        default=(),
        says="none",
    )
    cors_origins: tuple[str, ...] = SECURITY.option(
        kinds.origins(),
        "Origins whose pages may use the API from a browser. Pages of other origins can neither read nor write.",
        default=(),
        says="none",
    )
    allowed_hosts: tuple[str, ...] = SECURITY.option(
        kinds.host_names(),
        "Additional names by which callers without credentials may reach the cluster. Always allowed are "
        "addresses, names without a dot, names that cannot be registered, and names that nodes advertise.",
        default=(),
        says="none",
    )

    auto_create_topics: bool | None = TOPICS.option(
        kinds.switch(),
        "Create a missing topic, with the defaults, when a client produces to it.",
        says="true for a node alone and under `milena dev`, else false",
    )
    default_partitions: int = TOPICS.option(
        kinds.integer(1, 1_000),
        "Number of partitions of a new topic if the request does not give one.",
        default=1,
    )
    default_replication_factor: int | None = TOPICS.option(
        kinds.integer(1, 5),
        "Replicas of each partition of a new topic if the request does not give a number.",
        says="3, or the number of nodes when there are fewer",
    )
    retention_check_ms: int = TOPICS.option(
        kinds.integer(100, 86_400_000, "ms"),
        "How often the node looks for segments to delete or compact.",
        default=30_000,
    )
    compaction_bytes_per_s: int = TOPICS.option(
        kinds.integer(64 << 10, 1 << 40, "bytes/s"),
        "Most bytes a second that compaction reads and writes on this node.",
        default=16 << 20,
    )
    scrub_bytes_per_s: int = TOPICS.option(
        kinds.integer(0, 1 << 40, "bytes/s"),
        "Most stored bytes a second whose checksums the node checks. This finds and restores damaged data before "
        "a client reads it. 0: the node checks only data that a reader or a follower reported as damaged.",
        default=4 << 20,
    )
    scrub_interval_ms: int = TOPICS.option(
        kinds.integer(1_000, 365 * 86_400_000, "ms"),
        "Shortest time from the start of one check of all stored data to the start of the next.",
        default=7 * 86_400_000,
    )

    broker_session_ms: int = REPLICATION.option(
        kinds.integer(200, 60_000, "ms"),
        "The controller fences a node that it has not heard of for this long. A fenced node leads nothing.",
        default=1_500,
    )
    heartbeat_ms: int = REPLICATION.option(
        kinds.integer(20, 20_000, "ms"),
        "How often a node reports to the controller. At most a third of `broker_session_ms`.",
        default=250,
    )
    clock_skew_ms_max: int = REPLICATION.option(
        kinds.integer(100, 3_600_000, "ms"),
        "How far a node's clock may differ from the clocks of the other voters. A node whose clock differs by "
        "more uses their time and reports it.",
        default=2_000,
    )
    replica_lag_time_max_ms: int = REPLICATION.option(
        kinds.integer(500, 3_600_000, "ms"),
        "A follower that has not caught up for this long leaves the in-sync replicas.",
        default=10_000,
    )
    replica_fetch_wait_ms_max: int = REPLICATION.option(
        kinds.integer(10, 60_000, "ms"),
        "How long a leader holds a follower's fetch when there are no new records.",
        default=500,
    )
    replica_fetch_bytes_max: int = REPLICATION.option(
        kinds.integer(64 << 10, 48 << 20, "bytes"),
        "Most bytes of a partition in one response to a follower. A larger batch is still sent whole.",
        default=8 << 20,
    )
    replication_throttle_bytes_per_s: int = REPLICATION.option(
        kinds.integer(0, 1 << 40, "bytes/s"),
        "Most bytes a second that this node sends to replicas that a move adds, until they are in sync. 0: no "
        "limit. A move may set a rate of its own.",
        default=0,
    )
    cpu_awake_ms: int = REPLICATION.option(
        kinds.integer(0, 60_000, "ms"),
        "After each write, keep the machine's processors awake for this long, and at most twice that. Where "
        "processors wake slowly (virtual machines), this halves the latency of a lone writer. Processors that "
        "are awake use power and their host's time. The option needs `/dev/cpu_dma_latency`. 0: let processors "
        "sleep.",
        default=0,
    )
    leader_balance_interval_ms: int = REPLICATION.option(
        kinds.integer(0, 86_400_000, "ms"),
        "How often partitions are handed back to their preferred leaders. 0: never.",
        default=60_000,
    )
    election_timeout_ms_min: int = REPLICATION.option(
        kinds.integer(50, 60_000, "ms"),
        "Shortest silence of the Raft leader before a voter stands for election. 1500 suits slow disks.",
        default=500,
    )
    election_timeout_ms_max: int = REPLICATION.option(
        kinds.integer(100, 120_000, "ms"),
        "Longest silence of the Raft leader before a voter stands for election. 3000 suits slow disks.",
        default=1_000,
    )
    raft_append_period_ms: int = REPLICATION.option(
        kinds.integer(10, 10_000, "ms"),
        "How often the Raft leader shows that it is alive. Below half of `election_timeout_ms_min`.",
        default=100,
    )

    offsets_retention_minutes: int = GROUPS.option(
        kinds.integer(1, 100 * 365 * 24 * 60, "minutes"),
        "How long a consumer group's committed offsets are kept after its last member has left. For a group that "
        "never had a member, the time runs from its last commit. (Kafka's `offsets.retention.minutes`.)",
        default=7 * 24 * 60,
    )
    offsets_retention_check_ms: int = GROUPS.option(
        kinds.integer(100, 86_400_000, "ms"),
        "How often the node looks for committed offsets that have expired.",
        default=600_000,
    )
    group_initial_rebalance_delay_ms: int = GROUPS.option(
        kinds.integer(0, 300_000, "ms"),
        "How long the first member of an empty group of Kafka's classic protocol waits for further members, so "
        "that they share one rebalance. (Kafka's `group.initial.rebalance.delay.ms`.)",
        default=3_000,
    )
    transactional_id_expiration_ms: int = GROUPS.option(
        kinds.integer(3_600_000, 100 * 365 * 24 * 3_600_000, "ms"),
        "How long a transactional id is kept after its last transaction began or ended. (Kafka's "
        "`transactional.id.expiration.ms`.)",
        default=7 * 24 * 3_600_000,
    )
    rest_commit_offsets: str = GROUPS.option(
        kinds.choice("last", "next"),
        "Meaning of `offset` in a REST consumer's commit. `last`: the last record read, as in Confluent's REST "
        "proxy. `next`: the next record to read, as in Strimzi's bridge. A consumer that was created with "
        "`commit.offsets` overrides it.",
        default=_LIMITS.rest_commit_offsets,
    )
    consumer_instance_timeout_ms: int = GROUPS.option(
        kinds.integer(1_000, 86_400_000, "ms"),
        "A REST consumer that gets no requests for this long is deleted. (`consumer.instance.timeout.ms` of "
        "Confluent's REST proxy.)",
        default=300_000,
    )

    connections_max: int = LIMITS.option(
        kinds.integer(16, 1_000_000),
        "Most client connections that may be open at once, as far as the limit of open files allows. Above it, "
        "the node closes the connection that has waited longest for its client.",
        default=_LIMITS.connections_max,
    )
    request_bytes_max: int = LIMITS.option(
        kinds.integer(1 << 10, 60 << 20, "bytes"),
        "Largest request body.",
        default=_LIMITS.request_bytes_max,
    )
    requests_in_flight_max: int = LIMITS.option(
        kinds.integer(1, 1_000_000),
        "Most requests that the node works on at once. Further requests get 429.",
        default=_LIMITS.requests_in_flight_max,
    )
    streams_max: int = LIMITS.option(
        kinds.integer(0, 1_000_000),
        "Most responses that follow a log (NDJSON, server-sent events) and are open at once. Further requests get "
        "429.",
        default=_LIMITS.streams_max,
    )
    bytes_in_flight_max: int = LIMITS.option(
        kinds.integer(1 << 20, 1 << 40, "bytes"),
        "Most bytes of requests that the node holds at once. Further HTTP requests get 429; Kafka clients wait.",
        default=_LIMITS.bytes_in_flight_max,
    )
    fetch_bytes_max: int = LIMITS.option(
        kinds.integer(1 << 10, 64 << 20, "bytes"),
        "Most stored bytes in one fetch response. A larger batch is still sent whole.",
        default=_LIMITS.fetch_bytes_max,
    )
    fetch_wait_ms_max: int = LIMITS.option(
        kinds.integer(0, 3_600_000, "ms"),
        "Longest time that a client's fetch may wait for records.",
        default=_LIMITS.fetch_wait_ms_max,
    )
    produce_timeout_ms_default: int = LIMITS.option(
        kinds.integer(10, 3_600_000, "ms"),
        "How long a produce request without a timeout of its own waits for its acknowledgement.",
        default=_LIMITS.produce_timeout_ms_default,
    )
    produce_timeout_ms_max: int = LIMITS.option(
        kinds.integer(10, 3_600_000, "ms"),
        "Longest timeout that a produce request may ask for.",
        default=_LIMITS.produce_timeout_ms_max,
    )
    body_wait_ms_max: int = LIMITS.option(
        kinds.integer(100, 3_600_000, "ms"),
        "Longest time from the headers of a request to the last byte of its body. A slower request gets 408.",
        default=_LIMITS.body_wait_ms_max,
    )
    unsent_wait_ms_max: int = LIMITS.option(
        kinds.integer(100, 3_600_000, "ms"),
        "Longest time that a client may take no byte of a response. After that, the node closes the connection.",
        default=_LIMITS.unsent_wait_ms_max,
    )
    unsent_bytes_max: int = LIMITS.option(
        kinds.integer(1 << 20, 1 << 40, "bytes"),
        "Most bytes of responses that clients have not taken yet. Above it, the client that has taken nothing for "
        "longest loses its connection.",
        default=_LIMITS.unsent_bytes_max,
    )
    bad_credentials_delay_ms: int = LIMITS.option(
        kinds.integer(0, 10_000, "ms"),
        "Delay of a refusal of bad credentials if the connection has already sent bad ones. It slows down "
        "guessing. (`connection.failed.authentication.delay.ms` of Kafka's brokers.)",
        default=_LIMITS.bad_credentials_delay_ms,
    )
    records_per_request_max: int = LIMITS.option(
        kinds.integer(1, 10_000_000),
        "Most records in one request.",
        default=_LIMITS.records_per_request_max,
    )
    request_rate: int = LIMITS.option(
        kinds.integer(0, 10**9, "requests/s"),
        "Requests of each caller on this node. 0: no limit. A caller is its principal, or its address if the "
        "cluster does not ask for credentials. A request above the rate waits for up to 200 ms; then it gets 429.",
        default=_LIMITS.request_rate,
    )
    producer_byte_rate: int = LIMITS.option(
        kinds.integer(0, 1 << 50, "bytes/s"),
        "Bytes of request bodies that each caller may send to this node. 0: no limit. Up to two seconds' worth "
        "may arrive at once.",
        default=_LIMITS.producer_byte_rate,
    )
    consumer_byte_rate: int = LIMITS.option(
        kinds.integer(0, 1 << 50, "bytes/s"),
        "Bytes of responses that this node may send to each caller. 0: no limit. The bytes are counted after they "
        "are sent; streams become slower.",
        default=_LIMITS.consumer_byte_rate,
    )

    log_level: str = LOGS.option(
        kinds.choice("debug", "info", "warning", "error"),
        "Lowest severity that is logged.",
        default="info",
    )
    log_format: str = LOGS.option(
        kinds.choice("text", "json"),
        "Log lines as `key=value` text or as JSON.",
        default="text",
    )

    @property
    def is_single(self) -> bool:
        """Whether the cluster consists of this node alone."""
        return not self.join and set(self.peers) <= {self.node_id}

    @property
    def voters(self) -> dict[int, Address]:
        """The voters and their addresses; empty for an observer, which asks the nodes that it joins."""
        if self.join:
            return {}
        return dict(self.peers) or {self.node_id: self.reachable_peer_address}

    @property
    def reachable_peer_address(self) -> Address:
        """The address at which other nodes dial this one."""
        return self.peer_advertise or self.peers.get(self.node_id) or self.peer_listen

    def url(self, port: int) -> str:
        """Return the URL at which clients reach this node; ``port`` is the one that the API has bound."""
        if self.advertise is not None:
            return self.advertise
        host = socket.gethostname() if self.listen.is_wildcard else self.listen.host
        return f"{'https' if self.has_api_tls else 'http'}://{Address(host, port)}"

    def peer_address(self, port: int) -> Address:
        """Return the address at which other nodes reach this one; ``port`` is the bound peer port."""
        address = self.reachable_peer_address
        return address._replace(port=address.port or port)

    @property
    def kafka_listeners(self) -> tuple[tuple[Address, Address | None], ...]:
        """Where the node listens for Kafka clients, and the address that it tells them instead."""
        pairs = (
            (self.kafka_listen, self.kafka_advertise),
            (self.kafka_external_listen, self.kafka_external_advertise),
        )
        return tuple((listen, told) for listen, told in pairs if listen is not None)

    def kafka_address(self, port: int, place: int = 0) -> Address:
        """Return the address under which the clients of a Kafka listener reach this node.

        ``port`` is the bound one. ``place``: that of the listener among ``kafka_listeners``.
        """
        listen, told = self.kafka_listeners[place]
        if told is not None:
            return told
        host = socket.gethostname() if listen.is_wildcard else listen.host
        return Address(host, port)

    @property
    def creates_topics(self) -> bool:
        """``auto_create_topics``, with its default filled in."""
        return self.is_single if self.auto_create_topics is None else self.auto_create_topics

    @property
    def has_peer_tls(self) -> bool:
        """Whether nodes use TLS among themselves."""
        return self.peer_tls_cert_file is not None

    @property
    def has_api_tls(self) -> bool:
        """Whether the API uses HTTPS."""
        return self.tls_cert_file is not None

    @property
    def client_auth(self) -> str:
        """``tls_client_auth``, with its default filled in."""
        return self.tls_client_auth or ("required" if self.tls_client_ca_file else "none")

    @property
    def limits(self) -> ApiLimits:
        """The limits of the API."""
        return ApiLimits(
            **{limit.name: cast("Any", getattr(self, limit.name)) for limit in fields(ApiLimits)}
        )


OPTIONS: dict[str, OptionDoc] = {
    item.name: cast("OptionDoc", item.metadata["option"]) for item in fields(NodeConfig)
}
"""Every field by name, in the order of the documentation."""
