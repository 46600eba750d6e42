"""Which addresses a name of the cluster has now. Pure: services and pods in, addresses out.

A service with a cluster IP has that one. A headless service has the addresses of its pods, and each pod of it that
names the service as its subdomain has a name of its own. Pods that are not ready are left out unless the service
publishes them.
Source: https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/
"""

from collections.abc import Sequence

from tests.helm.podlab import pods
from tests.helm.podlab.manifest import Manifest
from tests.helm.podlab.selectors import is_subset
from tests.helm.podlab.store import NAMESPACE

DOMAIN = "cluster.local"
SUFFIX = f".{NAMESPACE}.svc.{DOMAIN}"


def endpoints(service: Manifest, all_pods: Sequence[Manifest]) -> list[Manifest]:
    """The pods behind a service that have an address and may be used."""
    selector = service.pairs("spec.selector")
    publishes_all = service.flag("spec.publishNotReadyAddresses")
    return [
        pod
        for pod in all_pods
        if selector
        and is_subset(selector, pod.labels)
        and pods.address(pod)
        and pods.phase(pod) not in ("Succeeded", "Failed")
        and (publishes_all or pods.is_ready(pod))
    ]


def resolve(
    name: str, services: Sequence[Manifest], all_pods: Sequence[Manifest]
) -> list[str] | None:
    """The addresses of a full name; None when there is no such name."""
    if not name.endswith(SUFFIX):
        return None
    *host, service_name = name.removesuffix(SUFFIX).split(".")
    service = next((found for found in services if found.name == service_name), None)
    if service is None or len(host) > 1:
        return None
    if service.text("spec.clusterIP") != "None":
        return None if host else [service.text("spec.clusterIP")]
    behind = endpoints(service, all_pods)
    if host:
        behind = [pod for pod in behind if _is_called(pod, host[0], service_name)]
    return [pods.address(pod) for pod in behind] or None


def _is_called(pod: Manifest, hostname: str, subdomain: str) -> bool:
    return (
        pod.text("spec.hostname", pod.name) == hostname and pod.text("spec.subdomain") == subdomain
    )
