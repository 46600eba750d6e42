"""A pod's packet rules: cluster IPs to pods, and network policies. Pure: objects in, text for iptables-restore out.

Each pod has its own tables, so a service's address is rewritten where the connection begins and a policy is
enforced where it ends (ingress) or begins (egress). The machine itself may always come in: its probes are exempt
from policies.
"""

from collections.abc import Iterator, Sequence

from tests.helm.podlab import pods
from tests.helm.podlab.dns_zone import endpoints
from tests.helm.podlab.manifest import Manifest
from tests.helm.podlab.selectors import selects

NODE_IP = "198.18.0.1"
DNS_IP = "198.18.0.10"


def rules_for(
    pod: Manifest,
    *,
    services: Sequence[Manifest],
    policies: Sequence[Manifest],
    all_pods: Sequence[Manifest],
) -> str:
    """Everything that this pod's tables hold."""
    nat: list[str] = []
    filters: list[str] = []
    for service in services:
        for rule in _service_rules(service, all_pods):
            (filters if "REJECT" in rule else nat).append(rule)
    for direction in ("Ingress", "Egress"):
        filters += _policy_rules(pod, direction, policies, all_pods)
    return "\n".join(["*nat", *nat, "COMMIT", "*filter", *filters, "COMMIT", ""])


def _service_rules(service: Manifest, all_pods: Sequence[Manifest]) -> Iterator[str]:
    """Spread new connections evenly over the endpoints; refuse them at once when there are none."""
    address = service.text("spec.clusterIP")
    if not address or address == "None":
        return
    behind = endpoints(service, all_pods)
    for port in service.parts("spec.ports"):
        number = port.number("port")
        match = f"-A OUTPUT -d {address}/32 -p tcp -m tcp --dport {number}"
        if not behind:
            yield f"{match} -j REJECT --reject-with tcp-reset"
        for index, pod in enumerate(behind):
            left = len(behind) - index
            share = f" -m statistic --mode random --probability {1 / left:.5f}" if left > 1 else ""
            target = pods.port_number(pod, port.scalar("targetPort", str(number)))
            yield f"{match}{share} -j DNAT --to-destination {pods.address(pod)}:{target}"


def _policy_rules(
    pod: Manifest, direction: str, policies: Sequence[Manifest], all_pods: Sequence[Manifest]
) -> list[str]:
    """Nothing when no policy selects the pod for this direction; else all that is allowed, and a drop."""
    mine = [
        policy
        for policy in policies
        if direction in _types(policy) and selects(policy.part("spec.podSelector"), pod.labels)
    ]
    if not mine:
        return []
    chain, loop, flag = ("INPUT", "-i", "-s") if direction == "Ingress" else ("OUTPUT", "-o", "-d")
    rules = [
        f"-A {chain} {loop} lo -j ACCEPT",
        f"-A {chain} -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
    ]
    if direction == "Ingress":
        rules.append(f"-A {chain} -s {NODE_IP}/32 -j ACCEPT")
    for policy in mine:
        for rule in policy.parts(f"spec.{direction.lower()}"):
            rules += [
                f"-A {chain}{match} -j ACCEPT" for match in _matches(rule, flag, pod, all_pods)
            ]
    return [*rules, f"-A {chain} -j DROP"]


def _types(policy: Manifest) -> list[str]:
    default = ["Ingress", "Egress"] if policy.has("spec.egress") else ["Ingress"]
    return policy.texts("spec.policyTypes") or default


def _matches(
    rule: Manifest, flag: str, pod: Manifest, all_pods: Sequence[Manifest]
) -> Iterator[str]:
    """One match for each pair of a peer and a port; a rule without peers, or ports, means all."""
    field = "from" if flag == "-s" else "to"
    peers = [""]
    if rule.has(field):
        peers = [
            f" {flag} {place}" for peer in rule.parts(field) for place in _places(peer, all_pods)
        ]
    for peer in peers:
        if not rule.parts("ports"):
            yield peer
        for port in rule.parts("ports"):
            protocol = port.text("protocol", "TCP").lower()
            number = pods.port_number(pod, port.scalar("port"))
            yield f"{peer} -p {protocol} -m {protocol} --dport {number}"


def _places(peer: Manifest, all_pods: Sequence[Manifest]) -> Iterator[str]:
    """Addresses of a peer. There is one namespace, so a namespace selector takes all of its pods."""
    if peer.has("ipBlock"):
        yield peer.text("ipBlock.cidr")
        return
    for pod in all_pods:
        if pods.address(pod) and selects(peer.part("podSelector"), pod.labels):
            yield f"{pods.address(pod)}/32"
