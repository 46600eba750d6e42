"""Checks rules between options, reads the cluster secret, and makes warnings for the operator."""

from collections.abc import Iterator
from itertools import combinations

from milena.model.access import ANONYMOUS, USER_PREFIX
from milena.model.errors import StartupError
from node.config.options import NodeConfig

HEARTBEATS_PER_SESSION_MIN = 3
"""Smallest number of heartbeats in a session, so that two lost heartbeats do not end the session."""


def check_config(config: NodeConfig) -> None:
    """Check the rules between options.

    Raises:
        StartupError: a rule is broken; the message is about the first such rule.
    """
    for rules in (_membership, _times, _tls, _access, _issuer, _peer_port, _kafka, _ports):
        for problem in rules(config):
            raise StartupError(problem)


def _membership(config: NodeConfig) -> Iterator[str]:
    if config.peers and config.join:
        yield "peers and join are both set: a node is a voter or joins as an observer"
    if config.peers and config.node_id not in config.peers:
        ids = ", ".join(map(str, sorted(config.peers)))
        yield f"node_id = {config.node_id} is not among peers ({ids}); a further node joins with --join"
    if len(set(config.peers.values())) < len(config.peers):
        yield "two voters of peers have the same address"
    address = config.reachable_peer_address
    if not config.is_single and (address.is_wildcard or address.port == 0):
        yield f"other nodes cannot dial peer_listen = {config.peer_listen}; set peer_advertise"


def _times(config: NodeConfig) -> Iterator[str]:
    heartbeat_ms, session_ms = config.heartbeat_ms, config.broker_session_ms
    least_ms, most_ms = config.election_timeout_ms_min, config.election_timeout_ms_max
    append_ms = config.raft_append_period_ms
    if heartbeat_ms * HEARTBEATS_PER_SESSION_MIN > session_ms:
        yield f"heartbeat_ms = {heartbeat_ms} is more than a third of broker_session_ms = {session_ms}"
    if least_ms >= most_ms:
        yield f"election_timeout_ms_min = {least_ms} must be below election_timeout_ms_max = {most_ms}"
    if append_ms * 2 >= least_ms:
        yield f"raft_append_period_ms = {append_ms} must be below half of election_timeout_ms_min = {least_ms}"
    if config.produce_timeout_ms_default > config.produce_timeout_ms_max:
        yield "produce_timeout_ms_default is above produce_timeout_ms_max"


def _tls(config: NodeConfig) -> Iterator[str]:
    yield from _incomplete_pair(config, "peer_tls_cert_file", "peer_tls_key_file")
    yield from _incomplete_pair(config, "peer_tls_cert_file", "peer_tls_ca_file")
    if config.peer_tls_verify_id and not config.peer_tls_cert_file:
        yield "peer_tls_verify_id needs the peer_tls_* files: it looks at certificates"
    yield from _incomplete_pair(config, "tls_cert_file", "tls_key_file")
    if config.tls_client_ca_file and not config.tls_cert_file:
        yield "tls_client_ca_file needs tls_cert_file: clients show certificates over HTTPS only"
    if config.client_auth != "none" and not config.tls_client_ca_file:
        yield f"tls_client_auth = {config.client_auth} needs tls_client_ca_file, which tells good certificates"
    if config.tls_principal_rule is not None and config.client_auth == "none":
        yield "tls_principal_rule needs tls_client_ca_file, and tls_client_auth optional or required"


def _incomplete_pair(config: NodeConfig, one: str, other: str) -> Iterator[str]:
    has_one, has_other = (getattr(config, name) is not None for name in (one, other))
    if has_one != has_other:
        given, missing = (one, other) if has_one else (other, one)
        yield f"{given} is set and {missing} is not; TLS needs both"


def _access(config: NodeConfig) -> Iterator[str]:
    if config.cluster_secret and config.cluster_secret_file:
        yield "cluster_secret and cluster_secret_file are both set; give one"
    if config.reset_admin and not config.admin_password_file:
        yield "reset_admin needs admin_password_file, which holds the new password"
    if USER_PREFIX + config.admin_user == ANONYMOUS:
        yield f"admin_user = {config.admin_user} is who comes without credentials; choose another name"


