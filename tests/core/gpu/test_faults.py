"""What no type can say of a request: each fault in its sentence, and none where all is well."""

from typing import Protocol

import pytest

from fairlead.core.gpu.after import AfterCondition, Dependencies, Dependency, RunProgress
from fairlead.core.gpu.charges import HeadCap, HeadFunding
from fairlead.core.gpu.model import AggregateCap, Budget, Envelope, Request, Window
from fairlead.core.gpu.order import (
    ActivateRequest,
    FlavorHold,
    RankCause,
    RankedRun,
    RankRequest,
    ShrunkRun,
    ShrunkRuns,
    WaitingReservation,
)
from fairlead.core.gpu.place import Node
from fairlead.core.gpu.quarantine import DeviceMemory, QuarantineRequest
from fairlead.core.gpu.refund import OpenAccount, OpenLease, RefundRequest
from fairlead.core.gpu.resize import ResizeRequest, Role, RunLease, Swap
from fairlead.core.gpu.restart import FailurePolicy
from fairlead.core.gpu.start import GANG_GPUS_MAX, GangShape, RunGrowth, StartRequest
from fairlead.core.units import OutOfRange


class Checked(Protocol):
    """A value that says what is wrong with it."""

    def faults(self) -> "list[OutOfRange]": ...


WEST, EAST = Envelope("west", "H100", 4), Envelope("east", "A100", 4)
HOLD = FlavorHold("H100", 7)
MALLEABLE = Request("a", "H100", 4, min_gpus=2, step_gpus=2)


def budget(*envelopes: Envelope, caps: tuple[AggregateCap, ...] = ()) -> Budget:
    return Budget("b", "a", (), envelopes, caps)


def account(envelope: str, *leases: str) -> OpenAccount:
    rows = tuple(OpenLease(name, "a", 1, 0, None, False, None, None, 0) for name in leases)
    return OpenAccount(envelope, 0, 0, 0, 0, 0, 0, rows)


def start(request: Request = MALLEABLE, group: int | None = 2, **more: object) -> StartRequest:
    return StartRequest(request, GangShape(group_gpus=group), **more)  # type: ignore[arg-type]


DEPENDENCY = Dependency("r", AfterCondition.OK, RunProgress.OPEN)
LEASE = RunLease("l", Role.ACTIVE, 0, ("n#0",))
RESERVED = WaitingReservation("v", "r", 5)
SHRUNK, RANKED = ShrunkRun("r", "H100", 1, 2, True), RankedRun("r", "H100", 1)
WIDTH = f"must leave 1 to {GANG_GPUS_MAX} GPUs without the spares"
WIDE = Request("a", "H100", GANG_GPUS_MAX + 1)


