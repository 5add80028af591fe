"""Fields of a Run that embedded mode has, too: what they are for pods, and what is said of them."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.schema.border import BadInput
from fairlead.schema.objects import read_manifest
from tests.kube.plugins import tenant
from tests.kube.world import Document, World, made, node, plane_of, run, team, until


def embedded(name: str, **spec: Any) -> Document:
    """A Run as `fairlead apply` takes it: without a template."""
    fields = {"flavor": "H100", "totalGPUs": 1, "command": ["train", "--fast"], **spec}
    return made("Run", name, fields, "team-a")


def container_of(world: World, pod: str) -> Document:
    until(lambda: pod in world.names("pods"), f"{pod} is made")
    return dict(world.get("pod", pod, "team-a")["spec"]["containers"][0])


def accepted(world: World, name: str) -> Document:
    def found() -> Document | None:
        rows = world.get("run", name, "team-a").get("status", {}).get("conditions", ())
        return next((row for row in rows if row["type"] == "Accepted"), None)

    return dict(until(found, f"{name} is judged"))


def test_a_manifest_of_embedded_mode_applies_unchanged(world: World) -> None:
    """CPUs, memory, directory and terminal become the container's; what no pod has is said."""
    world.apply(node("n1"), *team("team-a"))
    train = embedded(
        "train",
        owner="team-a",
        cpus=1.5,
        memory="2Gi",
        workingDirectory="/data",
        terminal=True,
        umask="0022",
        idleAfter="30m",
        env={"A": "1"},
    )
    assert read_manifest({**train, "metadata": {"name": "train"}})
    world.apply(train)
    with world.controlled():
        world.reach("train", "Running")
        container = container_of(world, "train-0")
        limits = container["resources"]["limits"]
        assert (limits["cpu"], limits["memory"]) == ("1500m", str(2 * 2**30))
        assert container["resources"]["requests"] == limits
        assert (container["workingDir"], container["tty"], container["stdin"]) == (
            *("/data", True),
            True,
        )
        assert container["command"] == ["train", "--fast"]
        said = accepted(world, "train")
        assert (said["status"], said["reason"]) == ("True", "Accepted")
        assert "spec.umask has no effect: a pod has none" in said["message"]
        assert "spec.idleAfter has no effect" in said["message"]


def test_what_a_template_says_of_cpus_and_memory_stands(world: World) -> None:
    own = {"requests": {"cpu": "250m"}}
    container = {"name": "main", "image": "busybox", "resources": own, "workingDir": "/own"}
    template = {"spec": {"containers": [container]}}
    document = run("train", 1, template=template, cpus=4, memory="1Gi", workingDirectory="/data")
    world.apply(node("n1"), *team("team-a"), document)
    with world.controlled():
        found = container_of(world, "train-0")
        assert found["resources"]["requests"]["cpu"] == "250m"
        assert "cpu" not in found["resources"]["limits"]
        assert found["resources"]["limits"]["memory"] == str(2**30)
        assert found["workingDir"] == "/own"


def test_secrets_in_files_of_a_machine_are_refused(world: World) -> None:
    secret = {"TOKEN": {"file": "/etc/team/token"}}
    world.apply(node("n1"), *team("team-a"), embedded("train", secretEnv=secret))
    with world.controlled():
        status = world.reach("train", "Refused")
        assert "spec.secretEnv: names files of a machine" in status["message"]
        assert "secretKeyRef" in status["message"]


def test_a_run_starts_after_others(world: World) -> None:
    """Applied in an order in which none exists yet that it names; one of them fails."""
    world.apply(node("n1"), *team("team-a"))
    with world.controlled() as controller:
        plane_of(controller)
        world.apply(
            run("a-last", 1, after=[{"run": "b-second"}]),
            run("b-second", 1, after=[{"run": "c-first"}]),
            run("d-any", 1, after=[{"run": "c-first", "condition": "afterAny"}]),
            run("e-lost", 1, after=[{"run": "d-any"}]),
        )
        waiting = accepted(world, "b-second")
        assert (waiting["status"], waiting["reason"]) == ("Unknown", "NoRun")
        assert "there is no Run 'c-first' in its namespace yet" in waiting["message"]
        world.apply(run("c-first", 1))
        world.reach("c-first", "Running")
        until(lambda: world.phase("a-last") == "Pending", "a-last is accepted")
        until(
            lambda: (
                "starts after run/b-second"
                in world.get("run", "a-last", "team-a")["status"]["message"]
            ),
            "it says for what it waits",
        )
        assert world.names("pods") == ["c-first-0"]
        world.exit("c-first-0", 0)
        world.reach("b-second", "Running")
        world.reach("d-any", "Running")
        assert world.phase("a-last") == "Pending"
        world.exit("b-second-0", 0)
        world.exit("d-any-0", 1)
        world.reach("a-last", "Running")
        assert world.reach("e-lost", "Failed")["reason"] == "DependencyFailed"


def test_runs_that_start_after_each_other_are_refused(world: World) -> None:
    world.apply(node("n1"), *team("team-a"))
    with world.controlled():
        world.apply(run("a", 1, after=[{"run": "b"}]))
        assert accepted(world, "a")["reason"] == "NoRun"
        world.apply(run("b", 1, after=[{"run": "a"}]))
        status = world.reach("b", "Refused")
        assert "spec.after: forms a circle: 'a' starts after 'b'" in status["message"]
        world.apply(run("c", 1, after=[{"run": "c"}]))
        assert "forms a circle" in world.reach("c", "Refused")["message"]


