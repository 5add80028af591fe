"""What happens: users, operators, faults. A step is a name and three numbers, so that a schedule
can be stored, and shortened by leaving steps out."""

from collections.abc import Callable, Container
from contextlib import suppress
from hashlib import sha256
from typing import NamedTuple

from fairlead.ports.executor import Job
from fairlead.ports.faults import Fault
from fairlead.sim.clock import Stream
from fairlead.sim.executor import Behaviour
from fairlead.sim.vopr.actors import SHAPES, Actors, VoprStep
from fairlead.sim.vopr.asks import ASKS, trespass
from fairlead.sim.vopr.network import network
from fairlead.sim.vopr.replies import UNAVAILABLE
from fairlead.sim.vopr.violation import Violation
from fairlead.sim.vopr.world import START_MS

NETWORK = network(START_MS)


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


# -- messages and rights --------------------------------------------------------------------------


_MESSAGES = ("submit", "submit", "cancel", "delete", "reserve", "pause", "shrink")


def _delay(on: Actors, step: VoprStep) -> None:
    """A request that arrives later."""
    message = _MESSAGES[step.c // len(SHAPES) % len(_MESSAGES)]
    on.later.append(ASKS[message](on, step))


def _deliver(on: Actors, step: VoprStep) -> None:
    """One of the delayed, in any order; some arrive twice."""
    if on.later:
        place = step.a % len(on.later)
        late = on.later[place] if step.b % 3 == 0 else on.later.pop(place)
        on.send_all(late)


def _lose(on: Actors, step: VoprStep) -> None:
    """The next reply to a change does not arrive; the client asks the same again."""
    on.loses = True


def _trespass(on: Actors, step: VoprStep) -> None:
    """The gate refuses, whatever else is wrong with the request."""
    request = trespass(on, step)
    reply = on.send(request)
    expected = 401 if request.peer is None or request.token else 403
    if reply.status not in (expected, UNAVAILABLE):
        raise Violation("rights", f"{request}: {reply.status}, where {expected} is due")


def _use_beacon(on: Actors, step: VoprStep) -> None:
    """From now on outcomes wait for a public network, or no longer."""
    on.world.use_beacon(NETWORK if step.a % 3 else None)


def _beacon(on: Actors, step: VoprStep) -> None:
    """A round that an outcome waits for is passed on when it is due; or another's, as this one."""
    for seq in sorted(on.plane.committer.projection.resolver.open_seqs.values()):
        on.pass_round_on(seq, forged=step.a % 4 == 0)


def _sent(message: str) -> Callable[[Actors, VoprStep], None]:
    return lambda on, step: on.send_all(ASKS[message](on, step))


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
    on.send_all(ASKS["submit"](on, VoprStep("submit", step.b, step.c, step.a)))


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
    "submit": _Kind(_sent("submit"), 24),
    "delay": _Kind(_delay, 3),
    "deliver": _Kind(_deliver, 4),
    "lose": _Kind(_lose, 2),
    "read": _Kind(_sent("read"), 6),
    "bind": _Kind(_sent("bind"), 5),
    "cancel": _Kind(_sent("cancel"), 5),
    "force": _Kind(_sent("force"), 2),
    "pause": _Kind(_sent("pause"), 2),
    "resume": _Kind(_sent("resume"), 2),
    "shrink": _Kind(_sent("shrink"), 2),
    "nominate": _Kind(_sent("nominate"), 1),
    "start": _Kind(_sent("start"), 2),
    "delete": _Kind(_sent("delete"), 6),
    "reserve": _Kind(_sent("reserve"), 4),
    "edit": _Kind(_sent("edit"), 3),
    "node": _Kind(_sent("node"), 4),
    "resolve": _Kind(_sent("resolve"), 2),
    "use_beacon": _Kind(_use_beacon, 2, group="beacon"),
    "beacon": _Kind(_beacon, 8, group="beacon"),
    "void": _Kind(_sent("void"), 3, group="beacon"),
    "trespass": _Kind(_trespass, 3, fault=True, group="hostile"),
    "hostile": _Kind(_sent("hostile"), 3, fault=True, group="hostile"),
    "crash": _Kind(_crash, 5, fault=True, group="crash"),
    "crash_submit": _Kind(_crash_submit, 2, fault=True, group="crash"),
    "kill": _Kind(_kill, 2, fault=True, group="kill"),
    "reboot": _Kind(_reboot, 1, fault=True, group="reboot"),
    "fail_over": _Kind(_fail_over, 3, fault=True, group="failover"),
    "jump": _Kind(_jump, 2, fault=True, group="clock"),
    "drift": _Kind(_drift, 1, fault=True, group="clock"),
    "tamper": _Kind(_tamper, 1, fault=True, group="tamper"),
    "set_clock": _Kind(_set_clock, 3),
    "judge": _Kind(_sent("judge"), 2),
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


def carry_out(on: Actors, step: VoprStep) -> None:
    """One step. A fault is an answer; a crash is the harness's."""
    with suppress(Fault):
        STEPS[step.name].act(on, step)


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
