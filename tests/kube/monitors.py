"""What the Prometheus operator and discovery make of a monitor, for a Prometheus without either.

Debian's Prometheus is built without discovery by Kubernetes. Its targets are therefore listed here,
from the API server, with the labels that discovery gives them; choosing among them is left to it.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from fairlead.kube.dev.cluster import Cluster
from tests.kube.world import Document

META = "__meta_kubernetes_"


def scrape_job(cluster: Cluster, monitor: Document, folder: Path, token: str = "") -> Document:
    """The job of a ServiceMonitor or a PodMonitor, as far as the chart uses these."""
    spec, name = monitor["spec"], monitor["metadata"]["name"]
    namespace = monitor["metadata"]["namespace"]
    of_pods = monitor["kind"] == "PodMonitor"
    (endpoint,) = spec["podMetricsEndpoints" if of_pods else "endpoints"]
    kind = "pod" if of_pods else "service"
    port = "pod_container_port_name" if of_pods else "endpoint_port_name"
    job = _label(kind, spec["jobLabel"]) if "jobLabel" in spec else f"{META}{kind}_name"
    wanted = {_label(kind, key): value for key, value in spec["selector"]["matchLabels"].items()}
    wanted[f"{META}{port}"] = endpoint["port"]
    found = list(_pods(cluster, namespace)) if of_pods else endpoints(cluster, namespace)
    assert len(found) > 1, "there is something to choose from"
    targets = folder / f"{name}.json"
    targets.write_text(json.dumps([{"targets": [at], "labels": labels} for at, labels in found]))
    made: Document = {
        "job_name": name,
        "scrape_interval": "1s",
        "scrape_timeout": "1s",
        "scheme": endpoint.get("scheme", "http"),
        "file_sd_configs": [{"files": [str(targets)]}],
        "relabel_configs": [
            *(
                {"source_labels": [label], "regex": value, "action": "keep"}
                for label, value in wanted.items()
            ),
            {"source_labels": [job], "target_label": "job"},
        ],
    }
    if "tlsConfig" in endpoint:
        source = endpoint["tlsConfig"]["ca"]["configMap"]
        bundle = cluster.get(f"/api/v1/namespaces/{namespace}/configmaps/{source['name']}")
        (folder / "ca.crt").write_text(bundle["data"][source["key"]])
        made["tls_config"] = {"ca_file": str(folder / "ca.crt")}
        made["tls_config"]["server_name"] = endpoint["tlsConfig"]["serverName"]
    if "bearerTokenFile" in endpoint:
        # In a pod that file has the token of the account that Prometheus runs as.
        made["authorization"] = {"credentials": token}
    return made


def _label(kind: str, name: str) -> str:
    return f"{META}{kind}_label_{re.sub('[^a-zA-Z0-9]', '_', name)}"


def _labels(kind: str, document: Document) -> dict[str, str]:
    meta = document["metadata"]
    rows = {_label(kind, name): value for name, value in (meta.get("labels") or {}).items()}
    return {f"{META}{kind}_name": meta["name"], **rows}


def endpoints(cluster: Cluster, namespace: str) -> list[tuple[str, Mapping[str, str]]]:
    return list(_endpoints(cluster, namespace))


def _endpoints(cluster: Cluster, namespace: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
    for row in cluster.get(slices)["items"]:
        name = row["metadata"]["labels"]["kubernetes.io/service-name"]
        labels = _labels("service", cluster.get(f"/api/v1/namespaces/{namespace}/services/{name}"))
        for endpoint in row["endpoints"] or ():
            for port in row["ports"] or ():
                named = {f"{META}endpoint_port_name": port.get("name") or ""}
                for address in endpoint["addresses"]:
                    yield f"{address}:{port['port']}", {**labels, **named}


def _pods(cluster: Cluster, namespace: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    for pod in cluster.get(f"/api/v1/namespaces/{namespace}/pods")["items"]:
        for container in pod["spec"]["containers"]:
            for port in container.get("ports") or ():
                named = {f"{META}pod_container_port_name": port["name"]}
                where = f"{pod['status']['podIP']}:{port['containerPort']}"
                yield where, {**_labels("pod", pod), **named}
