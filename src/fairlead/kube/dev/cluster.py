"""A Kubernetes cluster on loopback, for development and tests: real programs, simulated nodes.

    with Cluster(programs, Path("/tmp/c"), ClusterOptions(nodes=4), report=print) as cluster:
        cluster.apply(manifests)
        cluster.kubectl("get", "nodes")

One TCP port (the API server's), etcd on a Unix socket, everything below one directory. The
processes end with the block, or by the kernel when the thread that started them ends: start a
cluster in the main thread. Who may use it: who can read its kubeconfig, that is its owner.
"""

import base64
import contextlib
import json
import os
import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any, Self

from fairlead.host import files, http
from fairlead.host.clock import wait_until
from fairlead.host.process import free_port, spawn
from fairlead.kube.certificates import Authority
from fairlead.kube.dev import components
from fairlead.kube.dev.assets import Programs
from fairlead.kube.dev.components import HOST, ClusterOptions
from fairlead.kube.dev.real_node import NAME, RealNode
from fairlead.ports.faults import PermanentFault, TemporaryFault, faults

START_S, STOP_S = 60.0, 10.0
_PORT_ATTEMPTS = 3
_LOG_LINES = 8
_EVERY_S = 0.05
_CONNECTIONS = 8
_JSON = {"Content-Type": "application/json"}
# Name of a kubeconfig, and the user and groups that it stands for.
_ACCOUNTS = {
    "admin": ("admin", ("system:masters",)),
    "controller-manager": ("system:kube-controller-manager", ()),
    "scheduler": ("system:kube-scheduler", ()),
    "kwok": ("kwok", ("system:masters",)),
}


class _PortTaken(Exception):
    """Another process took the port between our choice and the server's start."""


