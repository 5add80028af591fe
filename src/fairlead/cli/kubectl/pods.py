"""`pods`, `logs`, `submit` and `watch` of runs in a cluster, read with the caller's own rights."""

import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from typing import Any

import click

from fairlead.cli.client import Client, ServerError, changes_api
from fairlead.cli.completion import OBJECT, RUN
from fairlead.cli.gpu.follow import print_event
from fairlead.cli.gpu.objects import print_effects
from fairlead.cli.input import read_manifests
from fairlead.cli.kubectl.target import transport
from fairlead.cli.kubectl.transport import ClusterRefusal, KubeTransport, refusing, shown
from fairlead.cli.options import Integer, file_option, flag, option, output_option
from fairlead.cli.table import Output, columns, note
from fairlead.kube.client import ApiError
from fairlead.kube.kinds import KINDS
from fairlead.kube.watch import Mirrored
from fairlead.ports.faults import PermanentFault

Document = dict[str, Any]
RANK, OF_RUN = "fairlead.dev/rank", "fairlead.dev/run"
SYNC_S = 30.0
_PODS = columns(
    "RANK=rank pod PHASE=phase NODE=node RESTARTS=restarts EXIT=exit START@start",
    wide=["IP=ip REASON=reason LEASES=leases"],
)


def _rows(target: KubeTransport, run: str) -> list[Document]:
    """The pods of a run, by rank."""
    path = f"/api/v1/namespaces/{target.namespace}/pods"
    with refusing():
        pods, _ = target.client.list(path, labelSelector=f"{OF_RUN}={run}")
    rows = [_row(pod) for pod in pods]
    return sorted(rows, key=lambda row: (row["rank"], row["pod"]))


def _row(pod: Document) -> Document:
    meta, status = pod["metadata"], pod.get("status", {})
    containers = status.get("containerStatuses") or []
    sidecars = status.get("initContainerStatuses") or []
    ended = [row["state"]["terminated"] for row in containers if "terminated" in row["state"]]
    waiting = [row["state"]["waiting"] for row in containers if "waiting" in row["state"]]
    leaving = "Terminating" if "deletionTimestamp" in meta else status.get("phase", "Unknown")
    reasons = [row.get("reason") for row in (*ended, *waiting)]
    rank = meta["labels"].get(RANK, "")
    return {
        "rank": int(rank) if rank.isdigit() else -1,
        "pod": meta["name"],
        "phase": leaving,
        "node": pod["spec"].get("nodeName"),
        "restarts": sum(row.get("restartCount", 0) for row in (*containers, *sidecars)),
        "exit": ended[0].get("exitCode") if ended else None,
        "start": status.get("startTime"),
        "ip": status.get("podIP"),
        "reason": status.get("reason") or next(filter(None, reasons), None),
        "leases": (meta.get("annotations") or {}).get("fairlead.dev/leases"),
    }


@contextlib.contextmanager
def _telling() -> Iterator[None]:
    try:
        yield
    except ClusterRefusal as refusal:
        error = {"code": refusal.code, "path": refusal.path, "message": refusal.message}
        raise ServerError(refusal.status, error) from None


@click.command("pods")
@click.argument("run", type=RUN)
@output_option
def pods(*, run: str, output: str) -> None:
    """Show the pods of a run: rank, node, phase, exit code.

    \b
      kubectl runs pods train
      kubectl runs pods train -o json | jq -r '.[].node'
    """
    target = transport()
    with _telling():
        rows = _rows(target, run)
        if not rows:
            status = shown(target.get(KINDS["Run"], run))["status"]
            note(f"run/{run} has no pods; it is {status['phase']} ({status['reason']})")
    Output(output).rows(rows, _PODS)


@click.command("submit")
@file_option
@changes_api
def submit(client: Client, out: Output, *, files: tuple[str, ...]) -> None:
    """Submit runs; each starts once it is funded and placed.

    A run that cannot start yet is Pending; `fairlead explain run/NAME` says why. `fairlead plan` or
    --dry-run answers before you submit.

    \b
      fairlead submit -f run.yaml && fairlead logs -f train-7
      fairlead submit -f sweep/ --dry-run
    """
    changes = client.apply(read_manifests(files, only="Run"))
    out.each(changes, lambda change: print_effects(out, change))


