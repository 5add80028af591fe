"""Short ways to write `gpu.cover` documents, and what to do with a remedy."""

import copy
import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from math import nextafter
from typing import Any

from fairlead.schema.kinds import KINDS

Document = dict[str, Any]
MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)
NOW = "2026-01-01T00:00:00Z"
NO_LOANS: Document = {"allow": False, "to": [], "max_concurrency": None, "max_gpu_hours": None}


def at(hours: float) -> str:
    """A time so many hours from NOW; negative: before it."""
    return (MIDNIGHT + timedelta(hours=hours)).isoformat()


def lend(*to: str, gpus: int | None = None, hours: float | None = None) -> Document:
    """Lending to these owners, with sub-caps."""
    return {"allow": True, "to": list(to), "max_concurrency": gpus, "max_gpu_hours": hours}


def envelope(
    name: str, gpus: int, hours: float | None = None, *, lending: Document = NO_LOANS, **fields: Any
) -> Document:
    """An envelope of H100 anywhere, always open, shared in the family."""
    return {
        "name": name,
        "flavor": "H100",
        "location": {},
        "concurrency": gpus,
        "max_gpu_hours": hours,
        "window": None,
        "sharing": "family",
        "lending": copy.deepcopy(lending),
        **fields,
    }


def cap(
    name: str,
    members: Iterable[str],
    gpus: int | None = None,
    hours: float | None = None,
    flavor: str = "H100",
) -> Document:
    """An aggregate cap."""
    return {
        "name": name,
        "flavor": flavor,
        "envelopes": list(members),
        "max_concurrency": gpus,
        "max_gpu_hours": hours,
    }


def budget(
    owner: str,
    *envelopes: Document,
    name: str | None = None,
    parents: Iterable[str] = (),
    caps: Iterable[Document] = (),
) -> Document:
    """A budget, named like its owner unless told otherwise."""
    return {
        "name": name or owner,
        "owner": owner,
        "parents": list(parents),
        "envelopes": list(envelopes),
        "aggregate_caps": list(caps),
    }


def lease(
    payer: str,
    gpus: int,
    since: float,
    until: float | None = None,
    *,
    expected: float | None = None,
    borrowed: bool = False,
    id: str | None = None,
) -> Document:
    """A lease paid by `budget/envelope`; times in hours from NOW."""
    paying, _, name = payer.partition("/")
    return {
        "id": id or f"{payer}:{gpus}:{since}:{until}:{expected}:{borrowed}",
        "owner": "somebody",
        "budget": paying,
        "envelope": name,
        "gpus": gpus,
        "start": at(since),
        "end": None if until is None else at(until),
        "expected_end": None if expected is None else at(expected),
        "borrowed": borrowed,
    }


def ask(owner: str, gpus: int, duration: float | None = None, **fields: Any) -> Document:
    """A request for H100 anywhere; `sponsors` alone means that it may borrow."""
    return {
        "owner": owner,
        "flavor": "H100",
        "gpus": gpus,
        "min_gpus": None,
        "step_gpus": None,
        "location": {},
        "duration_hours": duration,
        "allow_borrow": "sponsors" in fields,
        "max_borrow_gpus": None,
        "sponsors": [],
        **fields,
    }


def document(
    request: Document, *budgets: Document, leases: Iterable[Document] = (), now: str = NOW
) -> Document:
    """The whole input."""
    return {"now": now, "budgets": list(budgets), "leases": list(leases), "request": request}


def decide(given: Document) -> Document:
    """Through the border and the core."""
    return KINDS["gpu.cover"].run(json.dumps(given).encode()).result


def cover(
    request: Document, *budgets: Document, leases: Iterable[Document] = (), now: str = NOW
) -> Document:
    """Decide a document written in place."""
    return decide(document(request, *budgets, leases=leases, now=now))


def lines(result: Document) -> list[tuple[str, str, int]]:
    """(tier, budget/envelope, GPUs) of a funded plan."""
    assert result["funded"], result["refusal"]
    return [(x["tier"], f"{x['budget']}/{x['envelope']}", x["gpus"]) for x in result["plan"]]


def refusal(result: Document) -> Document:
    """The refusal; nothing is granted beside it."""
    assert (result["funded"], result["gpus"], result["plan"]) == (False, 0, [])
    found: Document = result["refusal"]
    return found


def remedy(result: Document) -> tuple[Any, ...] | None:
    """(change, budget, name, from, to) of a refusal's remedy."""
    found = refusal(result)["remedy"]
    return found and tuple(found[key] for key in ("change", "budget", "name", "from", "to"))


def binding(result: Document) -> set[tuple[Any, ...]]:
    """(kind, budget, name, limit, used) of everything a refusal blames."""
    keys = ("kind", "budget", "name", "limit", "used")
    return {tuple(entry[key] for key in keys) for entry in refusal(result)["binding"]}


def apply_remedy(given: Document, change: Document, to: Any = None) -> Document:
    """The document after the change, or after the same change to another value."""
    changed = copy.deepcopy(given)
    to = change["to"] if to is None else to
    kind, _, what = change["change"].partition("-")
    if kind == "borrow":
        changed["request"][change["name"]] = to
        return changed
    holder = next(b for b in changed["budgets"] if b["name"] == change["budget"])
    inner = holder["aggregate_caps" if kind == "aggregate" else "envelopes"]
    holder = next(each for each in inner if each["name"] == change["name"])
    if kind == "lending":
        holder = holder["lending"]
    if what == "acl":
        holder.update(allow=True, to=to)
    elif what == "hours":
        holder["max_gpu_hours"] = to
    else:
        holder["concurrency" if kind == "envelope" else "max_concurrency"] = to
    return changed


def one_less(change: Document) -> Any:
    """The next smaller value: one GPU, or the next smaller number of hours; None for a switch."""
    if change["change"].endswith("hours"):
        return nextafter(change["to"], 0)
    if change["change"] == "lending-acl" or change["name"] == "allow_borrow":
        return None
    return change["to"] - 1
