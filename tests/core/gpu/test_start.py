"""Cover, then place: a malleable run starts at the widest width that is funded and has devices."""

from fairlead.core.gpu import Book, Budget, Envelope, Gang, Node, Plan, Request, place
from fairlead.core.gpu.start import Assessment, assess, at_least


def decide(request: Request, *, paid: int, free: int) -> tuple[Assessment, list[int]]:
    """The assessment, and the widths that were tried on so many free devices of one node."""
    book = Book([Budget("t", "t", envelopes=(Envelope("e", "H100", paid),))], {})
    nodes, tried = [Node("n", "H100", {}, tuple(range(free)))], list[int]()

    def gang_of(plan: Plan) -> Gang:
        tried.append(plan.gpus)
        return Gang("H100", plan.gpus)

    assessed = assess(
        book,
        request,
        0,
        gang_of=gang_of,
        place=lambda gang: place(nodes, gang),
        free_gpus=lambda: free,
    )
    return assessed, tried


def rigid(gpus: int) -> Request:
    return Request("t", "H100", gpus)


def malleable(gpus: int, least: int, step: int) -> Request:
    return Request("t", "H100", gpus, min_gpus=least, step_gpus=step)


def test_what_is_not_funded_is_not_placed() -> None:
    assessed, tried = decide(rigid(5), paid=4, free=8)
    assert (assessed.starts, assessed.placement, tried) == (False, None, [])
    assert assessed.remedy is not None


def test_a_rigid_run_starts_whole_or_not_at_all() -> None:
    assert decide(rigid(4), paid=4, free=4)[0].starts
    assessed, tried = decide(rigid(4), paid=4, free=3)
    assert (assessed.starts, tried) == (False, [4])


def test_a_malleable_run_starts_at_the_widest_step_that_fits() -> None:
    """Of 2, 4, 6 … 100 GPUs, those wider than the seven free devices are not tried."""
    assessed, tried = decide(malleable(100, 2, 2), paid=100, free=7)
    assert (assessed.starts, assessed.plan.gpus, tried) == (True, 6, [100, 6])


def test_a_malleable_run_that_does_not_fit_is_assessed_at_its_full_width() -> None:
    assessed, tried = decide(malleable(8, 4, 4), paid=8, free=3)
    assert (assessed.starts, assessed.plan.gpus, tried) == (False, 8, [8])


def test_preemption_makes_room_for_the_minimum() -> None:
    book = Book([Budget("t", "t", envelopes=(Envelope("e", "H100", 8),))], {})
    assessed, _ = decide(malleable(8, 4, 4), paid=8, free=3)
    assert at_least(book, assessed, 0).plan.gpus == 4
    whole, _ = decide(rigid(8), paid=8, free=3)
    assert at_least(book, whole, 0) is whole
