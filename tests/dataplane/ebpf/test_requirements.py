"""Without what it needs the plane says precisely what is missing."""

from pathlib import Path

import pytest

from fairlead.dataplane import ebpf
from fairlead.dataplane.ebpf import EbpfDataplane, build, kernel, missing, toolchain
from fairlead.ports.faults import PermanentFault


def test_no_compiler_is_said_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without clang `build` names it, and how to get it; nothing is left behind."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PermanentFault, match=r"clang is not on PATH \(apt-get install clang\)"):
        build(tmp_path / "x.o")
    assert list(tmp_path.iterdir()) == []


def test_everything_missing_is_listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not the first one only: kernel, compiler, programs, library, file systems."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(toolchain.platform, "release", lambda: "5.10.0-8-amd64")

    def no_library() -> kernel.Libbpf:
        raise OSError("libbpf.so.1: cannot open shared object file")

    monkeypatch.setattr(toolchain, "libbpf", no_library)
    lacking = missing(tmp_path / "none", tmp_path / "pins", tmp_path / "none.o")
    for fragment in (
        "5.10.0-8-amd64 is older than 5.15",
        "clang is not on PATH",
        "not compiled (fairlead traffic build-ebpf)",
        "libbpf.so.1 cannot be loaded",
        f"{tmp_path}/pins: is on no bpf file system (mount -t bpf bpf /sys/fs/bpf)",
        f"{tmp_path}/none: is no cgroup2 directory",
    ):
        assert any(fragment in each for each in lacking), (fragment, lacking)


def test_no_cgroup2_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(toolchain, "_MOUNTS", tmp_path / "mounts")
    assert any("no cgroup2 is mounted" in each for each in missing())
    (tmp_path / "mounts").write_text("none /odd\\040place cgroup2 rw 0 0\n")
    assert ebpf.default_cgroup() == Path("/odd place")
    assert not any("no cgroup2 is mounted" in each for each in missing())


def test_another_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain.platform, "system", lambda: "Darwin")
    assert "Darwin" in missing()[0]


def test_a_plane_cannot_be_opened_without(tmp_path: Path) -> None:
    """The fault is the list; nothing is created."""
    with pytest.raises(PermanentFault, match=r"cannot run here: .*is on no bpf file system"):
        EbpfDataplane(tmp_path, tmp_path / "pins")
    assert list(tmp_path.iterdir()) == []