def _issuer(config: NodeConfig) -> Iterator[str]:
    names = ("oidc_audience", "oidc_jwks_file", "oidc_jwks_url", "oidc_groups_claim")
    if config.oidc_issuer is None:
        for name in names:
            if getattr(config, name) is not None:
                yield f"{name} is set and oidc_issuer is not; set both, or none"
        return
    if config.oidc_audience is None:
        yield "oidc_issuer needs oidc_audience: else a token that the issuer made for anybody would do"
    if (config.oidc_jwks_file is None) == (config.oidc_jwks_url is None):
        yield "oidc_issuer needs one of oidc_jwks_file and oidc_jwks_url"


def _peer_port(config: NodeConfig) -> Iterator[str]:
    is_secured = config.has_peer_tls or config.cluster_secret or config.cluster_secret_file
    if not is_secured and not config.peer_listen.is_loopback:
        yield (
            f"peer_listen = {config.peer_listen} is open beyond this machine and nothing protects it: set "
            "MILENA_CLUSTER_SECRET or cluster_secret_file (the same on all nodes), or the peer_tls_* files"
        )


def _kafka(config: NodeConfig) -> Iterator[str]:
    """Yield what addresses of the Kafka interface contradict each other."""
    for name, needed in (
        ("kafka_advertise", "kafka_listen"),
        ("kafka_external_advertise", "kafka_external_listen"),
        ("kafka_external_listen", "kafka_listen"),
    ):
        if getattr(config, name) is not None and getattr(config, needed) is None:
            yield f"{name} is set and {needed} is not; set both, or none"
    listeners = config.kafka_listeners
    if config.kafka_one_address and (not listeners or listeners[-1][1] is None):
        yield (
            "kafka_one_address needs the address that all nodes share: set kafka_external_advertise, or "
            "kafka_listen and kafka_advertise"
        )


def _ports(config: NodeConfig) -> Iterator[str]:
    """Yield two interfaces at one address. Their sockets can be bound together, so the system does not object."""
    names = ("listen", "peer_listen", "kafka_listen", "kafka_external_listen")
    found = [(name, value) for name in names if (value := getattr(config, name)) is not None]
    for (one, address), (other, further) in combinations(found, 2):
        if address.overlaps(further):
            yield f"{one} = {address} and {other} = {further} are the same port; give one of them another port"


def secret_of(config: NodeConfig) -> bytes:
    """Return the cluster secret; empty if there is none.

    Raises:
        StartupError: the file cannot be read, or its secret is too short or too long.
    """
    if config.cluster_secret is not None:
        return config.cluster_secret.encode()
    path = config.cluster_secret_file
    if path is None:
        return b""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise StartupError(f"cannot read cluster_secret_file {path}: {why}") from error
    if not 8 <= len(text) <= 1024:
        raise StartupError(
            f"cluster_secret_file {path} must hold 8 to 1024 characters, not {len(text)}"
        )
    return text.encode()


def warnings_of(config: NodeConfig) -> tuple[str, ...]:
    """Return warnings for the operator: about settings that are allowed, but probably not intended."""
    result = []
    is_open = not config.admin_password_file and config.client_auth != "required"
    interfaces = [("API", config.listen, "HTTPS")]
    interfaces += [("Kafka interface", listen, "TLS") for listen, _ in config.kafka_listeners]
    for name, listen, tls in interfaces:
        if listen.is_loopback:
            continue
        if is_open:
            result.append(
                f"the {name} listens on {listen}, beyond this machine, and asks no client for credentials unless "
                "the cluster has users already: every client may read and write everything; set admin_password_file"
            )
        elif config.admin_password_file and not config.tls_cert_file:
            result.append(
                f"the {name} listens on {listen} without TLS: passwords and tokens can be read on the network; "
                f"set tls_cert_file, or let a proxy in front speak {tls}"
            )
    if len(config.peers) == 1:
        result.append("peers names this node alone: nothing is replicated")
    return tuple(result)
