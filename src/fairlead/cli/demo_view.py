"""How the demo looks: one picture of a simulation as rich text. No clock, no input, no output.

Every line is cut to the width, every mark differs in shape and not only in colour, so that it
reads on 80 columns and with NO_COLOR. `docs/make_pictures.py` draws the same picture into the
README.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Group
from rich.style import Style
from rich.text import Text

from fairlead.core.cpu import CpuMode, NodePlan
from fairlead.sim import Simulation
from fairlead.sim.node import peak
from fairlead.sim.record import Frame, PodFrame, SimEvent

WIDTH_MAX, WIDTH_MIN = 120, 60
WHY_FROM_WIDTH = 108
"""Wide enough for a column with the reasons."""

# Okabe and Ito's colours, lightened for dark terminals; all carry black letters.
POD_COLOURS = (
    *("#56b4e9", "#e69f00", "#2fbf93", "#e08fb8"),
    *("#d8cf45", "#f0804a", "#9aa5f0", "#b9b9b9"),
)
MODE_STYLES = {
    CpuMode.UNCONGESTED: Style(color="black", bgcolor="#7fcf7b", bold=True),
    CpuMode.CONGESTED: Style(color="black", bgcolor="#f1b040", bold=True),
    CpuMode.OVERLOADED: Style(color="white", bgcolor="#c51b3a", bold=True),
}
MARKS = {
    "act": ("▶", "bold"),
    "arrive": ("+", "#56b4e9"),
    "leave": ("−", "#56b4e9"),
    "shrinks": ("▼", "#f1b040"),
    "returns": ("▽", "#7fcf7b"),
    "grows": ("▲", "#7fcf7b"),
    "mode.uncongested": ("●", "#7fcf7b"),
    "mode.congested": ("●", "#f1b040"),
    "mode.overloaded": ("●", "#e8506a"),
    "fault": ("✖", "#e8506a"),
    "signal": ("?", "#e8506a"),
}
SPARKS = "▁▂▃▄▅▆▇█"
DIM, RED = "grey62", "#e8506a"


@dataclass(frozen=True, slots=True)
class Picture:
    """The simulation to draw, and the size of the screen."""

    simulation: Simulation
    width: int
    height: int
    colour: bool = True
    note: str = ""

    @property
    def columns(self) -> int:
        return max(WIDTH_MIN, min(self.width, WIDTH_MAX))

    @property
    def plan(self) -> NodePlan | None:
        decisions = self.simulation.record.decisions
        return decisions[-1].plan if decisions else None

    def colour_of(self, pod: str) -> str:
        names = sorted(spec.name for spec in self.simulation.scenario.pods)
        return POD_COLOURS[names.index(pod) % len(POD_COLOURS)]

    def apart(self, left: Text, right: Text) -> Text:
        """Two texts at the edges of a line."""
        return Text.assemble(left, " " * max(1, self.columns - len(left) - len(right)), right)


def draw(picture: Picture) -> Group:
    frames = picture.simulation.record.frames
    if not frames:
        return Group(Text("starting …", style=DIM))
    frame, columns = frames[-1], picture.columns
    upper = [
        *_header(picture, frame),
        Text(),
        _mode_line(picture, frame),
        _capacity_bar(picture, frame),
        Text(),
        *_pod_lines(picture, frame),
        Text(),
        *_spark_lines(frames, columns),
        Text("─" * columns, style=DIM),
    ]
    room = max(3, picture.height - len(upper) - 1)
    lines = [*upper, *_event_lines(picture.simulation.record.events, room)]
    if picture.note:
        lines.append(Text(picture.note, style=DIM))
    for line in lines:
        line.truncate(columns, overflow="ellipsis")
    return Group(*lines)


def _time(time_ms: float) -> str:
    seconds = int(time_ms) // 1000
    return f"{seconds // 60}:{seconds % 60:02d}"


def _header(picture: Picture, frame: Frame) -> list[Text]:
    simulation, scenario = picture.simulation, picture.simulation.scenario
    left = Text.assemble(("fairlead", "bold"), "  the CPU market of one node")
    right = Text(f"{scenario.name}  seed {simulation.seed}  {_time(frame.time_ms)}")
    act, title = simulation.act, Text()
    if act is not None:
        place = f"act {scenario.acts.index(act) + 1}/{len(scenario.acts)}  "
        title = Text.assemble((place, DIM), (act.title, "bold"))
    policy = Text.assemble(("policy ", DIM), (frame.policy.value, "bold"))
    return [picture.apart(left, right), picture.apart(title, policy)]


def _mode_line(picture: Picture, frame: Frame) -> Text:
    plan = picture.plan
    if frame.mode is None or plan is None:
        return Text("no decision yet: the users' own limits hold", style=DIM)
    pill = Text(f" {frame.mode.value.upper()} ", style=MODE_STYLES[frame.mode])
    overloaded, capacity = frame.mode is CpuMode.OVERLOADED, f"{frame.capacity / 1000:.2f}"
    what, amount = ("minimums", plan.total_min) if overloaded else ("needs", plan.total_need)
    said = Text.assemble(pill, f"  {what} {amount / 1000:.2f} of {capacity} cores")
    limits = f"{frame.limits_total / 1000:.2f}"
    return picture.apart(said, Text.assemble(("granted ", DIM), limits, (" of ", DIM), capacity))


def _capacity_bar(picture: Picture, frame: Frame) -> Text:
    """Every pod's limit as a segment of the capacity, its name inside where there is room."""
    columns, bar, done = picture.columns, Text(), 0
    governed = [(pod.uid, pod.limit or 0) for pod in frame.pods if not pod.opted_out]
    # Before the first decision the users' limits may add up to more than there is.
    whole = max(frame.capacity, sum(limit for _, limit in governed), 1)
    for name, limit in governed:
        width = (done + limit) * columns // whole - done * columns // whole
        done += limit
        label = name[: max(0, width - 2)]
        if picture.colour:
            style = Style(color="black", bgcolor=picture.colour_of(name))
            bar.append(label.center(width), style=style)
        else:
            bar.append(f"[{label.center(width - 2)}]" if width > 1 else "|" * width)
    free = columns - len(bar)
    return bar.append("free".center(free, "·") if free > 6 else "·" * free, style=DIM)


