"""The resource types that the API server knows, and how helm finds them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One type: where it lives in the API and what its objects are called."""

    group_version: str
    plural: str
    kind: str

    @property
    def group(self) -> str:
        return self.group_version.partition("/")[0] if "/" in self.group_version else ""

    @property
    def version(self) -> str:
        return self.group_version.rpartition("/")[2]

    @property
    def api_path(self) -> str:
        """Where the group version is served: ``/api/v1`` or ``/apis/<group>/<version>``."""
        return ("/apis/" if "/" in self.group_version else "/api/") + self.group_version


_TABLE = {
    "v1": {
        "configmaps": "ConfigMap",
        "namespaces": "Namespace",
        "persistentvolumeclaims": "PersistentVolumeClaim",
        "pods": "Pod",
        "secrets": "Secret",
        "serviceaccounts": "ServiceAccount",
        "services": "Service",
    },
    "apps/v1": {"statefulsets": "StatefulSet", "controllerrevisions": "ControllerRevision"},
    "batch/v1": {"jobs": "Job"},
    "policy/v1": {"poddisruptionbudgets": "PodDisruptionBudget"},
    "networking.k8s.io/v1": {"networkpolicies": "NetworkPolicy", "ingresses": "Ingress"},
    "rbac.authorization.k8s.io/v1": {"roles": "Role", "rolebindings": "RoleBinding"},
    "monitoring.coreos.com/v1": {
        "servicemonitors": "ServiceMonitor",
        "podmonitors": "PodMonitor",
        "prometheusrules": "PrometheusRule",
    },
    "cert-manager.io/v1": {"certificates": "Certificate", "issuers": "Issuer"},
}

RESOURCES = tuple(
    Resource(group_version=group_version, plural=plural, kind=kind)
    for group_version, kinds in _TABLE.items()
    for plural, kind in kinds.items()
)

GROUP_VERSIONS = tuple(_TABLE)

BY_KIND = {resource.kind: resource for resource in RESOURCES}

BY_PLACE = {(resource.group_version, resource.plural): resource for resource in RESOURCES}
