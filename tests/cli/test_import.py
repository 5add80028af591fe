"""Budgets from Slurm's accounts and Kueue's queues, and what of them is reported as lost."""

import os
from pathlib import Path
from typing import Any

import pytest

from fairlead.cli.importing.kueue import NotKueue, import_kueue
from fairlead.cli.importing.report import Imported
from fairlead.cli.importing.slurm import Defaults, NotSlurm, import_slurm
from fairlead.schema.objects import read_manifest
from fairlead.schema.yaml import parse_yaml_documents
from tests.cli.shells import run_inside

DUMP = """# To edit this file start with a cluster line for the new cluster
Cluster - 'lab':Fairshare=1:QOS='normal'
Parent - 'root'
User - 'root':DefaultAccount='root':AdminLevel='Administrator':Fairshare=1
Account - 'physics':Description='x':Fairshare=60:{limits}:MaxJobs=50
Account - 'bio.lab':Organization='uni':Fairshare=1:GrpTRES=gres/gpu:a100=4,gres/gpu:h100=2
Account - 'guests':Description='no limit':Organization='uni'
Parent - 'physics'
Account - 'hep':Description='hep':Organization='uni':GrpTRESMins=gres/gpu=600
User - 'ada':DefaultAccount='physics':Fairshare=1:GrpTRES=gres/gpu=2
Parent - 'hep'
User - 'ada':DefaultAccount='physics':Fairshare=1
User - 'bob':DefaultAccount='hep':Fairshare=1
""".replace("{limits}", "GrpTRES=cpu=512,gres/gpu=16:GrpTRESMins=gres/gpu=60000")
ASSOC = """Cluster|Account|ParentName|User|Share|GrpTRES|GrpTRESMins|QOS
lab|root||||||normal
lab|vision|root||1|gres/gpu=8|gres/gpu=120000|vision
lab|vision||eve|1|||vision
"""
QOS = """Name|Priority|Preempt|GrpTRES|GrpTRESMins
normal|0||gres/gpu=64|
vision|100|low|gres/gpu=6|
"""
LAB = Defaults("H100", None, None)


def budgets(made: Imported) -> dict[str, Any]:
    """By name; each is one that the server takes."""
    for manifest in made.manifests:
        read_manifest(manifest)
    return {one["metadata"]["name"]: one["spec"] for one in made.manifests}


def lost(made: Imported) -> set[tuple[str, str]]:
    return {(one.object, one.field) for one in made.lost}


def test_a_dump_becomes_a_tree_of_budgets() -> None:
    """Hours of minutes, types of GPUs as flavors, a child's width from its parent."""
    made = import_slurm([DUMP], LAB)
    found = budgets(made)
    assert list(found) == ["physics", "bio.lab", "hep"]
    (physics,) = found["physics"]["envelopes"]
    assert physics == {"name": "h100", "flavor": "H100", "concurrency": 16, "maxGPUHours": 1000.0}
    assert [(e["flavor"], e["concurrency"]) for e in found["bio.lab"]["envelopes"]] == [
        ("A100", 4),
        ("H100", 2),
    ]
    assert found["hep"]["parents"] == ["physics"]
    assert found["hep"]["envelopes"][0] | {"maxGPUHours": 10.0} == found["hep"]["envelopes"][0]
    assert found["hep"]["envelopes"][0]["concurrency"] == 16
    assert made.commands == [
        "fairlead users bind ada --owner hep --owner physics",
        "fairlead users bind bob --owner hep",
    ]
    assert lost(made) == {
        ("account physics", "fairshare"),
        ("account physics", "maxjobs"),
        ("account physics", "grptres"),
        ("account physics", "grptresmins"),
        ("account guests", "grptres"),
        ("account hep", "grptresmins"),
        ("user ada of physics", "grptres"),
    }
    monthly = import_slurm([DUMP], Defaults("H100", 32, "monthly"))
    assert budgets(monthly)["physics"]["envelopes"][0]["recurrence"] == "monthly"
    assert budgets(monthly)["guests"]["envelopes"][0]["concurrency"] == 32
    assert ("account hep", "grptresmins") not in lost(monthly)


def test_the_qos_of_one_account_limits_it_and_others_are_reported() -> None:
    made = import_slurm([ASSOC, QOS], LAB)
    assert budgets(made)["vision"]["envelopes"][0]["concurrency"] == 6
    assert made.commands == ["fairlead users bind eve --owner vision"]
    assert {("qos vision", "priority"), ("qos vision", "preempt")} <= lost(made)
    assert ("qos normal", "grptres") in lost(made)
    with pytest.raises(NotSlurm, match="sacctmgr dump"):
        import_slurm(["hello\n"], LAB)


