"""Drafts for the tests: small, numbered, all different."""

from typing import Any

from fairlead.ports.ledger import Draft

TIME_MS = 1_764_000_000_000


def draft(number: int, **other: Any) -> Draft:
    """A charge, as the control plane would record it."""
    given: dict[str, Any] = {
        "kind": "charge.post",
        "time_ms": TIME_MS + number,
        "author": "control-plane",
        "plan_id": f"plan-{number}",
        "effect": "post",
        "body": {"number": number, "owner": "team-ä", "gpu_milliseconds": 28_800_000},
        "reasons": ("settled",),
    }
    return Draft(**given | other)


def drafts(first: int, count: int, **other: Any) -> list[Draft]:
    """Several."""
    return [draft(number, **other) for number in range(first, first + count)]