@click.command("logs")
@click.argument("run", type=RUN)
@option("--rank", Integer(0), "Rank of the pod.", default=0)
@flag("-p --previous", "The container before its last restart.")
@flag("-f --follow", "Follow until the container ends.")
@option("--tail", Integer(0), "Start this many lines from the end.")
@option("-c --container", str, "Container of the pod [default: its first].")
def logs(
    *, run: str, rank: int, previous: bool, follow: bool, tail: int | None, container: str | None
) -> None:
    """Print the output of one rank of a run.

    Kubernetes keeps it while the pod exists. A rank's containers are not restarted in their pod;
    sidecars may be, and --previous is theirs. Ctrl-C stops following, and the run continues.

    \b
      kubectl runs logs train
      kubectl runs logs train --rank 3 -c proxy --previous
      kubectl runs logs -f train --tail 20
    """
    target = transport()
    with _telling():
        found = [row for row in _rows(target, run) if row["rank"] == rank]
        if not found:
            status = shown(target.get(KINDS["Run"], run))["status"]
            state = f"it is {status['phase']} ({status['reason']})"
            raise ClusterRefusal(404, "NotFound", f"run/{run} has no pod of rank {rank}; {state}")
        query: dict[str, str] = {"follow": str(follow).lower(), "previous": str(previous).lower()}
        if tail is not None:
            query["tailLines"] = str(tail)
        if container is not None:
            query["container"] = container
        path = f"/api/v1/namespaces/{target.namespace}/pods/{found[0]['pod']}/log"
        with contextlib.suppress(KeyboardInterrupt), refusing(), _reachable(found[0]["node"]):
            for data in target.client.stream(path, **query):
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()


@contextlib.contextmanager
def _reachable(node: str | None) -> Iterator[None]:
    """The API server asks the kubelet; where there is none, its words are those of TLS."""
    try:
        yield
    except ApiError as error:
        if error.status < 500:
            raise
        text = f"the kubelet of node {node} gave no logs; a simulated node has none"
        raise PermanentFault(f"{text} ({error.message})") from error


@click.command("watch")
@click.argument("which", type=OBJECT, required=False)
@option("--limit", Integer(1), "Stop after this many changes.")
@flag("--now", "Begin with the present state of each.")
@output_option
def watch(*, which: tuple[str, str] | None, limit: int | None, now: bool, output: str) -> None:
    """Print changes of runs and reservations as they happen.

    Of the namespace, or of one object. -o json prints one document per line. Ctrl-C stops it.

    \b
      kubectl runs watch
      kubectl runs watch run/train --now -o json | jq -r .reason
    """
    target, left = transport(), limit
    with contextlib.suppress(KeyboardInterrupt), _telling():
        for event in _changes(target, now=now):
            about = event["object"]
            if which not in (None, (about["kind"], about["name"])):
                continue
            print_event(event, output)
            left = None if left is None else left - 1
            if left == 0:
                return


def _changes(target: KubeTransport, *, now: bool) -> Iterator[Document]:
    """Each new state of an object once: what is written besides changes nothing that is told."""
    woken, told = threading.Event(), dict[tuple[str, str, str], str]()
    kinds = [KINDS[kind] for kind in ("Run", "Reservation")]
    with refusing():
        for kind in kinds:  # a watch that may not list would try for ever
            target.client.request("GET", kind.path(target.namespace) + "?limit=1")
    sources = [Mirrored(target.client, kind.path(target.namespace), woken.set) for kind in kinds]
    for source in sources:
        source.start()
    if not all(source.wait(SYNC_S) for source in sources):
        raise PermanentFault(f"cannot watch {sources[0].path}: {sources[0].fault or 'no answer'}")
    first = not now
    while True:
        woken.clear()
        for kind, source in zip(kinds, sources, strict=True):
            for key, document in sorted(source.take_changed().items()):
                event = _event(kind.kind, key.name, document)
                state = json.dumps([event["reason"], event["message"]])
                identity = (kind.kind, *key)
                if told.get(identity) != state:
                    told[identity] = state
                    if not first:
                        yield event
        first = False
        woken.wait()


def _event(kind: str, name: str, document: Document | None) -> Document:
    """As an event of the ledger; Kubernetes does not say which entry it is."""
    made = shown(document) if document is not None else {}
    status = made.get("status", {})
    state = status.get("phase") or status.get("state") or "Deleted"
    message = f"{state}: {status['message']}" if status.get("message") else state
    return {
        "seq": None,
        "time": status.get("since"),
        "kind": f"{kind.lower()}.{'phase' if kind == 'Run' else 'state'}",
        "object": {"kind": kind, "name": name},
        "owner": made.get("spec", {}).get("owner"),
        "reason": status.get("reason") or "Deleted",
        "message": message,
        "body": status,
    }
