"""What happens: users, operators, faults. A step is a name and three numbers, so that a schedule
can be stored, and shortened by leaving steps out."""

from collections.abc import Callable, Container
from contextlib import suppress
from hashlib import sha256
from typing import Any, NamedTuple

from fairlead.engine.gpu import Author, ControlPlane, Denied
from fairlead.ports.executor import Job
from fairlead.ports.faults import Fault
from fairlead.schema.border import BadInput
from fairlead.schema.objects import API_VERSION, read_manifest
from fairlead.schema.times import format_time
from fairlead.sim.clock import Stream
from fairlead.sim.executor import Behaviour
from fairlead.sim.vopr.agents import VoprAgents
from fairlead.sim.vopr.checks import Checker
from fairlead.sim.vopr.network import network, value_of
from fairlead.sim.vopr.violation import Violation
from fairlead.sim.vopr.world import ADMIN, START_MS, VoprWorld

OWNERS = ("a", "b", "c")
NODES = (("n1", 4, "west"), ("n2", 4, "west"), ("n3", 4, "east"))
NAMES = 12
"""So many names of runs: they are used again."""
NETWORK = network(START_MS)


class VoprStep(NamedTuple):
    """One thing that happens; numbers are taken modulo what there is."""

    name: str
    a: int = 0
    b: int = 0
    c: int = 0


def behaviour(job: Job) -> Behaviour:
    """What a command does follows from its name, so that leaving steps out changes no other."""
    drawn = sha256(job.id.encode()).digest()
    kind = job.env.get("KIND", "")
    duration_ms = (1 + drawn[0]) * 700
    if kind == "deaf":
        return Behaviour(duration_ms=None, checkpoint_ms=None)
    if kind == "fails":
        return Behaviour(duration_ms=duration_ms, code=1 + drawn[1] % 3)
    if kind == "broken":
        return Behaviour(cannot_start="no such program", code=127)
    return Behaviour(duration_ms=duration_ms, checkpoint_ms=drawn[2] * 40)


SHAPES: tuple[dict[str, Any], ...] = (
    {},
    {"duration": "2m"},
    {"env": {"KIND": "deaf"}, "checkpointGrace": "20d"},
    {"env": {"KIND": "fails"}, "restartPolicy": "OnFailure", "backoffLimit": 2},
    {"groupGPUs": 1, "malleable": {"minTotalGPUs": 1, "stepGPUs": 1}},
    {"groupGPUs": 2, "sparesPerGroup": 1},
    {"maxRuntime": "1m"},
    {"funding": {"allowBorrow": True, "allowUnfunded": True}},
    {"location": {"region": "west"}},
    {"location": {"region": "east"}, "duration": "30s"},
    {"env": {"KIND": "broken"}},
    {"command": [], "duration": "45s"},
)


