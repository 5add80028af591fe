"""Random `gpu.cover` documents, valid ones and ones with a single defect."""

import copy
import random
from datetime import UTC, datetime, timedelta
from typing import Any

Document = dict[str, Any]

# Later owners may have earlier ones as parents, so no graph has a cycle. Prefixes for the ACLs.
OWNERS = ("org", "org:west", "org:east", "lab", "org:west:a", "org:east:b", "lab:c", "org:west:d")
HOME = {
    "org:west": "org",
    "org:east": "org",
    "org:west:a": "org:west",
    "org:east:b": "org:east",
    "lab:c": "lab",
    "org:west:d": "org:west",
    "lab": "org",
}
REGIONS = ("us-west", "us-east", "eu")
FLAVORS = ("H100", "H100", "H100", "H100", "A100")
HOURS = (0, 1, 2.3, 4.6, 6.9, 0.1, 10, 11.5, 1e-7, 1 / 3, 24, 46)
DURATIONS = (None, None, None, 1, 1, 2.3, 2.3, 0.5, 0.1, 1 / 3, 7, 1e-9, 0)
RECURRENCES = (None, None, "daily", "weekly", "monthly", "quarterly")
NOWS = (
    datetime(2026, 1, 1, tzinfo=UTC),
    datetime(2024, 2, 29, 12, 30, tzinfo=UTC),
    datetime(2026, 4, 1, 0, 0, 0, 1000, tzinfo=UTC),
    datetime(2025, 12, 31, 23, 59, 59, 999000, tzinfo=UTC),
    datetime(2026, 6, 15, 9, 7, 3, 250000, tzinfo=UTC),
)


def stamp(moment: datetime, rng: random.Random) -> str:
    """The moment in UTC or, sometimes, in another zone."""
    if rng.random() < 0.15:
        moment = moment.astimezone(datetime.strptime(rng.choice(("+0530", "-0800")), "%z").tzinfo)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def some(rng: random.Random, chance: float, value: Any) -> Any:
    """The value with that chance, else null."""
    return value if rng.random() < chance else None


def random_doc(rng: random.Random) -> Document:
    """A small document in which everything of the contract may happen."""
    now = rng.choice(NOWS)
    style = rng.choice(
        ("family", "family", "family", "loans", "loans", "hours", "hours", "caps", "mixed")
    )
    budgets = [_budget(rng, index, now, style) for index in range(rng.randint(2, 8))]
    if style == "family" and len(budgets) >= 4:
        _raise_family(rng, budgets)
    owned = sorted({budget["owner"] for budget in budgets})
    deepest = max(owned, key=OWNERS.index)
    owner = rng.choice((deepest, deepest, rng.choice(owned), rng.choice(owned), rng.choice(OWNERS)))
    document = {
        "now": stamp(now, rng),
        "budgets": budgets,
        "leases": _leases(rng, budgets, now),
        "request": _request(rng, owner, owned, style),
    }
    if rng.random() < 0.05:
        _cross(rng, document)
    else:
        _tighten(rng, document)
    return document


def _budget(rng: random.Random, index: int, now: datetime, style: str) -> Document:
    owner = rng.choice(OWNERS)
    above = OWNERS[: OWNERS.index(owner)]
    if rng.random() < 0.6 and owner in HOME:
        parents = [HOME[owner]]
    else:
        parents = rng.sample(above, min(len(above), rng.choice((0, 1, 1, 2, 3))))
    envelopes = [_envelope(rng, name, now, style) for name in rng.sample("wxyz", rng.randint(1, 3))]
    chance = 0.9 if style == "caps" else 0.3
    caps = [_cap(rng, name, envelopes) for name in ("all", "some") if rng.random() < chance]
    if style == "caps" and rng.random() < 0.5:
        envelopes, caps = _overlap(rng, now)
    return {
        "name": f"b{(index * 5) % 9}",
        "owner": owner,
        "parents": parents,
        "envelopes": envelopes,
        "aggregate_caps": caps,
    }


def _overlap(rng: random.Random, now: datetime) -> tuple[list[Document], list[Document]]:
    """Caps on {w, x} and {w, y}: more room for w is less for the two others together."""
    envelopes = [_envelope(rng, name, now, "caps") for name in "wxyz"]
    for envelope in envelopes:
        envelope.update(flavor="H100", window=None, location={})
    caps = [
        _cap(rng, name, envelopes, list(name)) for name in ("wx", "wy", "xyz") if rng.random() < 0.8
    ]
    return envelopes, caps