KUEUE = b"""
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {name: team-a}
spec:
  cohort: lab
  namespaceSelector: {}
  preemption: {withinClusterQueue: LowerPriority}
  resourceGroups:
  - coveredResources: [cpu, nvidia.com/gpu]
    flavors:
    - name: h100
      resources:
      - {name: cpu, nominalQuota: 64}
      - {name: nvidia.com/gpu, nominalQuota: 8, borrowingLimit: 4, lendingLimit: 2}
---
kind: ClusterQueue
metadata: {name: team-b}
spec:
  cohortName: lab
  resourceGroups:
  - flavors:
    - name: h100
      resources: [{name: nvidia.com/gpu, nominalQuota: "4"}]
    - name: a100
      resources: [{name: nvidia.com/gpu, nominalQuota: 0}]
---
kind: Cohort
metadata: {name: lab}
spec: {parentName: org}
---
kind: LocalQueue
metadata: {name: main, namespace: a}
"""


def test_queues_become_a_family_and_lending_is_by_name() -> None:
    made = import_kueue(parse_yaml_documents(KUEUE))
    found = budgets(made)
    assert found["team-a"]["parents"] == ["lab"]
    (envelope,) = found["team-a"]["envelopes"]
    assert (envelope["concurrency"], envelope["sharing"]) == (8, "none")
    assert envelope["lending"] == {"allow": True, "to": ["team-b"], "maxConcurrency": 2}
    assert [one["flavor"] for one in found["team-b"]["envelopes"]] == ["h100"]
    assert found["lab"] == {"owner": "lab", "parents": ["org"], "envelopes": []}
    assert lost(made) == {
        ("ClusterQueue team-a", "h100.cpu"),
        ("ClusterQueue team-a", "h100.nvidia.com/gpu.borrowingLimit"),
        ("ClusterQueue team-a", "h100.nvidia.com/gpu.lendingLimit"),
        ("ClusterQueue team-a", "preemption"),
        ("ClusterQueue team-b", "a100.nvidia.com/gpu.nominalQuota"),
        ("LocalQueue main", ""),
    }


def test_a_list_without_its_cohort_and_rubbish() -> None:
    """A cohort that no document declares is a budget without envelopes; others are named."""
    documents = parse_yaml_documents(KUEUE)[:2]
    assert budgets(import_kueue(documents))["lab"]["envelopes"] == []
    made = import_kueue(["rubbish", {"kind": "Pod"}, {"kind": "Cohort", "metadata": {"name": "c"}}])
    assert lost(made) == {("document rubbish", ""), ("Pod without a name", "")}


def test_accounts_in_a_circle_and_endless_numbers_are_reported() -> None:
    """A hand-edited file must neither hang the import nor end it with a traceback."""
    head = "Account|ParentName|User|GrpTRES|GrpTRESMins|QOS\n"
    circle = import_slurm([f"{head}a|b||||\nb|a||||\n"], LAB)
    assert lost(circle) == {("account a", "grptres"), ("account b", "grptres")}
    long = "9" * 5000
    made = import_slurm([f"{head}a|||gres/gpu=8|gres/gpu={long}|\nb|||gres/gpu={long}||\n"], LAB)
    assert "maxGPUHours" not in budgets(made)["a"]["envelopes"][0]
    assert {("account a", "grptresmins"), ("account b", "grptres")} <= lost(made)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "found nothing"),
        (
            "kind: ConfigMap\nmetadata: {name: x}\n---\nkind: LocalQueue\n",
            "1 ConfigMap, 1 LocalQueue",
        ),
        ("a: 1\n", "1 document without a kind"),
        ("just text\n", "1 document"),
    ],
)
def test_a_file_without_a_queue_is_refused(text: str, found: str) -> None:
    """An import of nothing that succeeds would look like one of a cluster without budgets."""
    documents = [one for one in parse_yaml_documents(text.encode()) if one is not None]
    with pytest.raises(NotKueue, match="must have a ClusterQueue or a Cohort.*" + found):
        import_kueue(documents)


@pytest.mark.parametrize(
    "text",
    [
        "Account|User|GrpTRES\n",
        QOS,
        "Cluster - 'lab':Fairshare=1\nParent - 'root'\nUser - 'root':AdminLevel='Administrator'\n",
    ],
)
def test_a_file_without_an_account_is_refused(text: str) -> None:
    """A header alone, a QOS that no account has, a cluster with root only."""
    with pytest.raises(NotSlurm, match="must name an account besides root"):
        import_slurm([text], LAB)


@pytest.mark.parametrize("kind", ["kueue", "slurm"])
def test_an_import_of_nothing_exits_as_bad_input(kind: str, tmp_path: Path) -> None:
    """Exit code 2, the file and what was expected; a script that pipes it on stops."""
    file = tmp_path / "lab.yaml"
    file.write_text("kind: ConfigMap\n")
    done = run_inside("import", kind, str(file), environment=dict(os.environ))
    assert (done.returncode, done.stdout) == (2, b"")
    assert f"{file}: must " in done.stderr.decode()