def manifest(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


def budget(owner: str, gpus: int, hours: float | None) -> dict[str, Any]:
    envelope: dict[str, Any] = {
        "name": "main",
        "flavor": "H100",
        "concurrency": gpus,
        "recurrence": "daily",
    }
    if hours is not None:
        envelope["maxGPUHours"] = hours
    envelope["lending"] = {"allow": True, "to": ["*"]}
    return manifest("Budget", owner, {"owner": owner, "envelopes": [envelope]})


class Actors:
    """Carries out steps on a world."""

    def __init__(self, world: VoprWorld, checker: Checker) -> None:
        self.world, self.checker = world, checker
        self.agents = VoprAgents(world.entropy.seed)
        self.later: list[VoprStep] = []
        """Requests that are under way: they arrive late, twice, or in another order."""

    def begin(self) -> None:
        plane = self.world.up()
        for shape in SHAPES:  # a schedule of refusals would find nothing
            read_manifest(_run("check", OWNERS[0], 2, shape))
        for name, devices, region in NODES:
            spec = {"flavor": "H100", "devices": devices, "location": {"region": region}}
            plane.objects.apply(manifest("Node", name, spec), author=ADMIN)
        for place, owner in enumerate(OWNERS):
            plane.objects.apply(budget(owner, 4 + 2 * place, (None, 4, 1)[place]), author=ADMIN)

    def act(self, step: VoprStep) -> None:
        """One step. A refusal and a fault are answers; a crash is the harness's."""
        try:
            STEPS[step.name].act(self, step)
        except (Denied, BadInput, Fault):
            return

    def pass_round_on(self, seq: int, *, forged: bool = False) -> bool:
        """The value of the round that an outcome waits for; whether there is one by now."""
        promised = self.plane.committer.projection.resolver.outcomes[seq].beacon
        if promised is None or self.world.time.now_ms < promised.due_ms:
            return False
        value = value_of(promised.round + forged)
        add = self.plane.contributions.add_beacon
        add(promised.source, promised.round, value, author=ADMIN)
        if forged:
            raise Violation("beacon", f"round {promised.round} has the value of another")
        return True

    def judge_clock(self) -> None:
        """An operator answers what the clock asks, by the seed's number accepting or rejecting."""
        if self.plane.clock.report()["state"] == "held":
            accepts = self.world.entropy.seed % 2
            self.plane.clock.judge("accept" if accepts else "reject", author=ADMIN)

    def end_waiting(self) -> None:
        """What outcomes wait for comes, or is given up: a clock that was ahead promised a round
        that is years away."""
        for seq in sorted(self.plane.committer.projection.resolver.open_seqs.values()):
            with suppress(Denied):
                if not self.pass_round_on(seq):
                    self.plane.outcomes.void(seq, "its round", author=ADMIN, beacon_lost=True)

    def release(self) -> None:
        """No run keeps devices for ever: what is paused goes on, what never ends is killed."""
        live = dict(self.plane.committer.projection.live)
        for name, state in live.items():
            verbs = ("resume",) if state.paused else ()
            if self.plane.committer.projection.run_spec(name).env.get("KIND") == "deaf":
                verbs = ("cancel",)
            for verb in verbs:
                with suppress(Denied, Fault):
                    self.plane.verbs.act("Run", name, verb, author=ADMIN, force=verb == "cancel")

    @property
    def plane(self) -> ControlPlane:
        return self.world.up()

    def run_name(self, number: int) -> str:
        return f"r{number % NAMES}"

    def verb(self, step: VoprStep, verb: str, **more: Any) -> None:
        name = self.run_name(step.a)
        stored = self.plane.objects.get("Run", name)
        applied = self.plane.verbs.act("Run", name, verb, author=ADMIN, **more)
        if verb == "cancel" and stored is not None:
            self.checker.cancelled(name, applied.object["metadata"]["uid"])


# -- users ----------------------------------------------------------------------------------------


def _run(name: str, owner: str, gpus: int, shape: dict[str, Any]) -> dict[str, Any]:
    asked = {"owner": owner, "flavor": "H100", "totalGPUs": gpus, "command": ["x"]}
    return manifest("Run", name, {**asked, **shape})


def _submit(on: Actors, step: VoprStep) -> None:
    owner = OWNERS[step.b % len(OWNERS)]
    shape = SHAPES[step.c % len(SHAPES)]
    gpus = (1, 1, 2, 2, 4, 6)[step.c // len(SHAPES) % 6]
    user = Author(owner, frozenset({owner}))
    on.plane.objects.apply(_run(on.run_name(step.a), owner, gpus, shape), author=user)


_MESSAGES = ("submit", "submit", "cancel", "delete", "reserve", "pause", "shrink")


def _delay(on: Actors, step: VoprStep) -> None:
    """A request that arrives later."""
    message = _MESSAGES[step.c // len(SHAPES) % len(_MESSAGES)]
    on.later.append(VoprStep(message, step.a, step.b, step.c))


def _deliver(on: Actors, step: VoprStep) -> None:
    """One of the delayed, in any order; some arrive twice."""
    if on.later:
        place = step.a % len(on.later)
        late = on.later[place] if step.b % 3 == 0 else on.later.pop(place)
        STEPS[late.name].act(on, late)


def _reserve(on: Actors, step: VoprStep) -> None:
    name, in_ms = on.run_name(step.a), (0, 20_000, 90_000)[step.b % 3]
    start = format_time(on.plane.committer.now() + in_ms)
    spec = {"run": name, "earliestStart": start}
    on.plane.objects.apply(manifest("Reservation", f"{name}-slot", spec), author=ADMIN)


def _trespass(on: Actors, step: VoprStep) -> None:
    """A tenant does what only another, or an operator, may do."""
    who, name = OWNERS[step.b % len(OWNERS)], on.run_name(step.a)
    user, plane = Author(who, frozenset({who})), on.plane
    other = OWNERS[(step.b + 1) % len(OWNERS)]
    stored = plane.objects.get("Run", name)
    acts: list[Callable[[], object]] = [
        lambda: plane.objects.apply(_run(f"{name}-x", other, 1, {}), author=user),
        lambda: plane.objects.apply(budget(other, 12, None), author=user),
        lambda: plane.verbs.act("Node", NODES[0][0], "fail", author=user),
        lambda: plane.resolver.resolve(flavor="H100", gpus=1, location={}, author=user),
        lambda: plane.clock.judge("accept", author=user),
    ]
    if stored is not None and plane.committer.projection.run_spec(name).owner != who:
        acts += [
            lambda: plane.verbs.act("Run", name, "cancel", author=user, force=True),
            lambda: plane.verbs.act("Run", name, "pause", author=user),
            lambda: plane.objects.delete("Run", name, author=user),
        ]
    act = step.c % len(acts)
    acts[act]()
    raise Violation("rights", f"{who} may do act {act} on {name}")


HOSTILE: tuple[dict[str, Any], ...] = (
    {"owner": "a\0b"},
    {"owner": "a\x1b[2J"},
    {"totalGPUs": 10**12},
    {"totalGPUs": -1},
    {"checkpointGrace": "25d"},
    {"checkpointGrace": "100000000d"},
    {"duration": "0s"},
    {"maxRuntime": "9999999999d"},
    {"env": {"A\0": "b"}},
    {"command": ["x", "a\0b"]},
    {"env": {"A": "b" * 300_000}},
    {"command": ["x"] * 5_000},
    {"location": {"region": "west\n"}},
    {"malleable": {"minTotalGPUs": 10**9, "stepGPUs": 0}, "groupGPUs": 1},
)


def _hostile(on: Actors, step: VoprStep) -> None:
    """A tenant sends what no honest one does: it is refused, or it is a run like any other."""
    owner = OWNERS[step.b % len(OWNERS)]
    user, shape = Author(owner, frozenset({owner})), HOSTILE[step.c % len(HOSTILE)]
    sent = _run(on.run_name(step.a), owner, 1, {"env": {"KIND": "deaf"}, **shape})
    on.plane.objects.apply(sent, author=user)


def _delete(on: Actors, step: VoprStep) -> None:
    name = on.run_name(step.a)
    if step.b % 2 and on.plane.objects.get("Reservation", f"{name}-slot") is not None:
        on.plane.objects.delete("Reservation", f"{name}-slot", author=ADMIN)
    on.plane.objects.delete("Run", name, author=ADMIN)


def _edit(on: Actors, step: VoprStep) -> None:
    """Another cap: leases lose their funding, or have it again."""
    hours = (None, 0.01, 1, 8)[step.c % 4]
    change = budget(OWNERS[step.a % len(OWNERS)], 1 + step.b % 10, hours)
    on.plane.objects.apply(change, author=ADMIN)


def _node(on: Actors, step: VoprStep) -> None:
    verb = ("cordon", "uncordon", "uncordon", "drain", "fail")[step.b % 5]
    on.plane.verbs.act("Node", NODES[step.a % len(NODES)][0], verb, author=ADMIN)


def _resolve(on: Actors, step: VoprStep) -> None:
    location = ({}, {"region": "west"}, {"region": "east"})[step.b % 3]
    on.plane.resolver.resolve(
        flavor="H100", gpus=1 + step.a % 4, location=dict(location), author=ADMIN
    )


def _use_beacon(on: Actors, step: VoprStep) -> None:
    """From now on outcomes wait for a public network, or no longer."""
    on.world.use_beacon(NETWORK if step.a % 3 else None)


def _beacon(on: Actors, step: VoprStep) -> None:
    """A round that an outcome waits for is passed on when it is due; or another's, as this one."""
    for seq in sorted(on.plane.committer.projection.resolver.open_seqs.values()):
        on.pass_round_on(seq, forged=step.a % 4 == 0)


def _void(on: Actors, step: VoprStep) -> None:
    """The operator gives an outcome up, and says that its round is lost, or not."""
    waiting = sorted(on.plane.committer.projection.resolver.open_seqs.values())
    for seq in waiting[: 1 + step.a % 2]:
        on.plane.outcomes.void(seq, "given up", author=ADMIN, beacon_lost=step.b % 3 == 0)


# -- time and faults ------------------------------------------------------------------------------


def _turn(on: Actors, step: VoprStep) -> None:
    world = on.world
    world.time.run_until(world.time.now_ms + 1_000)
    on.plane.reconcile()


def _wait(on: Actors, step: VoprStep) -> None:
    world = on.world
    world.time.run_until(world.time.now_ms + (2_000, 10_000, 60_000, 600_000)[step.a % 4])
    on.plane.reconcile()


def _sleep(on: Actors, step: VoprStep) -> None:
    """Time passes, and the control plane does not look."""
    on.world.time.run_until(on.world.time.now_ms + (500, 5_000, 60_000)[step.a % 3])


def _crash(on: Actors, step: VoprStep) -> None:
    """The power of the disk goes in the middle of a turn, at any write, sync or call."""
    on.world.points.crash_in = step.a % 60
    _turn(on, step)


def _crash_submit(on: Actors, step: VoprStep) -> None:
    on.world.points.crash_in = step.a % 12
    _submit(on, VoprStep("submit", step.b, step.c, step.a))


def _kill(on: Actors, step: VoprStep) -> None:
    on.world.kill()


def _reboot(on: Actors, step: VoprStep) -> None:
    on.world.reboot((5_000, 600_000, 7 * 86_400_000)[step.a % 3])


def _jump(on: Actors, step: VoprStep) -> None:
    """The wall clock is wrong: by seconds, which is nothing, by hours, or by years."""
    far_ms = (2_000, 45_000, 3_600_000, 400 * 86_400_000)[step.a % 4]
    on.world.jump(far_ms if step.b % 2 else -far_ms)


def _drift(on: Actors, step: VoprStep) -> None:
    """The wall clock runs too fast or too slow: as a time server slews it, or as a broken one."""
    ppm = (100, 500, 20_000)[step.a % 3]
    on.world.drift(ppm if step.b % 2 else -ppm)


def _tamper(on: Actors, step: VoprStep) -> None:
    on.world.tamper()


def _set_clock(on: Actors, step: VoprStep) -> None:
    on.world.set_clocks()


def _fail_over(on: Actors, step: VoprStep) -> None:
    """Another replica takes over, on a host whose clock is right, a little off, or wrong."""
    far_ms = (0, 2_000, 45_000, 3_600_000, 3 * 86_400_000)[step.a % 5]
    on.world.fail_over(far_ms if step.b % 2 else -far_ms)


def _judge(on: Actors, step: VoprStep) -> None:
    on.plane.clock.judge("accept" if step.a % 2 else "reject", author=ADMIN)


def _full(on: Actors, step: VoprStep) -> None:
    on.world.disk.full = bool(step.a % 2)


def _room(on: Actors, step: VoprStep) -> None:
    on.world.disk.full = False


def _deaf_executor(on: Actors, step: VoprStep) -> None:
    on.world.executor_faults = step.a % 5


def _node_agent(on: Actors, step: VoprStep) -> None:
    on.agents.node()


def _traffic_agent(on: Actors, step: VoprStep) -> None:
    on.agents.traffic()


def _kill_traffic(on: Actors, step: VoprStep) -> None:
    on.agents.kill_traffic((2_000, 6_000, 20_000)[step.a % 3])


def _lie(on: Actors, step: VoprStep) -> None:
    """A backend reports retries that never were, or is honest again."""
    on.agents.lie(step.a, (40, 5_000, 10**6, 0)[step.b % 4])


class _Kind(NamedTuple):
    act: Callable[[Actors, VoprStep], None]
    weight: int
    fault: bool = False
    group: str = ""
    """Kinds of a group are in a schedule together, or none of them is."""


STEPS: dict[str, _Kind] = {
    "turn": _Kind(_turn, 40),
    "wait": _Kind(_wait, 12),
    "sleep": _Kind(_sleep, 6),
    "submit": _Kind(_submit, 24),
    "delay": _Kind(_delay, 3),
    "deliver": _Kind(_deliver, 4),
    "cancel": _Kind(lambda on, step: on.verb(step, "cancel"), 5),
    "force": _Kind(lambda on, step: on.verb(step, "cancel", force=True), 2),
    "pause": _Kind(lambda on, step: on.verb(step, "pause"), 2),
    "resume": _Kind(lambda on, step: on.verb(step, "resume"), 2),
    "shrink": _Kind(lambda on, step: on.verb(step, "shrink", width=1 + step.b % 3), 2),
    "nominate": _Kind(lambda on, step: on.verb(step, "nominate"), 1),
    "start": _Kind(lambda on, step: on.verb(step, "resolve"), 2),
    "delete": _Kind(_delete, 6),
    "reserve": _Kind(_reserve, 4),
    "edit": _Kind(_edit, 3),
    "node": _Kind(_node, 4),
    "resolve": _Kind(_resolve, 2),
    "use_beacon": _Kind(_use_beacon, 2, group="beacon"),
    "beacon": _Kind(_beacon, 8, group="beacon"),
    "void": _Kind(_void, 3, group="beacon"),
    "trespass": _Kind(_trespass, 3, fault=True, group="hostile"),
    "hostile": _Kind(_hostile, 3, fault=True, group="hostile"),
    "crash": _Kind(_crash, 5, fault=True, group="crash"),
    "crash_submit": _Kind(_crash_submit, 2, fault=True, group="crash"),
    "kill": _Kind(_kill, 2, fault=True, group="kill"),
    "reboot": _Kind(_reboot, 1, fault=True, group="reboot"),
    "fail_over": _Kind(_fail_over, 3, fault=True, group="failover"),
    "jump": _Kind(_jump, 2, fault=True, group="clock"),
    "drift": _Kind(_drift, 1, fault=True, group="clock"),
    "tamper": _Kind(_tamper, 1, fault=True, group="tamper"),
    "set_clock": _Kind(_set_clock, 3),
    "judge": _Kind(_judge, 2),
    "full": _Kind(_full, 2, fault=True, group="full"),
    "room": _Kind(_room, 4, group="full"),
    "deaf_executor": _Kind(_deaf_executor, 2, fault=True, group="executor"),
    "node_agent": _Kind(_node_agent, 8, group="node agent"),
    "traffic_agent": _Kind(_traffic_agent, 4, group="traffic agent"),
    "kill_traffic": _Kind(_kill_traffic, 1, fault=True, group="traffic agent"),
    "lie": _Kind(_lie, 1, fault=True, group="traffic agent"),
}
SHARES = {"node agent": 40, "traffic agent": 15, "beacon": 30, "failover": 30}
"""So many schedules of 100 have a group. Ticks of a traffic agent with its clients take ten times
as long as all else, and change nothing for the control plane."""
SHARE = 75
"""Of any other group: schedules without one kind of fault go further with another."""


def draw(stream: Stream, count: int, *, kinds: Container[str] = ()) -> list[VoprStep]:
    """A schedule of so many steps: of these kinds, or of those that chance chooses."""
    chosen = kinds or _choose(stream)
    table = [name for name, kind in STEPS.items() if name in chosen for _ in range(kind.weight)]
    return [
        VoprStep(table[stream.below(len(table))], *(stream.below(10_000) for _ in range(3)))
        for _ in range(count)
    ]


def _choose(stream: Stream) -> set[str]:
    groups = {kind.group for kind in STEPS.values()} - {""}
    here = {group for group in sorted(groups) if stream.below(100) < SHARES.get(group, SHARE)}
    return {name for name, kind in STEPS.items() if not kind.group or kind.group in here}