def _cross(rng: random.Random, document: Document) -> None:
    """Only the owner's w, x, y under caps on {w, x} and {w, y}, which a little more w would fill.

    A lot more w takes from both others, so the only good raise is a small one.
    """
    for budget in document["budgets"]:
        budget.update(envelopes=[], aggregate_caps=[])
    document["leases"] = []
    widths = {"w": rng.randint(1, 3), "x": rng.randint(1, 5), "y": rng.randint(1, 5)}
    slack, hourly = rng.randint(1, 3), rng.random() < 0.4
    request = document["request"]
    request.update(
        gpus=sum(widths.values()) + rng.randint(1, slack),
        min_gpus=None,
        step_gpus=None,
        duration_hours=2.3 if hourly else rng.choice((None, 2.3)),
        flavor="H100",
    )
    now = datetime.fromisoformat(document["now"])
    budget = document["budgets"][0]
    budget["owner"], budget["parents"] = request["owner"], []
    for name, width in widths.items():
        envelope = _envelope(rng, name, now, "caps")
        envelope.update(flavor="H100", location={}, window=None, max_gpu_hours=None)
        envelope["concurrency"] = width
        if hourly:
            envelope.update(concurrency=64, max_gpu_hours=width * 2.3)
        budget["envelopes"].append(envelope)
    for name in ("wx", "wy"):
        cap = _cap(rng, name, budget["envelopes"], list(name))
        limit = sum(widths[member] for member in name) + slack
        cap.update(max_concurrency=limit, max_gpu_hours=None)
        budget["aggregate_caps"].append(cap)


def _raise_family(rng: random.Random, budgets: list[Document]) -> None:
    """Make the first four a child, its parent, an uncle and a cousin; others stay as they are."""
    owners = ("org:west:d", "org:west", "org:east", "org:east:b")
    for budget, owner in zip(budgets, owners, strict=False):
        budget["owner"], budget["parents"] = owner, [HOME[owner]]
        if owner != "org:east:b" and rng.random() < 0.7:
            for envelope in budget["envelopes"]:
                envelope["concurrency"] = rng.randint(1, 2)
        if owner == "org:east:b":
            for envelope in budget["envelopes"]:
                envelope.update(flavor="H100", sharing="family", concurrency=rng.randint(4, 32))
            budget["aggregate_caps"] = []


def _location(rng: random.Random, *, selector: bool) -> dict[str, str]:
    regions = (*REGIONS, "*") if selector else REGIONS
    choices: list[dict[str, str]] = [
        {},
        {"region": rng.choice(regions)},
        {"region": regions[0]},
        {"region": rng.choice(regions), "cluster": rng.choice(("a", "*") if selector else ("a",))},
    ]
    return rng.choice(choices)


def _envelope(rng: random.Random, name: str, now: datetime, style: str) -> Document:
    hourly = 0.9 if style == "hours" else 0.25
    envelope: Document = {
        "name": name,
        "flavor": rng.choice(FLAVORS),
        "location": _location(rng, selector=True),
        "concurrency": rng.choice((1, 1, 2, 3, 5, 8)) * (8 if style == "hours" else 1),
        "max_gpu_hours": some(rng, hourly, rng.choice(HOURS)),
        "window": some(rng, 0.25, _window(rng, now)),
        "sharing": "none" if rng.random() < 0.2 else "family",
        "lending": {
            "allow": rng.random() < 0.8,
            "to": rng.choice(([], ["*"], ["org:*"], ["org:west:d", "lab:*"], ["org:*", "lab"])),
            "max_concurrency": some(rng, 0.3, rng.randint(0, 4)),
            "max_gpu_hours": some(rng, 0.3, rng.choice(HOURS)),
        },
    }
    if rng.random() < 0.5:
        envelope["recurrence"] = rng.choice(RECURRENCES)
    return envelope


def _window(rng: random.Random, now: datetime) -> dict[str, str]:
    ms = timedelta(milliseconds=1)
    start, end = rng.choice(
        (
            (now - timedelta(days=40), now + timedelta(days=40)),
            (now - timedelta(hours=1), now + ms),
            (now, now + timedelta(days=1)),
            (now - timedelta(days=9), now),  # closed this instant
            (now + ms, now + timedelta(days=1)),
            (now - timedelta(days=90), now - timedelta(days=3)),
        )
    )
    return {"start": stamp(start, rng), "end": stamp(end, rng)}


def _cap(
    rng: random.Random, name: str, envelopes: list[Document], members: list[str] | None = None
) -> Document:
    flavor = rng.choice(envelopes)["flavor"]
    if members is None:
        same = [e["name"] for e in envelopes if e["flavor"] == flavor]
        members = rng.sample(same, rng.randint(1, len(same)))
        if rng.random() < 0.1:  # once more
            members.append(rng.choice(same))
    else:
        flavor = "H100"
    return {
        "name": name,
        "flavor": flavor,
        "envelopes": members,
        "max_concurrency": some(rng, 0.7, rng.randint(0, 8)),
        "max_gpu_hours": some(rng, 0.4, rng.choice(HOURS)),
    }


