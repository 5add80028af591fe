"""Devices are what NVML says, or virtual; whatever NVML does, the answer is clear."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.executor import Device, discover
from fairlead.executor.smoke import smoke

SOURCE = Path(__file__).with_name("fake_nvml.c")
PACKAGE = Path(__file__).resolve().parents[2] / "src"
CALLS = [
    "nvmlInit_v2",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetMemoryInfo",
    "nvmlShutdown",
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The fake library, compiled here."""
    target = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(target), str(SOURCE)], check=True)
    return str(target)


@pytest.mark.component("cc")
def test_devices_by_nvml(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ordinal, UUID, name and memory of each; CUDA is told UUIDs."""
    monkeypatch.setenv("FAKE_NVML_DEVICES", "2")
    found = discover(library=library, virtual=8)
    assert (found.source, found.note) == ("nvml", None)
    assert found.devices == (
        Device(0, "GPU-00000000", "Fake H100", 85899345920),
        Device(1, "GPU-00000001", "Fake H200", 85899345921),
    )
    assert found.visible("n") == {"n#0": "GPU-00000000", "n#1": "GPU-00000001"}


@pytest.mark.component("cc")
@pytest.mark.parametrize("call", CALLS)
def test_each_failure_is_a_clear_answer(
    library: str, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """NVML's own words and the function they are about; the virtual devices stand in."""
    monkeypatch.setenv("FAKE_NVML_DEVICES", "1")
    monkeypatch.setenv("FAKE_NVML_FAILS", call)
    found = discover(library=library, virtual=2)
    assert (found.source, found.note) == ("virtual", f"{call}: Unknown Error (999)")
    assert [device.visible for device in found.devices] == ["0", "1"]


@pytest.mark.component("cc")
def test_an_absurd_count_is_not_believed(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NVML_DEVICES", "-1")
    assert "cannot be true" in (discover(library=library).note or "")


def test_a_library_that_is_something_else() -> None:
    """A file that is no library, and a library that is not NVML."""
    assert "cannot be loaded" in (discover(library=str(SOURCE)).note or "")
    assert "has no nvmlInit_v2" in (discover(library="libc.so.6").note or "")


def test_both_commands_need_only_the_standard_library() -> None:
    """`-S` leaves out every installed package, `-I` everything of the surroundings."""
    code = f"import sys; sys.path.append({str(PACKAGE)!r}); import fairlead.executor.smoke"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
    command = [sys.executable, "-S", "-m", "fairlead.executor.devices", "--virtual", "2"]
    told = subprocess.run(
        [*command, "--library", "none"],
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(PACKAGE)},
    )
    assert [device["uuid"] for device in json.loads(told.stdout)["devices"]] == [
        "VIRTUAL-0",
        "VIRTUAL-1",
    ]


def test_the_smoke_test_passes_here(shared: Path) -> None:
    """One job through everything; its environment names the first device."""
    told = smoke(shared, "65534" if os.geteuid() == 0 else None)
    assert (told["exit_code"], told["reason"]) == (0, None)
    assert told["cuda_visible_devices"] == told["expected"]
    assert "done" in str(told["output"])
