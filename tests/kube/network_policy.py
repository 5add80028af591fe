"""A NetworkPolicy in force, as a network plugin has it: by rules of the kernel, for pods of a node.

The real node's own plugin, `bridge`, knows no policies. What is read here is what the API server
stores; a rule that has more than ports is refused, because it would be taken for a wider one.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.kube.world import Document

CHAIN = "FAIRLEAD-TEST"
_OPEN = ("-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT")


@contextmanager
def enforced(policy: Document, addresses: list[str]) -> Iterator[None]:
    """For the pods that it selects, at these addresses. What the node itself asks of its pods, such
    as probes, is let in by every plugin."""
    rules = [rule for address in addresses for rule in _rules(policy["spec"], address)]
    _run("-N", CHAIN)
    try:
        for rule in rules:
            _run("-A", CHAIN, *rule)
        # To other pods, and to addresses of the node.
        for chain in ("FORWARD", "INPUT"):
            _run("-I", chain, "-j", CHAIN)
        yield
    finally:
        for chain in ("FORWARD", "INPUT"):
            _run("-D", chain, "-j", CHAIN, check=False)
        _run("-F", CHAIN)
        _run("-X", CHAIN)


def _rules(spec: Document, address: str) -> Iterator[tuple[str, ...]]:
    for kind, side in (("ingress", "-d"), ("egress", "-s")):
        if kind.title() not in spec["policyTypes"]:
            continue
        pod = (side, address)
        yield (*pod, *_OPEN)
        for rule in spec.get(kind, ()):
            assert rule.keys() == {"ports"}, f"a rule by more than ports: {rule}"
            for port in rule["ports"]:
                yield (
                    *pod,
                    "-p",
                    port["protocol"].lower(),
                    "--dport",
                    str(port["port"]),
                    "-j",
                    "ACCEPT",
                )
        yield (*pod, "-j", "DROP")


def _run(*command: str, check: bool = True) -> None:
    subprocess.run(["iptables", "-w", *command], check=check, capture_output=True)
