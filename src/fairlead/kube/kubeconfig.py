"""Where the API server is and who we are, as kubectl finds it.

The given file, else the files of KUBECONFIG, else ~/.kube/config; inside a pod, its account. Of
several files the first that names a thing is right; a relative path in one is relative to it.
"""

import base64
import json
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fairlead.ports.faults import PermanentFault

Document = dict[str, Any]
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
EXEC_TIMEOUT_S = 120
"""A plugin may wait for a person who signs in with a browser."""
EARLY_S = 10
"""A token is renewed this long before it ends."""
LISTS = {"clusters": "cluster", "contexts": "context", "users": "user"}
UNSUPPORTED = {
    "cluster": ("tls-server-name", "proxy-url"),
    "user": ("auth-provider", "username", "as", "as-uid", "as-groups", "as-user-extra"),
}


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the API server is and who we are."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    token: Callable[[], str | None]
    namespace: str = "default"


def connection(kubeconfig: Path | None = None, *, context: str | None = None) -> Connection:
    """As kubectl finds it. Raises `PermanentFault` with what is missing or not supported."""
    named = os.environ.get("KUBECONFIG")
    if kubeconfig is None and (ACCOUNT / "token").exists() and not named:
        return _in_cluster()
    if kubeconfig is not None:
        files = [kubeconfig]
    elif named:
        files = [Path(name) for name in named.split(os.pathsep) if name]
    else:
        files = [Path.home() / ".kube" / "config"]
    config = merged(files)
    try:
        return _from_kubeconfig(config, context)
    except (ValueError, KeyError, TypeError, AttributeError, ssl.SSLError) as error:
        what = f"has no {error}" if isinstance(error, KeyError) else error
        raise PermanentFault(f"kubeconfig {config['from']}: {what}") from error
    except OSError as error:
        where = f"{error.filename or config['from']}: {error.strerror}"
        raise PermanentFault(f"cannot read what the kubeconfig names: {where}") from error


def merged(files: list[Path]) -> Document:
    """Several kubeconfigs as one. A file that is missing is left out, if another one is there."""
    whole: Document = {name: {} for name in LISTS} | {"current-context": None}
    found = []
    for file in files:
        try:
            part = _read(file)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise PermanentFault(f"cannot read kubeconfig {file}: {error.strerror}") from error
        found.append(str(file))
        for many, one in LISTS.items():
            rows = part.get(many) or []
            if not isinstance(rows, list):
                raise PermanentFault(f"kubeconfig {file}: {many}: must be a list")
            for row in rows:
                if not isinstance(row, dict) or not isinstance(row.get(one), dict):
                    raise PermanentFault(f"kubeconfig {file}: {many}: each must have a {one}")
                if not isinstance(row.get("name"), str):
                    raise PermanentFault(f"kubeconfig {file}: {many}: each must have a name")
                whole[many].setdefault(row["name"], {**row[one], "folder": file.parent})
        whole["current-context"] = whole["current-context"] or part.get("current-context")
    if not found:
        names = ", ".join(map(str, files))
        raise PermanentFault(f"cannot read kubeconfig {names}: No such file or directory")
    return {**whole, "from": ", ".join(found)}


def _read(file: Path) -> Document:
    import yaml  # noqa: PLC0415 - a pod needs none

    try:
        config = yaml.safe_load(file.read_text()) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise PermanentFault(f"kubeconfig {file}: {error}") from error
    if not isinstance(config, dict):
        raise PermanentFault(f"kubeconfig {file}: is not a kubeconfig")
    return config


def _in_cluster() -> Connection:
    tls = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    return Connection(
        os.environ["KUBERNETES_SERVICE_HOST"],
        int(os.environ.get("KUBERNETES_SERVICE_PORT", "443")),
        tls,
        lambda: (ACCOUNT / "token").read_text().strip(),  # the kubelet renews it
        (ACCOUNT / "namespace").read_text().strip(),
    )


def _from_kubeconfig(config: Document, context: str | None) -> Connection:
    chosen = _named(config, "contexts", context or config["current-context"])
    cluster = _named(config, "clusters", chosen.get("cluster"))
    user = _named(config, "users", chosen.get("user"))
    for kind, holder in (("cluster", cluster), ("user", user)):
        for unsupported in UNSUPPORTED[kind]:
            if holder.get(unsupported):
                raise ValueError(
                    f"{kind} {chosen[kind]!r} has {unsupported}, which is not supported"
                )
    parts = urlsplit(cluster["server"])
    if not parts.hostname:
        raise ValueError(f"cluster {chosen['cluster']!r} names no host")
    tls = None
    if parts.scheme == "https":
        ca = _data(cluster, "certificate-authority")
        tls = ssl.create_default_context(cadata=None if ca is None else ca.decode())
        if cluster.get("insecure-skip-tls-verify"):
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    certificate, key = (_data(user, name) for name in ("client-certificate", "client-key"))
    token = _token(user)
    if "exec" in user:
        plugin = ExecPlugin(user["exec"], user["folder"], cluster)
        credential = plugin.credential()
        certificate, key = credential.certificate or certificate, credential.key or key
        token = plugin.token
    if tls is not None and certificate is not None and key is not None:
        load_certificate(tls, certificate, key)
    port = parts.port or (443 if tls else 80)
    return Connection(parts.hostname, port, tls, token, chosen.get("namespace") or "default")


