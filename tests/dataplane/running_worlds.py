"""The worlds of proxies that their operator runs: each has a configuration that is not ours."""

import json
import shutil
import subprocess
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairlead.core.traffic.sighting import Liveness
from fairlead.dataplane.envoy import RunningEnvoyDataplane
from fairlead.dataplane.envoy.admin import ask as ask_admin
from fairlead.dataplane.envoy.admin import envoy_program
from fairlead.dataplane.haproxy import RunningHaproxyDataplane
from fairlead.dataplane.haproxy.runtime import ask
from fairlead.dataplane.haproxy.servers import ServerSettings, read_servers
from fairlead.host.process import free_port
from fairlead.ports.dataplane import Dataplane, RouteGroup
from fairlead.ports.faults import Fault
from tests.dataplane.worlds import RealWorld

HAPROXY = """
global
    stats socket unix@{home}/admin.sock mode 600 level {level} expose-fd listeners
    stats socket ipv4@127.0.0.1:{port} level {level}
    nbthread 1
    hard-stop-after 1s
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    timeout queue 30s
    {more}
"""


class RunningWorld(RealWorld):
    """A proxy that is there before the agent and after it."""

    split_error_max = 1

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        super().__init__()
        self.home = self.folder.parent

    def group(self, name: str, ids: Sequence[str]) -> RouteGroup:
        made = super().group(name, ids)
        self.serve()
        return made

    @abstractmethod
    def serve(self) -> None:
        """Start the proxy, or start it again, with all groups so far."""

    def stop(self) -> None:
        """End the proxy, which the test started."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
            self.process = None

    def age(self, liveness: Liveness) -> None:
        raise NotImplementedError("no heartbeat is judged")

    def reopen(self) -> None:
        """As after a kill: `detach` would put everything back."""
        self.plane = self.open()

    def close(self) -> None:
        super().close()
        self.stop()


class RunningHaproxyWorld(RunningWorld):
    """A HAProxy of its operator's."""

    level, more, server = "admin", "balance roundrobin", "check inter 500"
    certificate = ""
    backend: str | None = None

    def __init__(self) -> None:
        self.port = free_port()
        super().__init__()

    @property
    def socket(self) -> str:
        return f"{self.folder.parent}/admin.sock"

    def open(self) -> Dataplane:
        return running_haproxy(self.socket, str(self.folder))

    def opener(self) -> tuple[str, Mapping[str, Any]]:
        arguments = {"socket": self.socket, "folder": str(self.folder)}
        return "tests.dataplane.running_worlds:running_haproxy", arguments

    def serve(self) -> None:
        self.stop()
        self.configuration().write_text(self.text())
        program = shutil.which("haproxy") or "/usr/sbin/haproxy"
        command = [program, "-db", "-f", str(self.configuration())]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        self.until(self._answers, "HAProxy answers")

    def configuration(self) -> Path:
        return self.home / "haproxy.cfg"

    def text(self) -> str:
        parts = [HAPROXY.format(home=self.home, level=self.level, port=self.port, more=self.more)]
        for group in self.groups:
            bind = f"{group.vip}:{group.port} {self.certificate}"
            name = group.name
            parts += [f"frontend {name}", f"    bind {bind}", f"    default_backend {name}"]
            parts.append(f"backend {name}")
            for backend in group.backends:
                place = f"{backend.host}:{backend.port}"
                parts.append(f"    server {backend.id} {place} {self.server}")
        return "\n".join(parts) + "\n"

    def settings(self, group: str) -> dict[str, ServerSettings]:
        """What HAProxy has for each server now."""
        return {name: one.settings for name, one in read_servers(self.socket, group).items()}

    def left(self) -> list[str]:
        there = [str(self.folder)] if self.folder.exists() else []
        return there + [
            f"{group.name}/{name}: {settings}"
            for group in self.groups
            for name, settings in self.settings(group.name).items()
            if settings != ServerSettings(1, 0)
        ]

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, "HAProxy ended"
        try:
            return f"Pid: {self.process.pid}" in ask(self.socket, "show info")
        except Fault:
            return False


