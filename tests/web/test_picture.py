"""The picture of the README, taken from a real page: `FAIRLEAD_PICTURES=1` puts it into docs."""

import os
import struct
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.api.servers import budget, manifest, run, serving, short_folder
from tests.web.browser import Visits

pytestmark = pytest.mark.component("chromium")
PICTURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "gpu-view.png"
FUNDING = {"allowBorrow": True, "sponsors": ["vision", "speech"]}
HOURS = {"recurrence": "monthly", "sharing": "none"}
LAB = (
    *(manifest("Node", f"gpu-{n}", flavor="H100", devices=8) for n in (1, 2)),
    budget("vision", 8, maxGPUHours=2_000, lending={"allow": True, "to": ["robots"]}, **HOURS),
    budget("speech", 6, maxGPUHours=1_500, lending={"allow": True, "to": ["robots"]}, **HOURS),
    budget("robots", 2, maxGPUHours=500, **HOURS),
    run("segment-41", "vision", 4, duration="3h"),
    run("detect-7", "vision", 2, duration="45m"),
    run("whisper-2", "speech", 4, duration="6h"),
    run("grasp-12", "robots", 4, duration="2h", funding=FUNDING),
    run("grasp-13", "robots", 6, duration="2h", funding=FUNDING),
)


def size_of(picture: bytes) -> tuple[int, int]:
    """Width and height, from the header of a PNG."""
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", picture[16:24])  # type: ignore[return-value]


def test_the_picture_of_the_gpu_view(visits: Visits) -> None:
    """Of three teams that share and lend; the one in docs was taken the same way."""
    with short_folder() as folder, serving(folder) as lab:
        lab.apply(*LAB)
        for name in ("segment-41", "detect-7", "whisper-2", "grasp-12"):
            lab.until(f"{name} runs", lambda n=name: lab.status("Run", n)["phase"] == "Running")
        page = visits.open(lab, "/gpu?range=3h", width=1200)
        expect(page.locator("#state")).to_have_text("Live")
        expect(page.locator(".gantt-now").first).to_be_visible()
        expect(page.locator("main")).to_contain_text("grasp-13")
        picture = page.screenshot(animations="disabled")
    assert size_of(picture) == (1200, 900)
    assert len(picture) > 20_000, "there is something to see"
    if os.environ.get("FAIRLEAD_PICTURES") == "1":
        PICTURE.write_bytes(picture)
    assert size_of(PICTURE.read_bytes()) == size_of(picture)
