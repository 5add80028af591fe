"""Who holds which devices: how runs stand, and what is left when leases have ended."""

from fairlead.core.gpu import HeldLease, HoldingRun, Holdings, Node, Role, RunProtection, Standing

PROTECTION = RunProtection(now_ms=9, min_runtime_ms=5, cooldown_ms=7)


def test_a_run_stands_by_the_lease_that_protects_it_least() -> None:
    """Funded, recalled, unfunded: and what protects runs stays when leases have ended."""
    kinds = {"f": (True, False), "r": (False, True), "u": (False, False)}
    leases = tuple(
        HeldLease(f"{run}{i}", run, Role.ACTIVE, i, (f"n#{row}{i}",), *paid)
        for row, run in enumerate(("f", "r", "u", "ru"))
        for i, paid in enumerate(
            (kinds[kind][0], "b", "e", False, kinds[kind][1]) for kind in f"f{run}"
        )
    )
    runs = tuple(HoldingRun(run, "o", "H100") for run in ("f", "r", "u", "ru"))
    held = Holdings((Node("n", "H100", {}, ()),), runs, leases, PROTECTION)
    worst = max(Standing.RECALLED, Standing.UNFUNDED)
    assert held.standings() == {
        "f": Standing.FUNDED,
        "r": Standing.RECALLED,
        "u": Standing.UNFUNDED,
        "ru": worst,
    }
    assert held.after({"f0"}).protection == PROTECTION
    assert held.after(set()) is held