class Cluster:
    """Control plane, and simulated nodes if there are any; started by `with`, or by `start`."""

    def __init__(
        self,
        programs: Programs,
        directory: Path,
        options: ClusterOptions | None = None,
        *,
        keep: bool = False,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`keep`: the directory stays, and the next cluster in it continues."""
        self.programs, self.directory = programs, directory.absolute()
        self.options = options or ClusterOptions()
        self._keep, self._report = keep, report
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, list[str]] = {}
        self._lock: int | None = None
        self._endpoint: http.HttpEndpoint | None = None
        self.real_node = RealNode(programs, self.directory / "node", self.options.images)
        self.port = 0

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.directory / "kubeconfig"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Ready when it returns: the API server answers, accounts are made, nodes are Ready."""
        began = time.monotonic()
        self._prepare()
        self._start_server()
        self._report(f"API server: ready after {time.monotonic() - began:.1f} s")
        if self.options.controllers:
            self.run("kube-controller-manager", components.controller_manager())
        if self.options.scheduler:
            self.run("kube-scheduler", components.scheduler())
        if self.options.nodes:
            self.run("kwok", components.kwok(self.options))
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        if self.options.controllers:
            self.wait_for(lambda: self.get(account) is not None, "the first service account")
        self._add_nodes()
        if self.options.real_node:
            self._start_real_node()
        self._report(f"cluster: ready after {time.monotonic() - began:.1f} s")

    def stop(self) -> None:
        """End every process, by its id, clients before servers; then remove the directory."""
        if "node" in self._processes:
            self.end("node", signal.SIGKILL)  # with its namespace goes every process in it
        for name in reversed(list(self._processes)):
            self.end(name)
        self.real_node.remove()
        if self._lock is None:
            return
        if not self._keep:
            self._clear()
            with contextlib.suppress(OSError):  # not empty: the rest is not ours
                self.directory.rmdir()
        os.close(self._lock)
        self._lock = None

    def run(self, name: str, command: Sequence[str] | None = None) -> None:
        """Start a process of the cluster, or start it again as it was started before."""
        if command is not None:
            self._commands[name] = [self.programs.path(command[0]), *command[1:]]
        log = self.directory / "log" / f"{name}.log"
        with faults(f"start {name}"), open(log, "ab") as output:
            self._processes[name] = spawn(
                self._commands[name],
                output=output,
                cwd=str(self.directory),
                ends_with_us=signal.SIGKILL,
            )

    def end(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """End one process and wait for it; killed if it takes longer than 10 s."""
        process = self._processes.pop(name)
        process.send_signal(number)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def restart(self, name: str) -> None:
        """kill -9, and start it again as it was; ready when it returns."""
        self.end(name, signal.SIGKILL)
        self.run(name)
        self.wait_for(self._server_ready, "ready API server")

    def pids(self) -> dict[str, int]:
        """The processes of the cluster."""
        return {name: process.pid for name, process in self._processes.items()}

    def check(self) -> None:
        """Raise a fault if a process of the cluster has ended by itself, unless it is supervised:
        then it is started again."""
        for name, process in list(self._processes.items()):
            if process.poll() is None:
                continue
            if self.options.supervised and name in components.SUPERVISED:
                self.run(name)
                continue
            text = (self.directory / "log" / f"{name}.log").read_text("utf-8", "replace")
            if name == "kube-apiserver" and "address already in use" in text:
                raise _PortTaken
            lines = "\n  ".join(text.splitlines()[-_LOG_LINES:])
            raise PermanentFault(f"{name} ended with {process.returncode}:\n  {lines}")

    def wait_for(
        self,
        ready: Callable[[], bool],
        what: str,
        *,
        within_s: float = START_S,
        every_s: float = _EVERY_S,
    ) -> None:
        """Wait until `ready()` while every process lives; a fault when that takes too long."""

        def come() -> bool:
            if ready():
                return True
            self.check()
            return False

        if not wait_until(come, within_s=within_s, every_s=every_s):
            raise TemporaryFault(f"the cluster has no {what} after {within_s:g} s")

    def get(self, path: str) -> Any:
        """An object or a list of the API server, as the administrator; None when there is none."""
        if self._endpoint is None:
            raise PermanentFault("the cluster is not started")
        try:
            reply = http.exchange(self._endpoint, "GET", path, timeout_s=10)
        except http.NoReply:
            return None
        return json.loads(reply.body) if reply.status == 200 else None

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        """Run kubectl as the administrator; its output, or a fault with its errors."""
        return kubectl(self.programs, self.kubeconfig, *arguments, text=text)

    def apply(self, manifests: Iterable[Mapping[str, Any]]) -> None:
        """Create or change objects."""
        apply(self.programs, self.kubeconfig, manifests)

    def kubeconfig_for(self, user: str, groups: Sequence[str] = ()) -> Path:
        """A kubeconfig of any user: RBAC decides what it may do."""
        path = self.directory / "kubeconfigs" / base64.urlsafe_b64encode(user.encode()).decode()
        self._write_kubeconfig(path, user, groups)
        return path

    def _prepare(self) -> None:
        with faults(f"use {self.directory}"):
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.directory.chmod(0o700)
            self._lock = files.try_lock(self.directory)
            if self._lock is None:
                raise PermanentFault(f"{self.directory} is in use by another cluster")
            if not self._keep:
                self._clear()
            for folder in ("log", "kubeconfigs"):
                (self.directory / folder).mkdir(exist_ok=True)
            for name in components.ETCD_SOCKETS:
                (self.directory / name).unlink(missing_ok=True)
            self._authority = Authority(self.directory / "pki")
        self._issue()

    def _clear(self) -> None:
        """Remove what a cluster makes, and nothing else: the directory may be the user's."""
        for folder in ("etcd", "ledger", "log", "kubeconfigs", "pki", "node"):
            shutil.rmtree(self.directory / folder, ignore_errors=True)
        for name in ("kubeconfig", *components.ETCD_SOCKETS):
            (self.directory / name).unlink(missing_ok=True)

    def _issue(self) -> None:
        authority = self._authority
        authority.write_service_account_keys()
        names = components.SERVER_NAMES
        pair = authority.server("kube-apiserver", names, (HOST, components.SERVICE_ADDRESS))
        authority.write("apiserver", pair)
        authority.write("kubelet-client", authority.client("kubelet-client", ("system:masters",)))
        authority.write("front-proxy", authority.client("front-proxy"))
        authority.write("admin", authority.client(*_ACCOUNTS["admin"]))

    def _start_server(self) -> None:
        self.run("etcd", components.etcd(self.options))
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            self.port = free_port()
            self._endpoint = self._admin_endpoint()
            for name, (user, groups) in _ACCOUNTS.items():
                self._write_kubeconfig(self.directory / "kubeconfigs" / name, user, groups)
            shutil.copyfile(self.directory / "kubeconfigs" / "admin", self.kubeconfig)
            self.kubeconfig.chmod(0o600)
            self.run("kube-apiserver", components.api_server(self.options, self.port))
            try:
                self.wait_for(self._server_ready, "ready API server")
                return
            except _PortTaken:
                self.end("kube-apiserver")
                (self.directory / "log" / "kube-apiserver.log").unlink()
                if attempt == _PORT_ATTEMPTS:
                    raise TemporaryFault("every port that was tried is taken") from None

    def _server_ready(self) -> bool:
        if self._endpoint is None:
            return False
        try:
            return http.exchange(self._endpoint, "GET", "/readyz", timeout_s=5).status == 200
        except http.NoReply:
            return False

    def _admin_endpoint(self) -> http.HttpEndpoint:
        pki = self.directory / "pki"
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        return http.HttpEndpoint(HOST, self.port, tls=context)

    def _write_kubeconfig(self, path: Path, user: str, groups: Sequence[str]) -> None:
        pair = self._authority.client(user, groups)
        cluster = {
            "server": f"https://{HOST}:{self.port}",
            "certificate-authority-data": _base64(self._authority.certificate),
        }
        account = {
            "client-certificate-data": _base64(pair.certificate),
            "client-key-data": _base64(pair.key),
        }
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fairlead", "cluster": cluster}],
            "users": [{"name": user, "user": account}],
            "contexts": [{"name": "fairlead", "context": {"cluster": "fairlead", "user": user}}],
            "current-context": "fairlead",
        }
        with faults(f"write {path}"):
            files.replace_json(path, document, durable=False)

    def _add_nodes(self) -> None:
        count = self.options.nodes
        if not count:
            return
        lanes = [range(start, count, _CONNECTIONS) for start in range(_CONNECTIONS)]
        with ThreadPoolExecutor(_CONNECTIONS) as executor:
            list(executor.map(self._create_nodes, lanes))
        # A list of a thousand nodes has 3 MB: not twenty times a second.
        self.wait_for(
            lambda: len(self._ready_nodes()) >= count,
            "Ready nodes",
            within_s=START_S + count / 10,
            every_s=max(_EVERY_S, count / 1_000),
        )

    def _create_nodes(self, numbers: range) -> None:
        """One request each over one connection: kubectl takes a minute for a thousand."""
        if self._endpoint is None:
            raise PermanentFault("the cluster is not started")
        connection = HTTPSConnection(HOST, self.port, context=self._endpoint.tls, timeout=30)
        with contextlib.closing(connection), faults("add simulated nodes"):
            for number in numbers:
                body = json.dumps(components.fake_node(number, self.options.gpus))
                connection.request("POST", "/api/v1/nodes", body, _JSON)
                reply = connection.getresponse()
                text = reply.read().decode("utf-8", "replace")
                if reply.status not in (201, 409):  # 409: a kept cluster has it already
                    raise PermanentFault(f"node {number} was refused: {text}")

    def _start_real_node(self) -> None:
        config = self.kubeconfig_for(f"system:node:{NAME}", ("system:nodes",))
        tainted = self.options.nodes > 0  # or the pods of simulated nodes would come here
        self.run("node", self.real_node.prepare(self._authority, config, tainted=tainted))
        self.wait_for(lambda: NAME in self._ready_nodes(), "Ready real node")

    def _ready_nodes(self) -> set[str]:
        listed = self.get("/api/v1/nodes") or {"items": []}
        return {
            node["metadata"]["name"]
            for node in listed["items"]
            for condition in node["status"].get("conditions", ())
            if condition["type"] == "Ready" and condition["status"] == "True"
        }


def kubectl(programs: Programs, kubeconfig: Path, *arguments: str, text: str | None = None) -> str:
    """Run kubectl; its output, or a fault with its errors."""
    command = [programs.path("kubectl"), f"--kubeconfig={kubeconfig}", *arguments]
    with faults("run kubectl"):
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PermanentFault(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def apply(programs: Programs, kubeconfig: Path, manifests: Iterable[Mapping[str, Any]]) -> None:
    """Create or change objects, one request each; ours win over other writers' fields."""
    document = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)})
    flags = ("--server-side", "--force-conflicts", "--field-manager=fairlead-dev")
    kubectl(programs, kubeconfig, "apply", *flags, "-f", "-", text=document)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