WRONG = [
    ({"malleable": {"minTotalGPUs": 4}}, "groupGPUs is required for a malleable run"),
    ({"groupGPUs": 3, "sparesPerGroup": 1}, "totalGPUs must be whole groups"),
    (
        {"groupGPUs": 4, "sparesPerGroup": 1, "malleable": {"minTotalGPUs": 6, "stepGPUs": 2}},
        "malleable.minTotalGPUs must be whole groups",
    ),
    (
        {"groupGPUs": 4, "sparesPerGroup": 1, "malleable": {"minTotalGPUs": 4}},
        "malleable.stepGPUs must be whole groups",
    ),
    ({"idleAction": "Warn"}, "idleAfter is required with idleAction"),
    ({"after": [{"run": "a"}, {"run": "a"}]}, "Duplicate value"),
    ({"umask": "22"}, "umask"),
]
RIGHT = [
    {"malleable": {"minTotalGPUs": 4, "stepGPUs": 4}, "groupGPUs": 4},
    {"malleable": {"minTotalGPUs": 4, "stepGPUs": 4}, "groupGPUs": 4, "sparesPerGroup": 1},
    {"groupGPUs": 3, "sparesPerGroup": 0},
    {"malleable": None, "groupGPUs": None},
    {"after": [{"run": "a"}, {"run": "b", "condition": "afterAny"}], "umask": "0022"},
]


def test_the_server_refuses_what_embedded_mode_refuses(world: World) -> None:
    """The same manifests through both borders."""
    world.apply(*team("team-a"))
    for number, (spec, says) in enumerate(WRONG):
        document = embedded(f"wrong-{number}", **{"owner": "team-a", "totalGPUs": 8, **spec})
        with pytest.raises(BadInput):
            read_manifest({**document, "metadata": {"name": "x"}})
        out = world.kubectl("apply", "-f", "-", given=json.dumps(document), check=False)
        assert says in out, (spec, out)
    for number, spec in enumerate(RIGHT):
        document = embedded(f"right-{number}", **{"owner": "team-a", "totalGPUs": 8, **spec})
        read_manifest({**document, "metadata": {"name": "x"}})
        world.apply(document)
    changed = embedded("right-4", owner="team-a", totalGPUs=8, after=[{"run": "c"}], umask="0022")
    out = world.kubectl("apply", "-f", "-", given=json.dumps(changed), check=False)
    assert "after is immutable" in out


def test_the_owner_of_a_run_is_shown(world: World, tmp_path: Path) -> None:
    """It follows from the namespace; what `get` shows can be applied again."""
    world.apply(node("n1"), *team("team-a"), run("train", 1), run("other", 1, owner="team-b"))
    ana = tenant(world, tmp_path, "team-a")
    with world.controlled():
        world.reach("train", "Running")
        world.reach("other", "Refused")
        head, *rows = ana.fairlead("get", "runs").out.splitlines()
        shown = {row.split()[0]: row.split()[head.split().index("OWNER")] for row in rows}
        assert shown == {"train": "team-a", "other": "team-b"}
        own = ana.fairlead("get", "runs", "--owner", "team-a", "-o", "name").out
        assert own == "run/train\n"
        (document,) = yaml.safe_load_all(ana.fairlead("get", "run/train", "-o", "yaml").out)
        again = ana.fairlead("apply", "-f", "-", given=yaml.safe_dump(document)).out
        assert again == "run/train unchanged\n"
        table = world.kubectl("-n", "team-a", "get", "runs")
        assert table.splitlines()[0].split()[:2] == ["NAME", "OWNER"]
        assert {tuple(row.split()[:2]) for row in table.splitlines()[1:]} == {
            ("train", "team-a"),
            ("other", "team-a"),
        }


def test_pods_of_a_run_at_risk_are_told(world: World) -> None:
    """By an annotation, which is a file in those that asked, and by an Event on each run."""
    world.apply(node("n1"), *team("team-a", gpus=8), *team("team-b", gpus=8))
    world.apply(run("asks", 4, warnBefore={"before": "1h", "signal": "USR1"}))
    world.apply(run("silent", 4))
    with world.controlled():
        world.reach("asks", "Running")
        world.reach("silent", "Running")
        container = container_of(world, "asks-0")
        env = {row["name"]: row["value"] for row in container["env"]}
        assert env["FAIRLEAD_WARNING_FILE"] == "/etc/fairlead/warning.json"
        begins = datetime.now(UTC) + timedelta(minutes=5)
        reserve = {"run": "big", "earliestStart": begins.strftime("%Y-%m-%dT%H:%M:%SZ")}
        world.apply(run("big", 8, "team-b"), made("Reservation", "soon", reserve, "team-b"))

        def notice() -> str | None:
            annotations = world.get("pod", "asks-0", "team-a")["metadata"]["annotations"]
            return annotations.get("fairlead.dev/warning")

        told = json.loads(until(notice, "its pod is told", 60))
        assert told.keys() == {"start", "chance", "chanceError", "message"}
        assert told["start"].startswith(begins.strftime("%Y-%m-%dT%H:%M:%S"))
        volumes = world.get("pod", "asks-0", "team-a")["spec"]["volumes"]
        (files,) = [row["downwardAPI"] for row in volumes if "downwardAPI" in row]
        assert [row["path"] for row in files["items"]] == ["warning.json"]
        silent = world.get("pod", "silent-0", "team-a")
        assert "fairlead.dev/warning" not in silent["metadata"]["annotations"]
        assert not [row for row in silent["spec"]["volumes"] if "downwardAPI" in row]

        def warned() -> set[str]:
            rows = world.get("events", namespace="team-a")["items"]
            return {
                row["involvedObject"]["name"]
                for row in rows
                if row["reason"] == "PreemptionPossible" and "big" not in row["message"]
            }

        until(lambda: warned() == {"asks", "silent"}, "both have an Event")
