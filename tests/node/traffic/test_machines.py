"""This machine: stalled time and what can run out, from a /proc of ours and the real one."""

from pathlib import Path

from fairlead.core.traffic.nodes import observe_nodes
from fairlead.core.traffic.sighting import CpuTimes, NodeReading, NodeWindows
from fairlead.node.traffic.sensors import LocalMachine

PSI = "{kind} avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n"
FILES = {
    "pressure/cpu": PSI.format(kind="some", total=100) + PSI.format(kind="full", total=9),
    "pressure/memory": PSI.format(kind="some", total=5) + PSI.format(kind="full", total=2),
    "pressure/io": PSI.format(kind="some", total=7) + PSI.format(kind="full", total=3),
    "meminfo": "MemTotal:  1000 kB\nMemFree:  1 kB\nMemAvailable:  250 kB\n",
    "sys/fs/file-nr": "60\t0\t100\n",
    "sys/net/netfilter/nf_conntrack_count": "5\n",
    "sys/net/netfilter/nf_conntrack_max": "10\n",
    "loadavg": "0.1 0.2 0.3 2/345 6789\n",
    "sys/kernel/pid_max": "4194304\n",
    "stat": "cpu  10 20 30 400 50 6 7 8 90 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n",
}


def proc(folder: Path, **changes: str | None) -> Path:
    for name, text in {**FILES, **changes}.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)
    return folder


def test_everything_is_read(tmp_path: Path) -> None:
    """`cpu full` is left out: for a whole machine the kernel says 0."""
    (node,) = LocalMachine("n1", disks=[tmp_path], proc=proc(tmp_path)).read(7)
    assert node.totals is not None
    assert node.totals.time_us == 7_000
    assert node.totals.stalled_us == {
        "cpu_some": 100,
        "mem_some": 5,
        "mem_full": 2,
        "io_some": 7,
        "io_full": 3,
    }
    assert node.cpu == CpuTimes(7, 531, 50)
    found = {each.name: (each.limit, each.used) for each in node.resources}
    disk = found.pop(f"disk {tmp_path}")
    assert found == {
        "memory": (1_024_000, 768_000),
        "fds": (100, 60),
        "conntrack": (10, 5),
        "pids": (4_194_304, 345),
    }
    assert disk[0] is not None
    assert disk[1] is not None
    assert 0 <= disk[1] <= disk[0]


def test_what_cannot_be_read_or_understood_is_missing(tmp_path: Path) -> None:
    """An empty file, another format, no file: nothing is guessed."""
    folder = proc(tmp_path)
    for name in FILES:
        (folder / name).write_text("?\n")
    (node,) = LocalMachine("n1", disks=[tmp_path / "nowhere"], proc=folder).read(7)
    assert (node.totals, node.resources, node.cpu) == (None, (), None)
    (node,) = LocalMachine("n1", proc=tmp_path / "nowhere").read(7)
    assert (node.totals, node.resources, node.cpu) == (None, (), None)
    for text in ("", "\n", "cpu 1 2 3\n", "cpu0 1 2 3 4 5 6 7 8\n", "cpu 1 2 3 4 -5 6 7 8\n"):
        (node,) = LocalMachine("n1", proc=proc(tmp_path, stat=text)).read(7)
        assert node.cpu is None


def test_stalls_are_shares_of_the_last_ten_seconds(tmp_path: Path) -> None:
    """Differences of counters, every tick; a counter that falls is another boot."""
    windows: dict[str, NodeWindows] = {}
    total = 0
    shares = []
    for tick in range(60):
        total += 50_000  # a quarter of every 200 ms
        text = PSI.format(kind="some", total=total)
        vitals = LocalMachine("n1", proc=proc(tmp_path, pressure__cpu=text))
        windows, (node,) = observe_nodes(windows, vitals.read(tick * 200))
        shares.append(None if node.psi is None else node.psi.cpu_some)
    assert shares[0] is None
    assert all(abs((share or 0) - 0.25) < 1e-9 for share in shares[1:])
    vitals = LocalMachine("n1", proc=proc(tmp_path, pressure__cpu=PSI.format(kind="some", total=1)))
    windows, (node,) = observe_nodes(windows, vitals.read(60 * 200))
    assert node.psi is None


def test_waiting_for_disks_is_a_share_of_the_last_ten_seconds() -> None:
    """Of all CPU time; unknown before time has passed and after a new boot."""
    windows: dict[str, NodeWindows] = {}

    def share(at_ms: int, total: float | None, iowait: float = 0.0) -> float | None:
        cpu = None if total is None else CpuTimes(at_ms, total, iowait)
        nonlocal windows
        windows, (node,) = observe_nodes(windows, [NodeReading("n1", cpu=cpu)])
        return node.iowait_ratio

    assert share(0, 100, 10) is None
    assert share(0, 100, 10) is None
    assert share(5_000, 200, 60) == 0.5
    assert share(10_000, 300, 60) == 0.25
    assert share(15_000, 400, 60) == 0.0
    assert share(16_000, 500, 50) == 0.0
    assert share(17_000, None) is None
    assert share(18_000, 600, 50) is None
    assert share(19_000, 10, 1) is None
    assert share(20_000, 30, 6) == 0.25


def test_the_machine_we_are_on() -> None:
    """Whatever this kernel keeps, it is read without a fault."""
    (node,) = LocalMachine("here", disks=[Path("/")]).read(1)
    assert any(each.name == "memory" for each in node.resources)
    assert node.cpu is not None
    assert 0 <= node.cpu.iowait < node.cpu.total
