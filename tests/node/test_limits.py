"""Original limits: kept from first sight until they are restored or their container is gone."""

from pathlib import Path

from fairlead.core.cpu import ContainerSighting, PodSighting
from fairlead.node.kernel_files import Quota
from fairlead.node.limits import Originals
from fairlead.node.state import StateDirectory
from tests.node.cgroup_worlds import PlainTree

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
