"""A second, independent implementation of `gpu.cover`, from the specification alone.

Fractions and dictionaries, every remedy tried value by value on the whole walk, nothing imported
from Fairlead: what the core is compared with. Slow on purpose; documents are kept small. One file,
so that it can be read beside the page from top to bottom.
"""
# ruff: noqa: PLR0917
# mypy: ignore-errors

import math
import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import cache

HOUR_MS = 3_600_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FAMILY = ("own", "sibling", "parent")


# --- quantities -----------------------------------------------------------------------------


@cache
def exact(number):
    """2.3 means 23/10, not the double next to it."""
    return Fraction(repr(number))


@cache
def cap_ms(hours):
    return math.floor(exact(hours) * HOUR_MS)


@cache
def duration_ms(hours):
    return math.ceil(exact(hours) * HOUR_MS)


def hours_that_read_as(ms):
    """The smallest double which, read as a cap, is at least `ms`."""
    guess = float(Fraction(ms, HOUR_MS))
    while cap_ms(guess) >= ms and guess > 0:
        guess = math.nextafter(guess, 0)
    while cap_ms(guess) < ms:
        guess = math.nextafter(guess, math.inf)
    return guess


def to_ms(moment):
    ms = Fraction((moment - EPOCH) // timedelta(microseconds=1), 1000)
    return int(ms) if ms.denominator == 1 else ms


@cache
def parse(text):
    """A timestamp with a zone, as exact milliseconds since the epoch."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(text)
    return to_ms(moment)


# --- usage ----------------------------------------------------------------------------------


def period(recurrence, now_text):
    """The UTC calendar period around now, as a half-open pair of milliseconds."""
    now = datetime.fromisoformat(now_text).astimezone(UTC)
    day = datetime(now.year, now.month, now.day, tzinfo=UTC)
    if recurrence is None:
        return -math.inf, math.inf
    if recurrence == "daily":
        return to_ms(day), to_ms(day + timedelta(days=1))
    if recurrence == "weekly":
        monday = day - timedelta(days=now.isoweekday() - 1)
        return to_ms(monday), to_ms(monday + timedelta(days=7))
    months = {"monthly": 1, "quarterly": 3}[recurrence]
    first = (now.month - 1) // months * months  # counted from 0
    after = first + months
    start = datetime(now.year, first + 1, 1, tzinfo=UTC)
    end = datetime(now.year + after // 12, after % 12 + 1, 1, tzinfo=UTC)
    return to_ms(start), to_ms(end)


def span(envelope, now_text):
    """Where this envelope counts charges now: its period, cut to its window."""
    start, end = period(envelope.get("recurrence"), now_text)
    if envelope["window"] is not None:
        start = max(start, parse(envelope["window"]["start"]))
        end = min(end, parse(envelope["window"]["end"]))
    return start, end


def is_open(envelope, now_text):
    window = envelope["window"]
    return window is None or parse(window["start"]) <= parse(now_text) < parse(window["end"])


def usage(doc):
    """(budget, envelope, lent?) -> [open GPUs, GPU-milliseconds used in its period, held].

    The plain key counts every lease the envelope pays for, the lent key the borrowed ones.
    """
    now = parse(doc["now"])
    used = {}
    for budget in doc["budgets"]:
        for envelope in budget["envelopes"]:
            start, end = span(envelope, doc["now"])
            for lent in (False, True):
                gpus = charged = held = 0
                for lease in doc["leases"]:
                    if (lease["budget"], lease["envelope"]) != (budget["name"], envelope["name"]):
                        continue
                    if lent and not lease["borrowed"]:
                        continue
                    until = now if lease["end"] is None else parse(lease["end"])
                    inside = min(until, end) - max(parse(lease["start"]), start)
                    charged += lease["gpus"] * max(0, inside)
                    if lease["end"] is None:
                        gpus += lease["gpus"]
                        if lease["expected_end"] is not None:
                            held += lease["gpus"] * max(0, parse(lease["expected_end"]) - now)
                used[budget["name"], envelope["name"], lent] = (gpus, charged, held)
    return used


# --- the cover order ------------------------------------------------------------------------


def parents_of(doc, owner):
    return {name for b in doc["budgets"] if b["owner"] == owner for name in b["parents"]}


def owners_of(doc):
    return {b["owner"] for b in doc["budgets"]}


def siblings_of(doc, owner):
    """Owners that share a parent with this one."""
    mine = parents_of(doc, owner)
    return {o for o in owners_of(doc) if o != owner and mine & parents_of(doc, o)}


def cousins_of(doc, owner):
    """Children of the parents' siblings. No owner is an uncle of its own children's cousin."""
    uncles = set()
    for parent in parents_of(doc, owner):
        uncles |= siblings_of(doc, parent)
    uncles.discard(owner)
    return {o for o in owners_of(doc) if uncles & parents_of(doc, o)}


def relations(doc, owner):
    """owner -> own, sibling, parent or cousin: the first tier that reaches it."""
    found = {owner: "own"}
    for relation, others in (
        ("sibling", siblings_of(doc, owner)),
        ("parent", parents_of(doc, owner)),
        ("cousin", cousins_of(doc, owner)),
    ):
        for other in others:
            found.setdefault(other, relation)
    return found


def in_location(envelope, request):
    return all(
        key in request["location"] and value in ("*", request["location"][key])
        for key, value in envelope["location"].items()
    )


def cover_order(doc):
    """Every reachable envelope of the flavor in an open window: (tier, budget, envelope)."""
    request = doc["request"]
    family = relations(doc, request["owner"])
    tiers = [
        *FAMILY,
        *(f"{name}-elsewhere" for name in FAMILY),
        *("cousin", "cousin-elsewhere", "sponsor", "sponsor-elsewhere"),
    ]
    found = []
    for budget in doc["budgets"]:
        owner = budget["owner"]
        for envelope in budget["envelopes"]:
            if envelope["flavor"] != request["flavor"] or not is_open(envelope, doc["now"]):
                continue
            turn = 0
            if owner in family:
                relation = family[owner]
                if relation != "own" and envelope["sharing"] != "family":
                    continue
            elif owner in request["sponsors"]:
                relation, turn = "sponsor", request["sponsors"].index(owner)
            else:
                continue
            tier = relation if in_location(envelope, request) else f"{relation}-elsewhere"
            key = (tiers.index(tier), turn, owner, budget["name"], envelope["name"])
            found.append((key, tier, budget, envelope))
    found.sort(key=lambda item: item[0])
    return [item[1:] for item in found]


# --- the walk -------------------------------------------------------------------------------


def admits(lending, owner):
    def matches(entry):
        return owner.startswith(entry[:-1]) if entry.endswith("*") else owner == entry

    return lending["allow"] and any(matches(entry) for entry in lending["to"])


def caps_over(used, budget, envelope, sponsor):
    """Every cap a grant from this envelope counts against, with its members and use."""
    name = budget["name"]

    def totals(members, lent):
        rows = [used[name, member, lent] for member in set(members)]
        return sum(r[0] for r in rows), sum(r[1] + r[2] for r in rows)

    wanted = [
        (
            "envelope",
            envelope["name"],
            [envelope["name"]],
            False,
            envelope["concurrency"],
            envelope["max_gpu_hours"],
        )
    ]
    for cap in sorted(budget["aggregate_caps"], key=lambda cap: cap["name"]):
        if envelope["name"] in cap["envelopes"]:
            wanted.append(
                (
                    "aggregate",
                    cap["name"],
                    cap["envelopes"],
                    False,
                    cap["max_concurrency"],
                    cap["max_gpu_hours"],
                )
            )
    if sponsor:
        lending = envelope["lending"]
        wanted.append(
            (
                "lending",
                envelope["name"],
                [envelope["name"]],
                True,
                lending["max_concurrency"],
                lending["max_gpu_hours"],
            )
        )
    for kind, cap_name, members, lent, gpus, hours in wanted:
        used_gpus, used_ms = totals(members, lent)
        yield kind, "gpus", cap_name, members, gpus, used_gpus
        yield kind, "hours", cap_name, members, hours, used_ms


def room_under(cap, given, budget_name, duration):
    """How many more GPUs fit under one cap, after what this plan has given already."""
    _, unit, _, members, limit, used = cap
    if limit is None:
        return math.inf
    mine = sum(given.get((budget_name, member), 0) for member in set(members))
    if unit == "gpus":
        return max(0, limit - used - mine)
    left = cap_ms(limit) - used
    if duration is None:  # holds nothing, needs something to be left
        return math.inf if left > 0 else 0
    if duration == 0:
        return math.inf if left >= 0 else 0
    return max(0, left // duration_ms(duration) - mine)


def walk(doc, used, order, width, relax=None):
    """One greedy pass: {(budget, envelope): GPUs} and how much of it is borrowed."""
    request = doc["request"]
    given, borrowed = {}, 0
    for tier, budget, envelope in order:
        sponsor = tier.startswith("sponsor")
        room = width - sum(given.values())
        if room == 0:
            break
        if sponsor:
            if relax != "borrow":
                if not request["allow_borrow"]:
                    continue
                if request["max_borrow_gpus"] is not None:
                    room = min(room, request["max_borrow_gpus"] - borrowed)
            if relax != "acl" and not admits(envelope["lending"], request["owner"]):
                continue
        for cap in caps_over(used, budget, envelope, sponsor):
            if relax == "hours" and cap[1] == "hours":
                continue
            room = min(room, room_under(cap, given, budget["name"], request["duration_hours"]))
        if room > 0:
            given[budget["name"], envelope["name"]] = room
            borrowed += room if sponsor else 0
    return given, borrowed


# --- decide ---------------------------------------------------------------------------------


def decide(doc):
    request = doc["request"]
    used, order = usage(doc), cover_order(doc)
    least = request["gpus"] if request["min_gpus"] is None else request["min_gpus"]
    step = request["step_gpus"] or 1

    for width in range(request["gpus"], least - 1, -step):
        given, _ = walk(doc, used, order, width)
        if sum(given.values()) == width:
            plan = [
                {
                    "budget": budget["name"],
                    "envelope": envelope["name"],
                    "owner": budget["owner"],
                    "gpus": given[budget["name"], envelope["name"]],
                    "tier": tier,
                    "borrowed": tier.startswith("sponsor"),
                }
                for tier, budget, envelope in order
                if (budget["name"], envelope["name"]) in given
            ]
            return {"funded": True, "gpus": width, "plan": plan, "refusal": None}

    given, borrowed = walk(doc, used, order, least)
    refusal = {
        "code": code_of(doc, used, order, least),
        "message": "",
        "shortfall_gpus": least - sum(given.values()),
        "remedy": remedy_of(doc, used, order, least),
    }
    refusal["binding"] = binding_of(doc, used, order, (given, borrowed), refusal["code"])
    return {"funded": False, "gpus": 0, "plan": [], "refusal": refusal}


def funds(doc, used, order, width, relax=None):
    return sum(walk(doc, used, order, width, relax)[0].values()) == width


def code_of(doc, used, order, width):
    if not order:
        return "NoEnvelope"
    for relax, code in (
        ("borrow", "BorrowLimitExceeded"),
        ("acl", "ACLDenied"),
        ("hours", "IntegralCapExceeded"),
    ):
        if funds(doc, used, order, width, relax):
            return code
    return "ConcurrencyCapExceeded"


def binding_of(doc, used, order, granted, code):
    """What stands in the way of one more GPU, of the sort the code is about."""
    request = doc["request"]
    given, borrowed = granted
    entries = []

    def add(kind, budget, name, limit, use, *, hourly=False):
        use = float(Fraction(use, HOUR_MS)) if hourly else use
        entry = {"kind": kind, "budget": budget, "name": name, "limit": limit, "used": use}
        if (entry, hourly) not in entries:
            entries.append((entry, hourly))

    for tier, budget, envelope in order:
        sponsor = tier.startswith("sponsor")
        if sponsor:
            if not request["allow_borrow"]:
                add("borrow", None, "allow_borrow", 0, 0)
            if request["max_borrow_gpus"] is not None and borrowed >= request["max_borrow_gpus"]:
                add("borrow", None, "max_borrow_gpus", request["max_borrow_gpus"], 0)
            if not admits(envelope["lending"], request["owner"]):
                add("acl", budget["name"], envelope["name"], None, 0)
        for cap in caps_over(used, budget, envelope, sponsor):
            kind, unit, name, _, limit, use = cap
            if room_under(cap, given, budget["name"], request["duration_hours"]) == 0:
                add(kind, budget["name"], name, limit, use, hourly=unit == "hours")
    about = {
        "BorrowLimitExceeded": lambda entry, hourly: entry["kind"] == "borrow",
        "ACLDenied": lambda entry, hourly: entry["kind"] == "acl",
        "IntegralCapExceeded": lambda entry, hourly: hourly,
    }.get(code, lambda entry, hourly: True)
    return [entry for entry, hourly in entries if about(entry, hourly)]


def remedy_of(doc, used, order, width):
    """Try every single change, value by value, on the real walk."""
    request, found = doc["request"], []

    def attempt(change, holder, field, budget, name, values):
        """The first value, tried upwards, that funds the request."""
        before = holder[field]
        for value in values:
            holder[field] = value
            works = funds(doc, used, order, width)
            holder[field] = before
            if works:
                found.append(
                    {"change": change, "budget": budget, "name": name, "from": before, "to": value}
                )
                return

    def more_gpus(limit, use):
        return range(limit + 1, max(limit, use) + width + 1)

    def more_hours(limit, use):
        if request["duration_hours"] is None:
            steps = [math.floor(use) + 1]
        else:
            each = duration_ms(request["duration_hours"])
            steps = [math.ceil(use + k * each) for k in range(1, width + 1)]
        return [hours_that_read_as(ms) for ms in steps if ms > cap_ms(limit)]

    def over(kind, unit):
        """Every cap of one sort in the document: (holder of the field, field, budget, cap)."""
        for budget in doc["budgets"]:
            seen = set()
            for envelope in budget["envelopes"]:
                for cap in caps_over(used, budget, envelope, sponsor=True):
                    if cap[:2] != (kind, unit) or cap[2] in seen or cap[4] is None:
                        continue
                    seen.add(cap[2])
                    yield budget, envelope, cap

    def holder_of(kind, budget, envelope, name):
        if kind == "envelope":
            return envelope
        if kind == "lending":
            return envelope["lending"]
        return next(cap for cap in budget["aggregate_caps"] if cap["name"] == name)

    def try_caps(kind, unit):
        for budget, envelope, (_, _, name, _, limit, use) in over(kind, unit):
            if unit == "gpus":
                field = "concurrency" if kind == "envelope" else "max_concurrency"
                values = more_gpus(limit, use)
            else:
                field, values = "max_gpu_hours", more_hours(limit, use)
            holder = holder_of(kind, budget, envelope, name)
            change = f"{kind}-{'concurrency' if unit == 'gpus' else 'hours'}"
            attempt(change, holder, field, budget["name"], name, values)

    def best():
        return min(found, key=lambda r: (r["to"], r["budget"] or "", r["name"]))

    for kind, unit in (
        ("envelope", "gpus"),
        ("aggregate", "gpus"),
        ("envelope", "hours"),
        ("aggregate", "hours"),
        ("lending", "gpus"),
        ("lending", "hours"),
    ):
        try_caps(kind, unit)
        if found:
            return best()

    for budget in sorted(doc["budgets"], key=lambda b: b["name"]):
        for envelope in sorted(budget["envelopes"], key=lambda e: e["name"]):
            lending = envelope["lending"]
            if admits(lending, request["owner"]):
                continue
            opened = {**lending, "allow": True, "to": [*lending["to"], request["owner"]]}
            attempt("lending-acl", envelope, "lending", budget["name"], envelope["name"], [opened])
    if found:
        entries = sorted(found[0]["from"]["to"])
        return {**found[0], "from": entries, "to": [*entries, request["owner"]]}

    limit = request["max_borrow_gpus"]
    if limit is not None:
        values = range(limit + 1, limit + width + 1)
        attempt("borrow-limit", request, "max_borrow_gpus", None, "max_borrow_gpus", values)
    if not request["allow_borrow"]:
        attempt("borrow-limit", request, "allow_borrow", None, "allow_borrow", [True])
    return found[0] if found else None


# --- bad input ------------------------------------------------------------------------------


class Bad(Exception):
    """The path of the first bad field."""


STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
FIELDS = {
    "document": "now budgets leases request",
    "budget": "name owner parents envelopes aggregate_caps",
    "envelope": "name flavor location concurrency max_gpu_hours window sharing lending",
    "window": "start end",
    "lending": "allow to max_concurrency max_gpu_hours",
    "cap": "name flavor envelopes max_concurrency max_gpu_hours",
    "lease": "id owner budget envelope gpus start end expected_end borrowed",
    "request": "owner flavor gpus min_gpus step_gpus location duration_hours allow_borrow"
    " max_borrow_gpus sponsors",
}


def at(path, key):
    return f"{path}.{key}" if path else key


def fields(value, sort, path, optional=()):
    names = FIELDS[sort].split()
    if not isinstance(value, dict):
        raise Bad(path or "$")
    for key in value:
        if key not in names and key not in optional:
            raise Bad(at(path, key))
    for name in names:
        if name not in value:
            raise Bad(at(path, name))


def need(good, path):
    if not good:
        raise Bad(path)


def text(value, path):
    need(isinstance(value, str) and value != "", path)


def whole(value, path, least, *, null=False):
    if not (null and value is None):
        good = isinstance(value, int) and not isinstance(value, bool) and value >= least
        need(good, path)


def hours(value, path):
    if value is not None:
        good = isinstance(value, (int, float)) and not isinstance(value, bool)
        need(good and math.isfinite(value) and value >= 0, path)


def stamp(value, path, *, null=False):
    if null and value is None:
        return None
    need(isinstance(value, str) and STAMP.fullmatch(value) is not None, path)
    try:
        return parse(value)
    except (ValueError, OverflowError):
        raise Bad(path) from None


def one_of(value, choices, path):
    need(isinstance(value, str) and value in choices, path)


def flag(value, path):
    need(isinstance(value, bool), path)


def listed(value, path):
    need(isinstance(value, list), path)
    return [(f"{path}[{i}]", item) for i, item in enumerate(value)]


def names(value, path):
    for where, item in listed(value, path):
        text(item, where)


def unique(items, key, path):
    seen = set()
    for i, item in enumerate(items):
        need(item[key] not in seen, f"{path}[{i}].{key}")
        seen.add(item[key])


def location(value, path):
    need(isinstance(value, dict), path)
    for key, item in value.items():
        need(isinstance(item, str), at(path, key))


def check_envelope(envelope, path):
    fields(envelope, "envelope", path, optional=("recurrence",))
    text(envelope["name"], f"{path}.name")
    text(envelope["flavor"], f"{path}.flavor")
    location(envelope["location"], f"{path}.location")
    whole(envelope["concurrency"], f"{path}.concurrency", 1)
    hours(envelope["max_gpu_hours"], f"{path}.max_gpu_hours")
    if envelope["window"] is not None:
        fields(envelope["window"], "window", f"{path}.window")
        start = stamp(envelope["window"]["start"], f"{path}.window.start")
        end = stamp(envelope["window"]["end"], f"{path}.window.end")
        need(start < end, f"{path}.window.end")
    one_of(envelope["sharing"], ("family", "none"), f"{path}.sharing")
    if envelope.get("recurrence") is not None:
        every = ("daily", "weekly", "monthly", "quarterly")
        one_of(envelope["recurrence"], every, f"{path}.recurrence")
    lending, inner = envelope["lending"], f"{path}.lending"
    fields(lending, "lending", inner)
    flag(lending["allow"], f"{inner}.allow")
    names(lending["to"], f"{inner}.to")
    whole(lending["max_concurrency"], f"{inner}.max_concurrency", 0, null=True)
    hours(lending["max_gpu_hours"], f"{inner}.max_gpu_hours")


def check_budget(budget, path):
    fields(budget, "budget", path)
    text(budget["name"], f"{path}.name")
    text(budget["owner"], f"{path}.owner")
    names(budget["parents"], f"{path}.parents")
    for where, envelope in listed(budget["envelopes"], f"{path}.envelopes"):
        check_envelope(envelope, where)
    unique(budget["envelopes"], "name", f"{path}.envelopes")
    known = {envelope["name"]: envelope["flavor"] for envelope in budget["envelopes"]}
    for where, cap in listed(budget["aggregate_caps"], f"{path}.aggregate_caps"):
        fields(cap, "cap", where)
        text(cap["name"], f"{where}.name")
        text(cap["flavor"], f"{where}.flavor")
        names(cap["envelopes"], f"{where}.envelopes")
        for i, member in enumerate(cap["envelopes"]):
            need(known.get(member) == cap["flavor"], f"{where}.envelopes[{i}]")
        whole(cap["max_concurrency"], f"{where}.max_concurrency", 0, null=True)
        hours(cap["max_gpu_hours"], f"{where}.max_gpu_hours")
    unique(budget["aggregate_caps"], "name", f"{path}.aggregate_caps")


def check_cycles(doc):
    """The first parents, in document order, that lead back to their own budget's owner."""

    def leads(owner, target, seen):
        if owner == target:
            return True
        return any(
            leads(up, target, seen | {owner}) for up in parents_of(doc, owner) if up not in seen
        )

    for i, budget in enumerate(doc["budgets"]):
        for parent in budget["parents"]:
            need(not leads(parent, budget["owner"], set()), f"budgets[{i}].parents")


def check_lease(lease, path, doc, now):
    fields(lease, "lease", path)
    for key in ("id", "owner", "budget", "envelope"):
        text(lease[key], f"{path}.{key}")
    budget = next((b for b in doc["budgets"] if b["name"] == lease["budget"]), None)
    need(budget is not None, f"{path}.budget")
    need(lease["envelope"] in {e["name"] for e in budget["envelopes"]}, f"{path}.envelope")
    whole(lease["gpus"], f"{path}.gpus", 1)
    start = stamp(lease["start"], f"{path}.start")
    need(start <= now, f"{path}.start")
    end = stamp(lease["end"], f"{path}.end", null=True)
    need(end is None or start <= end <= now, f"{path}.end")
    stamp(lease["expected_end"], f"{path}.expected_end", null=True)
    flag(lease["borrowed"], f"{path}.borrowed")


def check_request(request):
    path = "request"
    fields(request, "request", path)
    text(request["owner"], f"{path}.owner")
    text(request["flavor"], f"{path}.flavor")
    whole(request["gpus"], f"{path}.gpus", 1)
    whole(request["min_gpus"], f"{path}.min_gpus", 1, null=True)
    whole(request["step_gpus"], f"{path}.step_gpus", 1, null=True)
    least, step = request["min_gpus"], request["step_gpus"]
    if least is None or step is None:
        need(least is None or step is not None, f"{path}.step_gpus")
        need(step is None or least is not None, f"{path}.min_gpus")
    else:
        need(least <= request["gpus"], f"{path}.min_gpus")
        need((request["gpus"] - least) % step == 0, f"{path}.gpus")
    location(request["location"], f"{path}.location")
    hours(request["duration_hours"], f"{path}.duration_hours")
    flag(request["allow_borrow"], f"{path}.allow_borrow")
    whole(request["max_borrow_gpus"], f"{path}.max_borrow_gpus", 0, null=True)
    names(request["sponsors"], f"{path}.sponsors")


def refuse(doc):
    """The path of the first bad field, or None where the document is good."""
    try:
        fields(doc, "document", "")
        now = stamp(doc["now"], "now")
        for where, budget in listed(doc["budgets"], "budgets"):
            check_budget(budget, where)
        unique(doc["budgets"], "name", "budgets")
        check_cycles(doc)
        for where, lease in listed(doc["leases"], "leases"):
            check_lease(lease, where, doc, now)
        unique(doc["leases"], "id", "leases")
        check_request(doc["request"])
    except Bad as bad:
        return str(bad)
    return None