def _pod_lines(picture: Picture, frame: Frame) -> list[Text]:
    """One line per pod of the scenario, present or not, so that lines keep their places."""
    specs = sorted(picture.simulation.scenario.pods, key=lambda spec: spec.name)
    room, here = max(3, picture.height - 16), {pod.uid: pod for pod in frame.pods}
    # The right end of the bars: the highest want of any pod, in whole half cores.
    top = max((peak(spec.want) for spec in specs), default=1000)
    scale = max(500, -(-top // 500) * 500)
    if len(specs) > room:  # too many for the screen: those that want most
        specs = sorted(specs, key=lambda spec: -(here[spec.name].want if spec.name in here else 0))
        specs = sorted(specs[:room], key=lambda spec: spec.name)
    name_width = max([4, *(len(spec.name) for spec in specs)])
    wide = picture.columns >= WHY_FROM_WIDTH
    bar_width = picture.columns - name_width - 25 - (28 if wide else 0)
    keys, ruler = "█ used  ░ granted  ▒ wanted, not served", f"{scale / 1000:g} cores"
    if len(keys) + len(ruler) + 2 > bar_width:
        keys = "█ used ░ granted ▒ short"
    head = f"{keys.ljust(bar_width - len(ruler))}{ruler} GRANT  WANT THROTTLED"
    lines = [Text(f"{'':{name_width}} {head}{'   why' * wide}", style=DIM)]
    for spec in specs:
        pod, style = here.get(spec.name), picture.colour_of(spec.name)
        name = Text(spec.name.ljust(name_width + 1), style=style)
        if pod is None:
            lines.append(Text.assemble(name, ("not here", DIM)))
            continue
        why = _why(picture.plan, spec.name) if wide else ""
        bar = pod_bar(pod, bar_width, scale, style)
        lines.append(Text.assemble(name, bar, " ", _figures(pod), "  ", (why, DIM)))
    return lines


def pod_bar(pod: PodFrame, width: int, scale: int, style: str) -> Text:
    """Used, granted and not used, wanted and not served, in one bar; the limit is an edge."""
    used = min(width, pod.used * width // scale)
    limit = width if pod.limit is None else min(width, pod.limit * width // scale)
    want = min(width, max(pod.want, pod.used) * width // scale)
    short = max(0, want - max(used, limit)) if pod.throttled else max(0, want - used)
    text = Text("█" * used, style=style)
    text.append("░" * max(0, limit - used), style=DIM)
    text.append("▒" * min(short, width - len(text)), style=RED)
    return text.append(" " * (width - len(text)))


def _figures(pod: PodFrame) -> Text:
    limit = "  ∞  " if pod.limit is None else f"{pod.limit / 1000:5.2f}"
    text = Text.assemble((limit, "bold"), f" {pod.want / 1000:5.2f} ")
    if pod.opted_out:
        return text.append("opted out", style=DIM)
    level = round(pod.throttled * (len(SPARKS) - 1))
    style = RED if pod.throttled >= 0.5 else "#f1b040" if pod.throttled else DIM
    return text.append(f"   {SPARKS[level]} {pod.throttled:4.0%}", style=style)


def _why(plan: NodePlan | None, uid: str) -> str:
    if plan is None or uid not in plan.reasons:
        return ""
    said, cut = ", ".join(plan.reasons[uid]), plan.reduction_ratio[uid]
    return f"{said}, cut {cut:.0%}" if cut > 0 else said


def _spark_lines(frames: Sequence[Frame], columns: int) -> list[Text]:
    """Scarcity over time: what was not served, and the price of a core where there is one."""
    recent = frames[-(columns - 26) :]
    short = [sum(pod.unserved for pod in frame.pods) / 1000 for frame in recent]
    prices = [frame.shadow_price for frame in recent]
    said = "none" if prices[-1] is None else f"{prices[-1] * 1000:.0f} per core"
    return [
        Text.assemble(("not served ", DIM), (spark(short), RED), f" {short[-1]:.1f} cores"),
        Text.assemble(("price      ", DIM), (spark(prices), "#b39ddb"), f" {said}"),
    ]


def spark(values: Iterable[float | None]) -> str:
    """A line of eight heights; a dot where there is no value."""
    known = list(values)
    top = max((value for value in known if value is not None), default=0) or 1
    return "".join(
        "·" if value is None else SPARKS[min(7, int(value / top * 7.999))] for value in known
    )


def _event_lines(events: Sequence[SimEvent], room: int) -> list[Text]:
    """The last lines, the newest at the bottom; older ones fade."""
    lines = []
    for age, event in enumerate(reversed(events[-room:])):
        mark = MARKS.get(event.kind, ("·", DIM))
        style = "bold" if event.kind == "act" else DIM if age > 4 else ""
        when = f"{_time(event.time_ms)} "
        lines.append(Text.assemble((when, DIM), mark, " ", (event.text, style)))
    return lines[::-1] + [Text()] * (room - len(lines))