@pytest.mark.parametrize(
    ("value", "faults"),
    [
        (Window(5, 5), ["end_ms: must be after its start"]),
        (budget(WEST, WEST), ["envelopes[1].name: repeats 'west'"]),
        (
            budget(WEST, caps=(AggregateCap("c", "H100", ()), AggregateCap("c", "H100", ("x",)))),
            [
                "aggregate_caps[1].name: repeats 'c'",
                "aggregate_caps[1].envelopes[0]: is no envelope of it: 'x'",
            ],
        ),
        (
            budget(WEST, EAST, caps=(AggregateCap("c", "H100", ("west", "east")),)),
            ["aggregate_caps[0].envelopes[1]: is an envelope of A100, not of H100"],
        ),
        (
            Request("a", "H100", 4, min_gpus=2),
            ["step_gpus: must be given with the other: min_gpus and step_gpus"],
        ),
        (
            Request("a", "H100", 4, step_gpus=2),
            ["min_gpus: must be given with the other: min_gpus and step_gpus"],
        ),
        (
            Request("a", "H100", 4, min_gpus=6, step_gpus=3),
            ["min_gpus: must be at most gpus, 4, got 6", "gpus: must be 6 plus a multiple of 3"],
        ),
        (Dependencies((DEPENDENCY,) * 2), ["after[1].run: repeats another after's run, 'r'"]),
        (
            HeadFunding(1, (HeadCap(1),), ((0,), (0, 1))),
            ["payers[1]: names a cap beyond the 1 given"],
        ),
        (
            ActivateRequest(0, (RESERVED, RESERVED)),
            ["reservations[1].name: repeats another reservation's name, 'v'"],
        ),
        (
            ShrunkRuns(0, (SHRUNK, SHRUNK), (HOLD, HOLD)),
            [
                "runs[1].id: repeats another run's id, 'r'",
                "holds[1].flavor: repeats another hold's flavor, 'H100'",
            ],
        ),
        (
            RankRequest(0, RankCause.RECALL, (RANKED, RANKED), (HOLD, HOLD)),
            [
                "runs[1].id: repeats another run's id, 'r'",
                "holds[1].flavor: repeats another hold's flavor, 'H100'",
            ],
        ),
        (Node("n", "H100", {}, (0, 1, 0)), ["free: names a device twice"]),
        (
            QuarantineRequest((DeviceMemory("n#0", 1), DeviceMemory("n#0", 2))),
            ["devices[1].slot: repeats another device's slot, 'n#0'"],
        ),
        (
            RefundRequest(0, budget(WEST), (account("west", "l"), account("west", "k", "l"))),
            [
                "accounts[1].envelope: repeats another account's envelope, 'west'",
                "accounts[1].leases[1].id: is given twice",
            ],
        ),
        (
            RefundRequest(0, budget(WEST), (account("west"), account("east"))),
            ["accounts[1].envelope: is no envelope of the budget: 'east'"],
        ),
        (
            ResizeRequest(Swap("n"), (LEASE, LEASE)),
            ["leases[1].id: repeats another lease's id, 'l'"],
        ),
        (FailurePolicy(1, (3, 4, 3)), ["fail_exit_codes[2]: repeats 3"]),
        (RunGrowth(4, 4, ()), ["grows_to: must be above the width, 4"]),
        (start(WIDE, None), [f"request.gpus: {WIDTH}"]),
        (
            start(Request("a", "H100", 4), growth=RunGrowth(2, 4, (0,))),
            ["growth: is for a malleable run of groups"],
        ),
        (
            start(group=None, growth=RunGrowth(2, 4, (0,))),
            ["growth: is for a malleable run of groups"],
        ),
        (
            start(growth=RunGrowth(2, GANG_GPUS_MAX + 1, (0,))),
            [f"growth.grows_to: must be at most {GANG_GPUS_MAX}"],
        ),
        (
            start(freed=("n#0", "n", "n#x")),
            [
                "freed[1]: must be node#ordinal, got 'n'",
                "freed[2]: must be node#ordinal, got 'n#x'",
            ],
        ),
    ],
)
def test_a_fault_says_what_is_wrong_and_where(value: Checked, faults: list[str]) -> None:
    assert [str(fault) for fault in value.faults()] == faults


@pytest.mark.parametrize(
    "value",
    [
        Window(4, 5),
        budget(WEST, EAST, caps=(AggregateCap("c", "H100", ("west", "west")),)),
        Request("a", "H100", 6, min_gpus=2, step_gpus=2),
        Request("a", "H100", 2, min_gpus=2, step_gpus=2),
        Dependencies((DEPENDENCY,)),
        HeadFunding(1, (HeadCap(1), HeadCap(1)), ((0, 1),)),
        ActivateRequest(0, (RESERVED,)),
        ShrunkRuns(0, (SHRUNK,), (HOLD,)),
        RankRequest(0, RankCause.RECALL, (RANKED,)),
        Node("n", "H100", {}, (0, 1)),
        QuarantineRequest((DeviceMemory("n#0", 1),)),
        RefundRequest(0, budget(WEST, EAST), (account("west", "l"), account("east", "k"))),
        ResizeRequest(Swap("n"), (LEASE,)),
        FailurePolicy(1, (3, 4)),
        RunGrowth(4, 5, ()),
        start(Request("a", "H100", GANG_GPUS_MAX), None),
        start(growth=RunGrowth(2, GANG_GPUS_MAX, (0,)), freed=("n#0",)),
    ],
)
def test_what_is_just_inside_has_no_fault(value: Checked) -> None:
    assert not list(value.faults())
