"""Original limits: kept from first sight until they are restored or their container is gone."""

from pathlib import Path

from fairlead.core.cpu import (
    ContainerSighting,
    Counters,
    CpuConfig,
    CpuMemory,
    NodeSample,
    PodSighting,
    observe,
)
from fairlead.node.kernel_files import Quota
from fairlead.node.limits import Originals
from fairlead.node.sensor import identity_of
from fairlead.node.state import StateDirectory
from tests.node.cgroup_worlds import PlainTree

COUNTERS = Counters(1, 1, 1, 0, 0)
OWN, OURS = Quota(50_000, 100_000, 0), Quota(20_000, 100_000, 0)


def seen(uid: str, *, opted_out: bool = False) -> PodSighting:
    return PodSighting(uid, 100, (ContainerSighting("", 500, None),), opted_out=opted_out)


def test_a_pod_that_is_opted_out_later_can_still_be_restored(tmp_path: Path) -> None:
    """Our limit is in force until then; one that was opted out at first sight was never touched."""
    tree = PlainTree(2, tmp_path / "root")
    for uid in ("later", "never"):
        tree.create(uid)
    files, directory = tree.files(), StateDirectory(tmp_path / "state")
    directory.create()
    for uid in ("later", "never"):
        files.set_quota(uid, OWN)
    originals = Originals(directory)
    originals.freeze([seen("later"), seen("never", opted_out=True)], files)
    files.set_quota("later", OURS)
    originals.freeze([seen("later", opted_out=True), seen("never", opted_out=True)], files)
    assert Originals(directory).restore(files) == (["later"], [])
    assert files.quota("later") == OWN
    tree.close()


def test_a_pod_that_is_opted_in_again_keeps_its_users_ceiling(tmp_path: Path) -> None:
    """The limit in force is ours; its own one, kept since first sight, bounds it."""
    tree = PlainTree(2, tmp_path / "root")
    tree.create("pod")
    files, directory = tree.files(), StateDirectory(tmp_path / "state")
    directory.create()
    files.set_quota("pod", OWN)
    originals = Originals(directory)
    originals.freeze([seen("pod")], files)
    files.set_quota("pod", OURS)
    originals.freeze([seen("pod", opted_out=True)], files)
    now = PodSighting("pod", 100, (ContainerSighting("", 200, COUNTERS),))
    (pod,) = Originals(directory).freeze([now], files)
    assert pod.originals == {"": 500}
    memory = observe(CpuMemory(), NodeSample(1000, (pod,)), CpuConfig(node_millicores=4000))
    known = memory.pods["pod"]
    assert (known.original_limit_millicores, known.max_millicores) == (500, 500)
    assert (known.current_millicores, known.adopted) == (200, False)
    assert known.containers[""].original_limit_millicores == 500
    tree.close()


def test_originals_of_pods_that_another_pattern_found_are_kept(tmp_path: Path) -> None:
    """They can be restored as long as their cgroup is there, and is the same one."""
    tree = PlainTree(2, tmp_path / "root")
    files, directory = tree.files(), StateDirectory(tmp_path / "state")
    directory.create()
    sightings = []
    for uid in ("a", "b", "c"):
        tree.create(uid)
        files.set_quota(uid, OWN)
        sightings.append(seen(uid)._replace(identity=identity_of(files, uid) or ""))
    sightings[1] = sightings[1]._replace(identity="another boot")
    Originals(directory).freeze(sightings, files)
    files.set_quota("a", OURS)
    originals = Originals(directory)
    assert originals.freeze([sightings[2]], files)
    assert len(originals) == 2, "that of b belonged to another cgroup of its name"
    assert "a" in originals.restore(files)[0]
    assert files.quota("a") == OWN
    tree.close()