def _named(config: Document, many: str, name: str | None) -> Document:
    if name not in config[many]:
        raise ValueError(f"has no {LISTS[many]} {name!r}")
    return dict(config[many][name])


def _data(holder: Document, key: str) -> bytes | None:
    if holder.get(f"{key}-data"):
        return base64.b64decode(holder[f"{key}-data"])
    return Path(holder["folder"], holder[key]).read_bytes() if holder.get(key) else None


def _token(user: Document) -> Callable[[], str | None]:
    """A token's file is read again for each request: it may be renewed."""
    file, token = user.get("tokenFile"), user.get("token")
    if not file:
        return lambda: token
    path = Path(user["folder"], file)
    path.read_text()  # a missing one is told now
    return lambda: path.read_text().strip()


def load_certificate(tls: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """The ssl module loads certificates from files only; ours is gone again when it has."""
    with tempfile.NamedTemporaryFile(prefix="fairlead-") as file:  # mode 0600
        file.write(certificate + b"\n" + key)
        file.flush()
        tls.load_cert_chain(file.name)


@dataclass(frozen=True, slots=True)
class Credential:
    """What an exec plugin answered."""

    token: str | None = None
    certificate: bytes | None = None
    key: bytes | None = None
    ends_s: float | None = None
    """Unix time; None: it does not say."""


@dataclass(slots=True)
class ExecPlugin:
    """A program of the kubeconfig that signs the user in (`users[].user.exec`).

    A token is asked for again when it ends. A client certificate is used for as long as the process
    runs: long-running processes want a token.
    """

    spec: Document
    folder: Path
    cluster: Document
    _kept: Credential | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def token(self) -> str | None:
        return self.credential().token

    def credential(self) -> Credential:
        with self._lock:
            kept = self._kept
            if kept is None or (kept.ends_s is not None and kept.ends_s - EARLY_S < time.time()):
                kept = self._kept = self._ask()
            return kept

    def _ask(self) -> Credential:
        version, name = self.spec.get("apiVersion"), self.spec.get("command")
        if version not in EXEC_VERSIONS:
            raise PermanentFault(f"kubeconfig: exec.apiVersion: must be {EXEC_VERSIONS[0]}")
        interactive = sys.stdin is not None and sys.stdin.isatty()
        mode = self.spec.get("interactiveMode", "IfAvailable")
        if mode == "Always" and not interactive:
            raise PermanentFault(f"kubeconfig: exec plugin {name!r} needs a terminal")
        interactive = interactive and mode != "Never"
        try:
            done = subprocess.run(
                [self._program(), *(self.spec.get("args") or ())],
                env=self._environment(str(version), interactive=interactive),
                stdin=None if interactive else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                timeout=EXEC_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            hint = self.spec.get("installHint")
            more = f"\n{hint}" if hint else ""
            raise PermanentFault(f"kubeconfig: exec plugin {name!r}: {error}{more}") from error
        if done.returncode:
            raise PermanentFault(f"kubeconfig: exec plugin {name!r} ended with {done.returncode}")
        return self._read(done.stdout, str(version))

    def _program(self) -> str:
        """A name is looked up in PATH; a path is relative to the kubeconfig."""
        name = str(self.spec.get("command") or "")
        if "/" in name:
            return str(Path(self.folder, name))
        found = shutil.which(name)
        if found is None:
            raise FileNotFoundError(f"there is no such program in PATH: {name!r}")
        return found

    def _environment(self, version: str, *, interactive: bool) -> dict[str, str]:
        spec: Document = {"interactive": interactive}
        if self.spec.get("provideClusterInfo"):
            ca = _data(self.cluster, "certificate-authority")
            spec["cluster"] = {
                "server": self.cluster["server"],
                "insecure-skip-tls-verify": bool(self.cluster.get("insecure-skip-tls-verify")),
                "config": _extension(self.cluster),
            }
            if ca is not None:
                spec["cluster"]["certificate-authority-data"] = base64.b64encode(ca).decode()
        info = {"apiVersion": version, "kind": "ExecCredential", "spec": spec}
        own = {row["name"]: row["value"] for row in self.spec.get("env") or ()}
        return {**os.environ, **own, "KUBERNETES_EXEC_INFO": json.dumps(info)}

    def _read(self, data: bytes, version: str) -> Credential:
        name = self.spec.get("command")
        try:
            answer = json.loads(data)
            if (answer["apiVersion"], answer["kind"]) != (version, "ExecCredential"):
                raise ValueError(f"must be an ExecCredential of {version}")
            status, ends = answer["status"], None
            if status.get("expirationTimestamp"):
                ends = datetime.fromisoformat(status["expirationTimestamp"]).timestamp()
            certificate, key = (
                status[part].encode() if status.get(part) else None
                for part in ("clientCertificateData", "clientKeyData")
            )
            token = status.get("token")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            # Its output is never printed: it is a credential.
            what = f"no {error}" if isinstance(error, KeyError) else type(error).__name__
            raise PermanentFault(
                f"kubeconfig: exec plugin {name!r} wrote no ExecCredential of {version}: {what}"
            ) from None
        if token is None and certificate is None:
            raise PermanentFault(f"kubeconfig: exec plugin {name!r}: no token and no certificate")
        return Credential(token, certificate, key, ends)


def _extension(cluster: Document) -> Any:
    for row in cluster.get("extensions") or ():
        if row.get("name") == EXEC_VERSIONS[0].partition("/")[0] + "/exec":
            return row.get("extension")
    return None
