"""Checks rules between options, reads the cluster secret, and makes warnings for the operator."""

from itertools import combinations
from pathlib import Path

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
    _check_membership(config)
    _check_times(config)
    _check_pair(
        config.peer_tls_cert_file,
        config.peer_tls_key_file,
        "peer_tls_cert_file",
        "peer_tls_key_file",
    )
    _check_pair(
        config.peer_tls_cert_file, config.peer_tls_ca_file, "peer_tls_cert_file", "peer_tls_ca_file"
    )
    if config.peer_tls_verify_id and not config.peer_tls_cert_file:
        raise StartupError(
            "peer_tls_verify_id needs the peer_tls_* files: it looks at certificates"
        )
    _check_pair(config.tls_cert_file, config.tls_key_file, "tls_cert_file", "tls_key_file")
    if config.tls_client_ca_file and not config.tls_cert_file:
        raise StartupError(
            "tls_client_ca_file needs tls_cert_file: clients show certificates over HTTPS only"
        )
    if config.client_auth != "none" and not config.tls_client_ca_file:
        raise StartupError(
            f"tls_client_auth = {config.client_auth} needs tls_client_ca_file, which tells good certificates"
        )
    if config.tls_principal_rule is not None and config.client_auth == "none":
        raise StartupError(
            "tls_principal_rule needs tls_client_ca_file, and tls_client_auth optional or required"
        )
    if config.cluster_secret and config.cluster_secret_file:
        raise StartupError("cluster_secret and cluster_secret_file are both set; give one")
    if config.reset_admin and not config.admin_password_file:
        raise StartupError("reset_admin needs admin_password_file, which holds the new password")
    if USER_PREFIX + config.admin_user == ANONYMOUS:
        raise StartupError(
            f"admin_user = {config.admin_user} is who comes without credentials; choose another name"
        )
    _check_issuer(config)
    _check_peer_port(config)
    _check_kafka(config)
    _check_ports(config)


def _check_kafka(config: NodeConfig) -> None:
    """Refuse addresses of the Kafka interface that contradict each other."""
    for name, needed in (
        ("kafka_advertise", "kafka_listen"),
        ("kafka_external_advertise", "kafka_external_listen"),
        ("kafka_external_listen", "kafka_listen"),
    ):
        if getattr(config, name) is not None and getattr(config, needed) is None:
            raise StartupError(f"{name} is set and {needed} is not; set both, or none")
    if config.kafka_one_address and (
        not config.kafka_listeners or config.kafka_listeners[-1][1] is None
    ):
        raise StartupError(
            "kafka_one_address needs the address that all nodes share: set kafka_external_advertise, or "
            "kafka_listen and kafka_advertise"
        )


def _check_ports(config: NodeConfig) -> None:
    """Refuse two interfaces at one address. Their sockets can be bound together, so the system does not object."""
    names = ("listen", "peer_listen", "kafka_listen", "kafka_external_listen")
    found = [(name, value) for name in names if (value := getattr(config, name)) is not None]
    for (one, address), (other, further) in combinations(found, 2):
        if address.overlaps(further):
            raise StartupError(
                f"{one} = {address} and {other} = {further} are the same port; give one of them another port"
            )


def _check_issuer(config: NodeConfig) -> None:
    names = ("oidc_audience", "oidc_jwks_file", "oidc_jwks_url", "oidc_groups_claim")
    if config.oidc_issuer is None:
        given = [name for name in names if getattr(config, name) is not None]
        if given:
            raise StartupError(f"{given[0]} is set and oidc_issuer is not; set both, or none")
        return
    if config.oidc_audience is None:
        raise StartupError(
            "oidc_issuer needs oidc_audience: else a token that the issuer made for anybody would do"
        )
    if (config.oidc_jwks_file is None) == (config.oidc_jwks_url is None):
        raise StartupError("oidc_issuer needs one of oidc_jwks_file and oidc_jwks_url")


def _check_membership(config: NodeConfig) -> None:
    if config.peers and config.join:
        raise StartupError("peers and join are both set: a node is a voter or joins as an observer")
    if config.peers and config.node_id not in config.peers:
        ids = ", ".join(map(str, sorted(config.peers)))
        raise StartupError(
            f"node_id = {config.node_id} is not among peers ({ids}); a further node joins with --join"
        )
    if len(set(config.peers.values())) < len(config.peers):
        raise StartupError("two voters of peers have the same address")
    address = config.reachable_peer_address
    if not config.is_single and (address.is_wildcard or address.port == 0):
        raise StartupError(
            f"other nodes cannot dial peer_listen = {config.peer_listen}; set peer_advertise"
        )


def _check_times(config: NodeConfig) -> None:
    if config.heartbeat_ms * HEARTBEATS_PER_SESSION_MIN > config.broker_session_ms:
        raise StartupError(
            f"heartbeat_ms = {config.heartbeat_ms} is more than a third of "
            f"broker_session_ms = {config.broker_session_ms}"
        )
    if config.election_timeout_ms_min >= config.election_timeout_ms_max:
        raise StartupError(
            f"election_timeout_ms_min = {config.election_timeout_ms_min} must be below "
            f"election_timeout_ms_max = {config.election_timeout_ms_max}"
        )
    if config.raft_append_period_ms * 2 >= config.election_timeout_ms_min:
        raise StartupError(
            f"raft_append_period_ms = {config.raft_append_period_ms} must be below half of "
            f"election_timeout_ms_min = {config.election_timeout_ms_min}"
        )
    if config.produce_timeout_ms_default > config.produce_timeout_ms_max:
        raise StartupError("produce_timeout_ms_default is above produce_timeout_ms_max")


def _check_pair(one: Path | None, other: Path | None, one_name: str, other_name: str) -> None:
    if (one is None) != (other is None):
        missing, given = (one_name, other_name) if one is None else (other_name, one_name)
        raise StartupError(f"{given} is set and {missing} is not; TLS needs both")


def _check_peer_port(config: NodeConfig) -> None:
    is_secured = config.has_peer_tls or config.cluster_secret or config.cluster_secret_file
    if not is_secured and not config.peer_listen.is_loopback:
        raise StartupError(
            f"peer_listen = {config.peer_listen} is open beyond this machine and nothing protects it: set "
            "MILENA_CLUSTER_SECRET or cluster_secret_file (the same on all nodes), or the peer_tls_* files"
        )


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
