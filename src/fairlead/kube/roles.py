"""The role that tenants get in their namespaces; the chart ships the same one."""

from fairlead.kube.client import Document
from fairlead.kube.kinds import GROUP

TENANT = f"{GROUP.partition('.')[0]}-tenant"
_WRITE = ["get", "list", "watch", "create", "update", "patch", "delete"]
_READ = ["get", "list", "watch"]


def tenant_role() -> Document:
    """What `kubectl runs` and `kubectl fairlead` need. Who may create Queries acts for the
    namespace's owner."""
    rules = [
        ([GROUP], ["runs", "reservations", "routegroups"], _WRITE),
        ([GROUP], ["gpuleases", "podallocations"], _READ),
        ([GROUP], ["queries"], ["get", "create", "delete"]),
        ([""], ["pods"], _READ),
        ([""], ["pods/log"], ["get"]),
    ]
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {
            "name": TENANT,
            "labels": {"app.kubernetes.io/name": TENANT, "app.kubernetes.io/part-of": "fairlead"},
        },
        "rules": [
            {"apiGroups": groups, "resources": resources, "verbs": list(verbs)}
            for groups, resources, verbs in rules
        ],
    }
