"""Recorded trees of both versions: what the sensor reads of them is what was going on."""

import shutil
from pathlib import Path

import pytest

from fairlead.core.cpu import ContainerSighting
from fairlead.core.cpu.signal import read_signal
from fairlead.node.cgroups import open_files
from fairlead.node.sensor import CgroupSensor

DATA = Path(__file__).resolve().parents[1] / "data" / "cgroups"


def sample(version: int, moment: str) -> dict[str, dict[str, ContainerSighting]]:
    folder = DATA / f"v{version}" / moment
    cpu = folder / "cpu" if version == 1 else folder
    sensor = CgroupSensor(open_files(version, cpu, folder / "cpuacct"), "*")
    try:
        return {s.uid: {c.name: c for c in s.containers} for s in sensor.sample(0)}
    finally:
        sensor.close()


@pytest.mark.parametrize("version", [1, 2])
def test_a_recorded_tree_reads_as_it_was(version: int) -> None:
    """A busy thread on 250m of a core wants 1000m; an idle one wants next to nothing."""
    first, second = sample(version, "first"), sample(version, "second")
    assert list(second) == ["batch", "pair", "web"]
    assert [c.limit_millicores for c in second["pair"].values()] == [300, None]
    readings = {}
    for pod, container in (("batch", ""), ("pair", "app"), ("web", "")):
        before, after = first[pod][container].counters, second[pod][container].counters
        assert before is not None
        assert after is not None
        # The files carry no clock: they were read two seconds apart.
        reading = read_signal(before, after.__class__(before.time_us + 2_000_000, *_rest(after)))
        assert reading is not None
        readings[pod] = reading
    assert readings["batch"].shortage == pytest.approx(0.75, abs=0.03)
    assert readings["batch"].want_millicores == pytest.approx(1000, abs=60)
    assert readings["pair"].shortage == pytest.approx(0.70, abs=0.03)
    assert readings["web"].want_millicores < 100


def _rest(counters: object) -> tuple[int, int, int, int]:
    names = ("usage_us", "periods", "throttled_periods", "throttled_us")
    return tuple(getattr(counters, name) for name in names)  # type: ignore[return-value]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("damage", [b"", b"nr_periods", b"x" * 10_000, b"nr_periods -1\n"])
def test_a_damaged_file_blinds_one_container_only(
    version: int, damage: bytes, tmp_path: Path
) -> None:
    """Truncated, empty or huge: that signal is missing, the others are read."""
    shutil.copytree(DATA / f"v{version}" / "second", tmp_path / "tree")
    cpu = tmp_path / "tree" / "cpu" if version == 1 else tmp_path / "tree"
    (cpu / "batch" / "cpu.stat").write_bytes(damage)
    sensor = CgroupSensor(open_files(version, cpu, tmp_path / "tree" / "cpuacct"), "*")
    seen = {s.uid: s for s in sensor.sample(0)}
    assert seen["batch"].containers[0].counters is None
    assert seen["web"].containers[0].counters is not None
    sensor.close()


@pytest.mark.parametrize("version", [1, 2])
def test_a_vanishing_file_is_missing(version: int, tmp_path: Path) -> None:
    """A pod whose files go away between samples is not seen as idle."""
    shutil.copytree(DATA / f"v{version}" / "second", tmp_path / "tree")
    cpu = tmp_path / "tree" / "cpu" if version == 1 else tmp_path / "tree"
    (cpu / "batch" / "cpu.stat").unlink()
    sensor = CgroupSensor(open_files(version, cpu, tmp_path / "tree" / "cpuacct"), "*")
    seen = {s.uid: s for s in sensor.sample(0)}
    assert seen["batch"].containers == () or seen["batch"].containers[0].counters is None
    sensor.close()
