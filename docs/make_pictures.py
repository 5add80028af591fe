"""Draw the pictures of the documentation from the running code: `make docs`.

    docs/images/demo.svg       a frame of `fairlead demo`
    docs/images/sim-node.png   the node's page of the report of `fairlead sim run bursty-mix`

Same seed, same pictures. The SVG names no host: the web font that rich would fetch is taken out.
"""

import io
import re
import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme

from fairlead.cli.demo_view import Picture, draw
from fairlead.schema.scenario import ScenarioDocument, read_scenario
from fairlead.sim import Simulation, play, read_bundled
from fairlead.sim.plots import draw_plots

IMAGES = Path(__file__).parent / "images"
# The spike is being shared by weight: bars, price and events all have something to say.
MOMENT_S = 137
COLUMNS, ROWS = 96, 31
FONTS = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
NIGHT = TerminalTheme(
    (22, 26, 33),
    (214, 218, 224),
    [
        (22, 26, 33),
        (232, 80, 106),
        (127, 207, 123),
        (241, 176, 64),
        (86, 180, 233),
        (179, 157, 219),
        (47, 191, 147),
        (214, 218, 224),
    ],
    [
        (120, 126, 136),
        (232, 80, 106),
        (127, 207, 123),
        (241, 176, 64),
        (86, 180, 233),
        (179, 157, 219),
        (47, 191, 147),
        (255, 255, 255),
    ],
)


def draw_demo(scenario: ScenarioDocument) -> str:
    """One frame of the demo as a self-contained SVG."""
    simulation = Simulation(scenario, seed=scenario.seed, policy=None)
    simulation.advance(MOMENT_S * 1000)
    console = Console(
        record=True,
        width=COLUMNS,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
    )
    console.print(draw(Picture(simulation, COLUMNS, ROWS)))
    svg = console.export_svg(title="fairlead demo", theme=NIGHT, unique_id="fairlead-demo")
    return without_hosts(svg)


def without_hosts(svg: str) -> str:
    """Take out the web font and the generator's address; what is left must name no host."""
    svg = re.sub(r"@font-face\s*\{.*?\}", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font-family:\s*Fira Code[^;]*;", f"font-family: {FONTS};", svg)
    # Some viewers trim leading blanks of a text, even hard ones.
    svg = svg.replace("<svg ", '<svg xml:space="preserve" ', 1)
    svg = "\n".join(line.rstrip() for line in svg.splitlines() if line.strip()) + "\n"
    hosts = [url for url in re.findall(r"https?://[^\"'\s)]+", svg) if "www.w3.org" not in url]
    if hosts:
        sys.exit(f"the picture names a host: {hosts[0]}")
    return svg


def main() -> None:
    """Draw everything."""
    scenario = read_scenario(read_bundled("bursty-mix"))
    IMAGES.mkdir(exist_ok=True)
    (IMAGES / "demo.svg").write_text(draw_demo(scenario), encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        names = draw_plots(play(scenario), Path(folder))
        node = next(name for name in names if name.endswith("-node.png"))
        shutil.copyfile(Path(folder) / node, IMAGES / "sim-node.png")
    for path in sorted(IMAGES.iterdir()):
        print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
