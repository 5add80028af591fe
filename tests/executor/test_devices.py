"""Devices are what NVML says, or virtual; whatever NVML does, the answer is clear."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.executor.devices import Device, Discovery, visible
from tests.executor.smoke import smoke

SOURCE = Path(__file__).with_name("fake_nvml.c")
PACKAGE = Path(__file__).resolve().parents[2] / "src"
CALLS = [
    "nvmlInit",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMinorNumber",
    "nvmlShutdown",
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a fake library, compiled here."""
    target = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(target), str(SOURCE)], check=True)
    return target.parent


PRINT = """
import json, sys
from dataclasses import asdict
from fairlead.executor.devices import discover
print(json.dumps(asdict(discover(virtual=int(sys.argv[1])))))
"""


def discovered(folder: Path, *options: str, virtual: int = 0, **variables: str) -> Discovery:
    """The devices in a process whose NVML is in that folder: a library is loaded once for good."""
    done = subprocess.run(
        [sys.executable, *options, "-c", PRINT, str(virtual)],
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(PACKAGE), "LD_LIBRARY_PATH": str(folder), **variables},
    )
    found = json.loads(done.stdout)
    devices = tuple(Device(**device) for device in found["devices"])
    return Discovery(found["source"], devices, found["note"])


@pytest.mark.component("cc")
def test_devices_by_nvml(library: Path) -> None:
    """Ordinal, UUID, name and memory of each; CUDA is told UUIDs."""
    found = discovered(library, virtual=8, FAKE_NVML_DEVICES="2")
    assert (found.source, found.note) == ("nvml", None)
    assert found.devices == (
        Device(0, "GPU-00000000", "Fake H100", 85899345920, minor=0),
        Device(1, "GPU-00000001", "Fake H200", 85899345921, minor=1),
    )
    assert visible(found, "n") == {"n#0": "GPU-00000000", "n#1": "GPU-00000001"}


@pytest.mark.component("cc")
@pytest.mark.parametrize("call", CALLS)
def test_each_failure_is_a_clear_answer(library: Path, call: str) -> None:
    """NVML's own words and the function they are about; the virtual devices stand in."""
    found = discovered(library, virtual=2, FAKE_NVML_DEVICES="1", FAKE_NVML_FAILS=call)
    assert (found.source, found.note) == ("virtual", f"{call}: Unknown Error (999)")
    assert [device.visible for device in found.devices] == ["0", "1"]


@pytest.mark.component("cc")
def test_an_absurd_count_is_not_believed(library: Path) -> None:
    assert "cannot be true" in (discovered(library, FAKE_NVML_DEVICES="-1").note or "")


@pytest.mark.component("cc")
def test_a_library_that_is_something_else(tmp_path: Path) -> None:
    """A file that is no library, and a library that is not NVML."""
    library = tmp_path / "libnvidia-ml.so.1"
    library.write_bytes(SOURCE.read_bytes())
    assert "nvmlInit: NVML Shared Library Not Found" in (discovered(tmp_path).note or "")
    subprocess.run(["cc", "-shared", "-o", str(library), "-x", "c", os.devnull], check=True)
    assert "nvmlInit: Function Not Found" in (discovered(tmp_path).note or "")


def test_the_executor_works_with_the_standard_library_alone() -> None:
    """`-S` leaves out every installed package, `-I` everything of the surroundings; the note says
    what is missing to find real devices."""
    paths = [str(PACKAGE), str(PACKAGE.parent)]
    code = f"import sys; sys.path += {paths!r}; import tests.executor.smoke"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
    found = discovered(Path("/nowhere"), "-S", virtual=2)
    assert [device.uuid for device in found.devices] == ["VIRTUAL-0", "VIRTUAL-1"]
    assert found.note == "nvidia-ml-py is not installed (pip install 'fairlead[gpu]')"


def test_the_smoke_test_passes_here(shared: Path) -> None:
    """One job through everything; its environment names the first device."""
    told = smoke(shared, "65534" if os.geteuid() == 0 else None)
    assert (told["exit_code"], told["reason"]) == (0, None)
    assert told["cuda_visible_devices"] == told["expected"]
    assert "done" in str(told["output"])