def _leases(rng: random.Random, budgets: list[Document], now: datetime) -> list[Document]:
    leases = []
    for index in range(rng.choice((0, 0, 1, 3, 6, 10))):
        budget = rng.choice(budgets)
        age = timedelta(milliseconds=rng.choice((0, 1, 90_000, 3_600_000, 8_280_000, 10**9)))
        end = some(rng, 0.4, now - age * rng.choice((0, 0.5, 1)))
        expected = now + timedelta(milliseconds=rng.choice((-5, 0, 1, 1_800_000, 7_200_000)))
        leases.append(
            {
                "id": f"l{index}",
                "owner": rng.choice(OWNERS),
                "budget": budget["name"],
                "envelope": rng.choice(budget["envelopes"])["name"],
                "gpus": rng.choice((1, 1, 2, 3, 5)),
                "start": stamp(now - age, rng),
                "end": end and stamp(end.replace(microsecond=end.microsecond // 1000 * 1000), rng),
                "expected_end": some(rng, 0.5, stamp(expected, rng)),
                "borrowed": rng.random() < 0.4,
            }
        )
    return [lease for lease in leases if lease["end"] is None or _ordered(lease)]


def _ordered(lease: Document) -> bool:
    """Cutting an end to the millisecond may put it before its start."""
    return datetime.fromisoformat(lease["start"]) <= datetime.fromisoformat(lease["end"])


def _request(rng: random.Random, owner: str, owned: list[str], style: str) -> Document:
    gpus = rng.choice((1, 3, 6, 8, 12, 16, 24, 32))
    least, step = None, None
    if rng.random() < 0.3:
        least, step = rng.randint(1, gpus), rng.randint(1, 4)
        gpus = least + (gpus - least) // step * step
    loans = style in ("loans", "caps")
    others = [name for name in (*owned, "nobody") if loans or rng.random() < 0.4]
    return {
        "owner": owner,
        "flavor": "H100" if rng.random() < 0.98 else "B200",
        "gpus": gpus,
        "min_gpus": least,
        "step_gpus": step,
        "location": _location(rng, selector=False),
        "duration_hours": rng.choice(DURATIONS),
        "allow_borrow": rng.random() < 0.75,
        "max_borrow_gpus": some(rng, 0.4, rng.randint(0, 8)),
        "sponsors": rng.sample(others, len(others)) + others[: rng.random() < 0.1],
    }


def _tighten(rng: random.Random, document: Document) -> None:
    """Now and then leave one sort of cap as the only one that can be in the way.

    Without it nearly every remedy is the first kind: some envelope's concurrency.
    """
    sorts = ("aggregate", "hours", "aggregate-hours", "lending", "lending-hours")
    spared = rng.choice((*(None,) * 5, *sorts))
    if spared is None:
        return
    for budget in document["budgets"]:
        for envelope in budget["envelopes"]:
            envelope["concurrency"] = 64
            envelope["max_gpu_hours"] = some(rng, spared == "hours", rng.choice(HOURS))
            if spared == "lending":
                envelope["lending"]["max_concurrency"] = rng.randint(0, 8)
            if spared == "lending-hours":
                envelope["lending"]["max_concurrency"] = None
                envelope["lending"]["max_gpu_hours"] = rng.choice(HOURS)
        if spared.startswith("aggregate"):
            names = [e["name"] for e in budget["envelopes"] if e["flavor"] == "H100"]
            budget["aggregate_caps"] = [_cap(rng, "all", budget["envelopes"], names)]
        for cap in budget["aggregate_caps"]:
            cap["max_concurrency"] = some(rng, spared == "aggregate", rng.randint(0, 8))
            cap["max_gpu_hours"] = some(rng, spared == "aggregate-hours", rng.choice(HOURS))
    if spared.startswith("lending"):
        _drain(document)


def _drain(document: Document) -> None:
    """The requester's family has nothing of the flavor: only loans can help."""
    owner = document["request"]["owner"]
    for budget in document["budgets"]:
        budget["parents"] = []
        if budget["owner"] == owner:
            for envelope in budget["envelopes"]:
                envelope["flavor"] = "A100"
            budget["aggregate_caps"] = []


# --- documents with one defect --------------------------------------------------------------


def spoil(rng: random.Random, document: Document) -> Document:
    """The document with one random field removed, added, repeated or replaced by rubbish."""
    spoiled = copy.deepcopy(document)
    holders = list(_objects(spoiled))
    holder = rng.choice(holders)
    action = rng.randrange(4)
    if action == 0:
        holder["bogus"] = 1
    elif action == 1 and holder:
        del holder[rng.choice(sorted(holder))]
    elif action == 2 and holder:
        holder[rng.choice(sorted(holder))] = rng.choice(
            (
                None,
                "",
                "x",
                0,
                -1,
                1.0,
                0.5,
                True,
                [],
                {},
                [""],
                ["x", "x"],
                {"k": 1},
                float("nan"),
                "2026-01-01T00:00:00",
                "2026-01-01",
                "9999-01-01T00:00:00Z",
                "2000-01-01T00:00:00Z",
            )
        )
    else:
        lists = [v for h in holders for v in h.values() if isinstance(v, list) and v]
        chosen = rng.choice(lists)
        chosen.append(copy.deepcopy(rng.choice(chosen)))
    return spoiled


def _objects(value: Any) -> Any:
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from _objects(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _objects(inner)