class RunningEnvoyWorld(RunningWorld):
    """An Envoy of its operator's, with static listeners and clusters that ask for endpoints."""

    split_error_max = 2
    unix = False
    logged = False
    kind = "EDS"

    def __init__(self) -> None:
        self.xds_port, self.admin_port = free_port(), free_port()
        super().__init__()

    @property
    def xds(self) -> str:
        home = self.folder.parent
        return f"{home}/xds.sock" if self.unix else f"127.0.0.1:{self.xds_port}"

    @property
    def requests(self) -> str | None:
        return f"{self.folder.parent}/access.log" if self.logged else None

    def arguments(self) -> dict[str, Any]:
        admin = f"127.0.0.1:{self.admin_port}"
        places = {"xds": self.xds, "admin": admin, "requests": self.requests}
        return {**places, "folder": str(self.folder)}

    def open(self) -> Dataplane:
        return running_envoy(**self.arguments())

    def opener(self) -> tuple[str, Mapping[str, Any]]:
        return "tests.dataplane.running_worlds:running_envoy", self.arguments()

    def apply(self, group: str, slots: Mapping[str, int], *args: Any, **kwargs: Any) -> None:
        """Envoy takes a table up with its next question."""
        super().apply(group, slots, *args, **kwargs)
        self.follow(group)

    def follow(self, group: str) -> None:
        """Wait until Envoy has what was offered last."""
        server = self.plane._server  # type: ignore[attr-defined]
        self.until(lambda: server.taken_up(group), "Envoy follows")

    def serve(self) -> None:
        self.stop()
        path = self.home / "envoy.json"
        path.write_text(json.dumps(self.bootstrap()))
        self._start(path)
        self.until(lambda: self._answers(path), "Envoy answers")

    def _start(self, path: Path) -> None:
        options = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "off"]
        options += ["--file-flush-interval-msec", "50"]
        self.process = subprocess.Popen([envoy_program(None), "-c", str(path), *options])

    def _answers(self, path: Path) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            self._start(path)  # another test had one of its ports for a moment
        try:
            return bool(ask_admin(f"127.0.0.1:{self.admin_port}", "/server_info"))
        except Fault:
            return False

    def bootstrap(self) -> dict[str, Any]:
        groups = self.groups
        return {
            "node": {"id": "shop", "cluster": "shop"},
            "admin": {"address": _tcp("127.0.0.1", self.admin_port)},
            "static_resources": {
                "listeners": [self._listener(group) for group in groups],
                "clusters": [self._fairlead(), *(self._cluster(group) for group in groups)],
            },
        }

    def _fairlead(self) -> dict[str, Any]:
        """Where endpoints are asked for."""
        pipe = {"pipe": {"path": self.xds}}
        place = pipe if self.unix else _tcp("127.0.0.1", self.xds_port)
        endpoints = [{"lb_endpoints": [{"endpoint": {"address": place}}]}]
        assignment = {"cluster_name": "fairlead", "endpoints": endpoints}
        return {"name": "fairlead", "connect_timeout": "1s", "load_assignment": assignment}

    def _cluster(self, group: RouteGroup) -> dict[str, Any]:
        source = {
            "api_type": "REST",
            "transport_api_version": "V3",
            "cluster_names": ["fairlead"],
            "refresh_delay": "0.05s",
        }
        config = {"resource_api_version": "V3", "api_config_source": source}
        cluster = {"name": group.name, "connect_timeout": "5s", "type": self.kind}
        if self.kind == "EDS":
            cluster["eds_cluster_config"] = {"eds_config": config}
        return cluster

    def _listener(self, group: RouteGroup) -> dict[str, Any]:
        filters = "type.googleapis.com/envoy.extensions.filters"
        router = {"@type": f"{filters}.http.router.v3.Router"}
        routes = [{"match": {"prefix": "/"}, "route": {"cluster": group.name}}]
        hosts = [{"name": group.name, "domains": ["*"], "routes": routes}]
        manager: dict[str, Any] = {
            "@type": f"{filters}.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": group.name,
            "route_config": {"virtual_hosts": hosts},
            "http_filters": [{"name": "router", "typed_config": router}],
        }
        if self.logged:
            manager["access_log"] = [{"name": "file", "typed_config": self._log()}]
        network = {"name": "http", "typed_config": manager}
        place = _tcp(group.vip, group.port)
        return {"name": group.name, "address": place, "filter_chains": [{"filters": [network]}]}

    def _log(self) -> dict[str, Any]:
        fields = ("UPSTREAM_CLUSTER", "UPSTREAM_HOST", "RESPONSE_CODE", "RESPONSE_FLAGS")
        line = " ".join(f"%{field}%" for field in (*fields, "DURATION")) + "\n"
        return {
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
            "path": self.requests,
            "log_format": {"text_format_source": {"inline_string": line}},
        }

    def weights(self, group: str) -> dict[str, int]:
        """What Envoy has for each backend now; one that is not listed is not there."""
        (found,) = [made for made in self.groups if made.name == group]
        ids = {f"{each.host}:{each.port}": each.id for each in found.backends}
        answer = json.loads(ask_admin(f"127.0.0.1:{self.admin_port}", "/clusters?format=json"))
        (cluster,) = [each for each in answer["cluster_statuses"] if each["name"] == group]
        weights = {}
        for host in cluster.get("host_statuses", ()):
            place = host["address"]["socket_address"]
            weights[ids[f"{place['address']}:{place['port_value']}"]] = host["weight"]
        return weights

    def left(self) -> list[str]:
        there = [str(self.folder)] if self.folder.exists() else []
        for group in self.groups:
            if set(self.weights(group.name).values()) != {1}:
                there.append(f"{group.name}: {self.weights(group.name)}")
        return there


def _tcp(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def running_envoy(xds: str, admin: str, requests: str | None, folder: str) -> Dataplane:
    """Open the plane of an Envoy that runs."""
    log = Path(requests) if requests else None
    return RunningEnvoyDataplane(xds=xds, admin_place=admin, folder=Path(folder), requests=log)


def running_haproxy(socket: str, folder: str) -> Dataplane:
    """Open the plane of a HAProxy that runs."""
    return RunningHaproxyDataplane(socket, Path(folder))
