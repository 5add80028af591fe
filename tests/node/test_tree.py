"""The agent touches what lies below its root, and nothing else."""

import os
import subprocess
from pathlib import Path
from subprocess import PIPE

import pytest

from fairlead.node.cgroups import CgroupTree
from fairlead.node.limits import CgroupActuator
from fairlead.node.sensor import CgroupSensor
from fairlead.ports.cpu import Gone
from fairlead.ports.faults import PermanentFault
from tests.api.servers import short_folder
from tests.node.cgroup_worlds import PlainTree


@pytest.fixture
def tree(tmp_path: Path) -> PlainTree:
    made = PlainTree(2, tmp_path / "root")
    made.create("web")
    outside = PlainTree(2, tmp_path / "outside")
    outside.create("victim")
    return made


@pytest.mark.parametrize(
    "uid",
    ["..", "../outside/victim", "web/..", "web/../../outside/victim", "/etc", "a//b", ".", "a\0b"],
)
def test_paths_that_lead_elsewhere_are_refused(tree: PlainTree, uid: str) -> None:
    """`..`, absolute and empty components never reach the file system."""
    with pytest.raises(PermanentFault):
        CgroupActuator(tree.files()).write(1, uid, "", 500)


def test_symlinks_are_not_followed(tree: PlainTree, tmp_path: Path) -> None:
    """Neither as a pod, nor as a container, nor as a kernel file."""
    victim = tmp_path / "outside" / "victim"
    os.symlink(victim, tree.root / "link")
    os.symlink(victim, tree.root / "web" / "inner")
    tree.create("odd")
    (tree.root / "odd" / "cpu.max").unlink()
    os.symlink(victim / "cpu.max", tree.root / "odd" / "cpu.max")
    actuator = CgroupActuator(tree.files())
    for uid, container in (("link", ""), ("web", "inner"), ("odd", "")):
        with pytest.raises(PermanentFault):
            actuator.write(1, uid, container, 500)
    assert (victim / "cpu.max").read_text() == "max 100000\n"
    seen = [sighting.uid for sighting in CgroupSensor(tree.files(), "*").sample(0)]
    assert "link" not in seen


def test_patterns_match_component_by_component(tmp_path: Path) -> None:
    """`pods/*` does not reach deeper, and `..` in a pattern is refused."""
    tree = PlainTree(2, tmp_path / "root")
    for path in ("pods/a", "pods/b/inner", "system/x"):
        tree.create(path)
    cpu = CgroupTree(tree.root)
    assert cpu.matching("*") == ["pods", "system"]
    assert cpu.matching("pods/*") == ["pods/a", "pods/b"]
    assert cpu.matching("*/[ax]") == ["pods/a", "system/x"]
    assert cpu.matching("nothing/*") == []
    with pytest.raises(PermanentFault):
        cpu.matching("../*")


def test_a_missing_root_is_explained(tmp_path: Path) -> None:
    """The fault names the path."""
    with pytest.raises(PermanentFault, match="nowhere"):
        CgroupTree(tmp_path / "nowhere")


def test_a_pod_that_is_gone_is_said_to_be_gone(tree: PlainTree) -> None:
    """Not an error to shout about: its limit went with it."""
    with pytest.raises(Gone):
        CgroupActuator(tree.files()).write(1, "nobody", "", 500)


def test_a_name_that_is_not_utf8_ends_no_agent(tmp_path: Path) -> None:
    """It is left out as a pod. As a container, its pod is limited as a whole: a limit on the
    other containers would not hold for it."""
    tree = PlainTree(2, tmp_path / "root")
    for path in ("web", "web/app", "db", "db/main"):
        tree.create(path)
    for odd in (b"odd-\xff", b"db/\xfe"):
        os.mkdir(os.fsencode(tree.root) + b"/" + odd)
    sightings = CgroupSensor(tree.files(), "*").sample(0)
    seen = {pod.uid: [container.name for container in pod.containers] for pod in sightings}
    assert seen == {"web": ["app"], "db": [""]}
    for pod in sightings:
        pod.uid.encode()


def test_two_agents_never_set_the_limits_of_one_root(tmp_path: Path) -> None:
    """Nor of one below the other's, whatever their state directories; branches do not matter."""
    for name in ("", "a", "a/b", "c"):
        (tmp_path / "root" / name).mkdir()
        (tmp_path / "root" / name / "cgroup.procs").touch()
    root = tmp_path / "root"
    first, beside = CgroupTree(root / "a"), CgroupTree(root / "c")
    first.claim()
    beside.claim()
    for other in ("a", "a/b", ""):
        tree = CgroupTree(root / other)
        with pytest.raises(PermanentFault, match="another node agent sets the limits"):
            tree.claim()
        tree.close()
    first.close()
    below = CgroupTree(root / "a" / "b")
    below.claim()
    again = CgroupTree(root / "a")
    with pytest.raises(PermanentFault, match="or of a cgroup below it"):
        again.claim()
    for tree in (beside, below, again):
        tree.close()


LOCK = """
use Fcntl qw(:flock);
$| = 1;
sysopen(my $held, $ARGV[0], 0200000) or die "cannot open: $!";
flock($held, LOCK_EX | LOCK_NB) or die "cannot lock: $!";
exit if $ARGV[1] && fork;
print "locked\n";
<STDIN>;
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("handed_on", [False, True])
def test_a_user_that_can_set_no_limits_keeps_no_agent_away(*, handed_on: bool) -> None:
    """Whoever can enter a directory can lock it, also for a child that outlives the process; a
    second agent is found all the same."""
    with short_folder() as folder:
        folder.chmod(0o755)
        command = ["perl", "-e", LOCK, str(folder), "1" if handed_on else ""]
        locker = subprocess.Popen(
            command, stdin=PIPE, stdout=PIPE, user=54_413, group=54_413, extra_groups=[], cwd="/"
        )
        try:
            assert locker.stdout is not None
            assert locker.stdout.readline() == b"locked\n"
            first, second = CgroupTree(folder), CgroupTree(folder)
            first.claim()
            first.close()
        finally:
            locker.communicate(b"\n")
        first = CgroupTree(folder)
        first.claim()
        with pytest.raises(PermanentFault, match="another node agent sets the limits"):
            second.claim()
        first.close()
        second.close()
