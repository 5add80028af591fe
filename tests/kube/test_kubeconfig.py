"""Kubeconfigs as kubectl reads them: several files, token files, exec plugins."""

import base64
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.kube.client import KubeClient
from fairlead.kube.kubeconfig import connection
from fairlead.ports.faults import PermanentFault
from tests.kube.world import World, team

CLUSTER = {"server": "http://127.0.0.1:1"}


def write(path: Path, user: dict[str, Any] | None = None, **more: Any) -> Path:
    """A kubeconfig with one context, `c`."""
    context = {"cluster": "c", "user": "u", "namespace": "team-a"}
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": context}],
        "clusters": [{"name": "c", "cluster": CLUSTER}],
        "users": [{"name": "u", "user": user or {}}],
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump({**config, **more}))
    return path


def plugin(folder: Path, body: str) -> Path:
    script = folder / "plugin"
    script.write_text(f"#!{sys.executable}\nimport json, os, time\n{body}\n")
    script.chmod(0o755)
    return script


def credential(**status: Any) -> str:
    version = "client.authentication.k8s.io/v1"
    return json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status})


def executing(folder: Path, body: str, **more: Any) -> dict[str, Any]:
    plugin(folder, body)
    version = "client.authentication.k8s.io/v1"
    return {"exec": {"apiVersion": version, "command": "./plugin", **more}}


def test_of_several_files_the_first_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing one is left out; a path in a file is relative to that file."""
    first = write(tmp_path / "one" / "config", **{"contexts": [], "clusters": [], "users": []})
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "token").write_text("from-two\n")
    second = write(tmp_path / "two" / "config", {"tokenFile": "token"})
    third = write(
        tmp_path / "three" / "config", {"token": "from-three"}, **{"current-context": "other"}
    )
    files = [first, tmp_path / "missing", second, third]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, files)))
    found = connection()
    assert (found.host, found.port, found.namespace) == ("127.0.0.1", 1, "team-a")
    assert found.token() == "from-two"
    (tmp_path / "two" / "token").write_text("renewed\n")
    assert found.token() == "renewed"
    with pytest.raises(PermanentFault, match="has no context 'nope'"):
        connection(context="nope")


@pytest.mark.parametrize(
    ("user", "says"),
    [
        ({"auth-provider": {"name": "x"}}, "has auth-provider, which is not supported"),
        ({"as": "root"}, "has as, which is not supported"),
        ({"tokenFile": "none"}, "none: No such file"),
        ({"exec": {"apiVersion": "v0", "command": "x"}}, "exec.apiVersion: must be"),
        (
            {
                "exec": {
                    "apiVersion": "client.authentication.k8s.io/v1",
                    "command": "no-such-program-here",
                    "installHint": "install it so",
                }
            },
            "no such program in PATH: 'no-such-program-here'\ninstall it so",
        ),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, user: dict[str, Any], says: str) -> None:
    with pytest.raises(PermanentFault, match=says):
        connection(write(tmp_path / "config", user))


def test_an_exec_plugin_is_asked_again_when_its_token_ends(tmp_path: Path) -> None:
    """It learns where the cluster is, gets its variables, and is not asked for each request."""
    body = f"""
with open("{tmp_path}/asked", "a") as file: file.write("x")
count = len(open("{tmp_path}/asked").read())
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
ends = {{"expirationTimestamp": "2001-01-01T00:00:00Z"}} if count == 1 else {{}}
token = f"{{os.environ['WHO']}}-{{count}}-{{info['spec']['cluster']['server']}}"
version = info["apiVersion"]
print(json.dumps({{"apiVersion": version, "kind": "ExecCredential",
                   "status": {{"token": token, **ends}}}}))
"""
    env = [{"name": "WHO", "value": "ana"}]
    user = executing(tmp_path, body, env=env, provideClusterInfo=True)
    found = connection(write(tmp_path / "config", user))
    assert found.token() == "ana-2-http://127.0.0.1:1"  # the first was over
    assert found.token() == "ana-2-http://127.0.0.1:1"


def test_what_a_plugin_writes_is_never_told(tmp_path: Path) -> None:
    """A credential that we cannot read may still be one."""
    body = 'print(\'{"apiVersion": "v9", "kind": "x", "secret": "hush"}\')'
    with pytest.raises(PermanentFault) as raised:
        connection(write(tmp_path / "config", executing(tmp_path, body)))
    assert "wrote no ExecCredential" in str(raised.value)
    assert "hush" not in str(raised.value)
    with pytest.raises(PermanentFault, match="ended with 7"):
        connection(write(tmp_path / "config", executing(tmp_path, "raise SystemExit(7)")))


def test_a_user_of_an_exec_plugin_is_let_in(world: World, tmp_path: Path) -> None:
    """With a token, and with a client certificate, by the real API server."""
    world.apply(*team("team-a"))
    config = yaml.safe_load(world.kubeconfig.read_text())
    token = world.kubectl("-n", "team-a", "create", "token", "default").strip()
    own = config["users"][0]["user"]
    pair = {
        field: base64.b64decode(own[f"{name}-data"]).decode()
        for name, field in (
            ("client-certificate", "clientCertificateData"),
            ("client-key", "clientKeyData"),
        )
    }
    for status, groups in (
        ({"token": token}, "system:serviceaccounts:team-a"),
        (pair, "system:masters"),
    ):
        config["users"][0]["user"] = executing(tmp_path, f"print({credential(**status)!r})")
        (tmp_path / "config").write_text(yaml.safe_dump(config))
        client = KubeClient(connection(tmp_path / "config"))
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        said = client.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
        assert groups in said["status"]["userInfo"]["groups"]
        client.close()
