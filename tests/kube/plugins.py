"""`kubectl runs` and `kubectl fairlead` as a person runs them: kubectl finds them in PATH."""

import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.kube.world import Document, World

ROOT = Path(__file__).parents[2]
RBAC = ROOT / "deploy" / "kube" / "base" / "fairlead.yaml"


def write_scripts(folder: Path) -> None:
    """The entry points of pyproject.toml, as pip would write them."""
    folder.mkdir()
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for name, where in scripts.items():
        module, function = where.split(":")
        script = folder / name
        script.write_text(f"#!{sys.executable}\nfrom {module} import {function}\n{function}()\n")
        script.chmod(0o755)


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that ended."""

    code: int
    out: str
    err: str


class Person:
    """A user with a kubeconfig, and kubectl with the plugins."""

    def __init__(self, world: World, folder: Path, kubeconfig: Path, namespace: str) -> None:
        self.kubeconfig, self._namespace = kubeconfig, namespace
        scripts = folder / "bin"
        if not scripts.exists():
            write_scripts(scripts)
        programs = world.cluster.programs
        path = f"{scripts}:{programs.directory}:{os.environ['PATH']}"
        heads = folder / f"heads-{kubeconfig.name}.json"
        self._environment = {
            **os.environ,
            "PATH": path,
            "KUBECONFIG": str(kubeconfig),
            "FAIRLEAD_HEADS": str(heads),
        }
        self._kubectl = programs.path("kubectl")

    def kubectl(self, *words: str, given: str | None = None, **environment: str) -> Ended:
        done = subprocess.run(
            [self._kubectl, *words],
            check=False,
            input=given,
            capture_output=True,
            text=True,
            timeout=120,
            env=self._environment | environment,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def runs(self, *words: str, given: str | None = None, code: int = 0) -> Ended:
        """`kubectl runs ... -n NAMESPACE`, which ends with this code."""
        done = self.kubectl("runs", *words, "-n", self._namespace, given=given)
        assert done.code == code, f"{words}: {done}"
        return done

    def fairlead(self, *words: str, given: str | None = None, code: int = 0) -> Ended:
        done = self.kubectl("fairlead", *words, "-n", self._namespace, given=given)
        assert done.code == code, f"{words}: {done}"
        return done


def tenant(world: World, folder: Path, namespace: str) -> Person:
    """A user with the shipped role `fairlead-tenant` in one namespace, and nothing else."""
    user = f"user-of-{namespace}"
    roles = [row for row in yaml.safe_load_all(RBAC.read_text()) if row["kind"] == "ClusterRole"]
    world.apply(*(row for row in roles if row["metadata"]["name"] == "fairlead-tenant"))
    world.apply(_binding(namespace, user))
    return Person(world, folder, world.cluster.kubeconfig_for(user), namespace)


def _binding(namespace: str, user: str) -> Document:
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "tenant", "namespace": namespace},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "fairlead-tenant"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    }
