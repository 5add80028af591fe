"""A second, independent implementation of `gpu.resolve`, from the specification alone.

Dictionaries and sets, everything recomputed from the list of cut leases before each action, nothing
imported from Fairlead: what the core is compared with. Slow on purpose; documents are kept small.
"""
# mypy: ignore-errors

import hashlib
import hmac
import json
import re

TIERS = ("unfunded", "nominated", "funded")


class Bad(Exception):
    """The path of the first bad field."""


# --- the lottery ------------------------------------------------------------------------------


def below(n, seed, stage, k):
    """A uniform integer below n: draw k of a stage."""
    counter = 0
    while True:
        message = b"fairlead/lottery/v1\0" + stage.encode() + b"\0"
        message += k.to_bytes(8, "big") + counter.to_bytes(8, "big")
        x = int.from_bytes(hmac.new(seed, message, hashlib.sha256).digest()[:8], "big")
        if x < 2**64 - (2**64 % n):
            return x % n
        counter += 1


# --- scope and tiers --------------------------------------------------------------------------


def in_scope(lease, scope):
    """A candidate: the flavor, every key of the location and, under a cap, the payer are equal."""
    if lease["flavor"] != scope["flavor"]:
        return False
    for key, value in scope["location"].items():
        if key not in lease["location"] or lease["location"][key] != value:
            return False
    cap = scope.get("cap")
    if cap is not None:
        return lease["budget"] == cap["budget"] and lease["envelope"] in cap["envelopes"]
    return True


class World:
    """A document and the cuts made so far; every question is answered from these two."""

    def __init__(self, doc, weighting="owners"):
        self.weighting = weighting
        self.deficit = doc["deficit_gpus"]
        self.seed = bytes.fromhex(doc["seed"])
        self.runs = {run["id"]: run for run in doc["runs"]}
        self.leases = {lease["id"]: lease for lease in doc["leases"]}
        self.scope = doc["scope"]
        self.cuts = []  # one per spare, step or draw: {"run", "kind", "draw", "leases"}
        self.draws = []

    def inside(self, lease):
        return in_scope(lease, self.scope)

    def candidates(self, run=None):
        return [
            lease
            for lease in self.leases.values()
            if self.inside(lease) and run in (None, lease["run"])
        ]

    def tier(self, run):
        """Fixed from the input; None for a run without candidates."""
        candidates = self.candidates(run)
        if not candidates:
            return None
        if any(not lease["funded"] for lease in candidates):
            return "unfunded"
        return "nominated" if self.runs[run].get("nominated", False) else "funded"

    def open_leases(self, run):
        gone = {lease["id"] for cut in self.cuts for lease in cut["leases"]}
        return [
            lease
            for lease in self.leases.values()
            if lease["run"] == run and lease["id"] not in gone
        ]

    def freed(self, without=()):
        return sum(
            lease["gpus"]
            for cut in self.cuts
            if not any(cut is other for other in without)
            for lease in cut["leases"]
            if self.inside(lease)
        )

    def met(self):
        return self.freed() >= self.deficit

    def cut(self, run, kind, leases, draw=None):
        ordered = sorted(leases, key=lambda lease: (-lease["group"], lease["id"]))
        self.cuts.append({"run": run, "kind": kind, "draw": draw, "leases": ordered})

    def as_lines(self, cuts):
        return [
            {
                "lease": lease["id"],
                "run": cut["run"],
                "kind": cut["kind"],
                "gpus": lease["gpus"],
                "in_scope": self.inside(lease),
                "tier": self.tier(cut["run"]),
                "draw": cut["draw"],
            }
            for cut in cuts
            for lease in cut["leases"]
        ]


# --- the three ways to cut --------------------------------------------------------------------


def drop_spares(world, runs):
    spares = [
        lease
        for run in runs
        for lease in world.open_leases(run)
        if lease["role"] == "spare" and world.inside(lease)
    ]
    spares.sort(key=lambda lease: (lease["run"], -lease["group"], lease["id"]))
    for lease in spares:
        if world.met():
            return
        world.cut(lease["run"], "DropSpare", [lease])


def width(world, run):
    return sum(lease["gpus"] for lease in world.open_leases(run) if lease["role"] == "active")


def step(world, run):
    """The groups that the next shrink of a run takes; None where it cannot shrink."""
    malleable = world.runs[run].get("malleable")
    if malleable is None:
        return None
    active = [lease for lease in world.open_leases(run) if lease["role"] == "active"]
    taken, total = [], 0
    for group in sorted({lease["group"] for lease in active}, reverse=True):
        members = [lease for lease in active if lease["group"] == group]
        if not all(world.inside(lease) for lease in members):
            continue
        taken.append(group)
        total += sum(lease["gpus"] for lease in members)
        fits = width(world, run) - total >= malleable["min_gpus"]
        if total > 0 and total % malleable["step_gpus"] == 0 and fits:
            return taken
    return None


def shrink(world, runs):
    while not world.met():
        able = [run for run in runs if step(world, run) is not None]
        if not able:
            return
        above = {run: width(world, run) - world.runs[run]["malleable"]["min_gpus"] for run in able}
        run = min(able, key=lambda each: (-above[each], each))
        groups = step(world, run)
        world.cut(
            run, "Shrink", [each for each in world.open_leases(run) if each["group"] in groups]
        )


def stake(world, tokens, missing):
    """(needed, heaps, whether the drawn heap stays): every run but the needed is in one heap."""
    size = {
        run: sum(each["gpus"] for each in world.open_leases(run) if world.inside(each))
        for run in tokens
    }
    spare = sum(size.values()) - missing
    needed = sorted(run for run in size if size[run] > spare)
    rest = sorted((run for run in size if size[run] <= spare), key=lambda run: (-size[run], run))
    missing -= sum(size[run] for run in needed)
    if missing <= 0:
        return needed, [], False
    left, heaps = list(rest), []
    while sum(size[run] for run in left) >= missing:
        heap, left = left[:1], left[1:]
        while sum(size[run] for run in heap) < missing:
            heap, left = [*heap, left[-1]], left[:-1]
        heaps.append(heap)
    if len(heaps) >= 2:
        return needed, [*heaps[:-1], heaps[-1] + left], False
    heaps = []
    for run in rest:
        if heaps and sum(size[each] for each in heaps[-1]) + size[run] <= spare:
            heaps[-1].append(run)
        else:
            heaps.append([run])
    return needed, heaps, True


def in_play(world, runs):
    return {run for run in runs if any(world.inside(lease) for lease in world.open_leases(run))}


def stake_tokens(doc):
    """The tokens of the first lottery of a document with their odds, as a notice has them."""
    world = World(doc, "stake")
    if sum(lease["gpus"] for lease in world.candidates()) < world.deficit:
        return []
    for tier in TIERS:
        runs = [run for run in world.runs if world.tier(run) == tier]
        drop_spares(world, runs)
        shrink(world, runs)
        tokens = in_play(world, runs)
        if world.met():
            return []
        if tokens:
            needed, heaps, stays = stake(world, tokens, _missing(world, tokens))
            times, one_in = (len(heaps) - 1 if stays else 1), len(heaps)
            if not heaps:
                times, one_in = 0, 1
            return [
                {
                    "token": run,
                    "owner": world.runs[run]["owner"],
                    "one_in": 1 if run in needed else one_in,
                    "times": 1 if run in needed else times,
                }
                for run in sorted(tokens)
            ]
    return []


def _missing(world, tokens):
    held = sum(
        each["gpus"] for run in tokens for each in world.open_leases(run) if world.inside(each)
    )
    return min(world.deficit - world.freed(), held)


def preempt_stake(world, runs, tier):
    tokens = in_play(world, runs)
    if world.met() or not tokens:
        return
    needed, heaps, stays = stake(world, tokens, _missing(world, tokens))
    drawn = below(len(heaps), world.seed, "heap", len(world.draws)) if heaps else None
    lost = list(needed)
    for place, heap in enumerate(heaps):
        lost += heap if (place == drawn) != stays else []
    for token in sorted(lost):
        left = in_play(world, runs)
        owner = world.runs[token]["owner"]
        world.draws.append(
            {
                "index": len(world.draws),
                "tier": tier,
                "owners": sorted({world.runs[run]["owner"] for run in left}),
                "owner": owner,
                "tokens": sorted(run for run in left if world.runs[run]["owner"] == owner),
                "token": token,
            }
        )
        world.cut(token, "RandomPreempt", world.open_leases(token), draw=len(world.draws) - 1)


def preempt(world, runs, tier):
    if world.weighting == "stake":
        preempt_stake(world, runs, tier)
        return
    while not world.met():
        tokens = {
            run for run in runs if any(world.inside(lease) for lease in world.open_leases(run))
        }
        if not tokens:
            return
        index = len(world.draws)
        owners = sorted({world.runs[run]["owner"] for run in tokens})
        # Where tokens are equal, an owner is in the urn as often as it has tokens.
        urn = owners
        if world.weighting == "tokens":
            urn = sorted(world.runs[run]["owner"] for run in tokens)
        owner = urn[below(len(urn), world.seed, "owner", index)]
        mine = sorted(run for run in tokens if world.runs[run]["owner"] == owner)
        token = mine[below(len(mine), world.seed, "token", index)]
        world.draws.append(
            {
                "index": index,
                "tier": tier,
                "owners": owners,
                "owner": owner,
                "tokens": mine,
                "token": token,
            }
        )
        world.cut(token, "RandomPreempt", world.open_leases(token), draw=index)


# --- give-back --------------------------------------------------------------------------------


def give_back(world):
    """The structural cuts that are no longer needed, found from the last one back."""
    drawn = {cut["run"] for cut in world.cuts if cut["kind"] == "RandomPreempt"}
    withdrawn = []

    def stays(cut):
        return not any(cut is other for other in withdrawn)

    for place in reversed(range(len(world.cuts))):
        cut = world.cuts[place]
        steps = [
            other
            for other in world.cuts
            if other["run"] == cut["run"] and other["kind"] == "Shrink" and stays(other)
        ]
        later = [other for other in world.cuts[place + 1 :] if any(other is each for each in steps)]
        if cut["run"] in drawn:
            continue
        if cut["kind"] == "Shrink" and later:
            continue
        if cut["kind"] == "DropSpare":
            group = cut["leases"][0]["group"]
            if any(lease["group"] == group for other in steps for lease in other["leases"]):
                continue
        if world.freed(without=[*withdrawn, cut]) >= world.deficit:
            withdrawn.append(cut)
    return [cut for cut in world.cuts if stays(cut)], [cut for cut in world.cuts if not stays(cut)]


# --- decide -----------------------------------------------------------------------------------


def decide(doc, weighting="owners"):
    """The output of `gpu.resolve`; raises `Bad` with the path of a bad field.

    Weighting by `tokens` is a setting of the control plane, and no part of the contract.
    """
    check(doc)
    world = World(doc, weighting)
    everything = sum(lease["gpus"] for lease in world.candidates())
    result = {
        "resolved": everything >= world.deficit,
        "deficit_gpus": world.deficit,
        "freed_gpus": 0,
        "actions": [],
        "withdrawn": [],
        "draws": [],
        "conflict_digest": conflict_digest(doc),
        "shortfall_gpus": max(0, world.deficit - everything),
    }
    if not result["resolved"]:
        return result
    for tier in TIERS:
        runs = [run for run in world.runs if world.tier(run) == tier]
        drop_spares(world, runs)
        shrink(world, runs)
        preempt(world, runs, tier)
    kept, withdrawn = give_back(world)
    result["freed_gpus"] = world.freed(without=withdrawn)
    result["actions"] = world.as_lines(kept)
    result["withdrawn"] = world.as_lines(withdrawn)
    result["draws"] = world.draws
    return result


def conflict_digest(doc):
    """Of the canonical JSON without the seed, defaults filled in, runs and leases by id."""
    frozen = {
        "scope": {"cap": None, **doc["scope"]},
        "deficit_gpus": doc["deficit_gpus"],
        "runs": sorted(
            ({"malleable": None, "nominated": False, **run} for run in doc["runs"]),
            key=lambda run: run["id"],
        ),
        "leases": sorted(doc["leases"], key=lambda lease: lease["id"]),
    }
    return hashlib.sha256(canonical(frozen).encode()).hexdigest()


def canonical(value):
    """RFC 8785 for what occurs here: text, integers, booleans, null, lists, objects."""
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: key.encode("utf-16-be"))
        return "{" + ",".join(f"{canonical(key)}:{canonical(value[key])}" for key in keys) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


# --- bad input --------------------------------------------------------------------------------


def refuse(doc):
    """The path of the first bad field; None where there is none."""
    try:
        check(doc)
    except Bad as bad:
        return str(bad)
    return None


def need(good, path):
    if not good:
        raise Bad(path)


def at(path, key):
    return f"{path}.{key}" if path else key


def fields(value, path, required, optional=""):
    need(isinstance(value, dict), path or "$")
    for key in value:
        need(key in required.split() or key in optional.split(), at(path, key))
    for key in required.split():
        need(key in value, at(path, key))


def text(value, path):
    need(isinstance(value, str), path)


def name(value, path):
    """An owner or an id: of these the contract says that they are not empty."""
    text(value, path)
    need(value != "", path)


def whole(value, path, least):
    need(type(value) is int and least <= value < 2**53, path)


def location(value, path):
    need(isinstance(value, dict), path)
    for key, item in value.items():
        need(isinstance(item, str), at(path, key))


def listed(value, path):
    need(isinstance(value, list), path)
    return [(f"{path}[{i}]", item) for i, item in enumerate(value)]


def check(doc):
    fields(doc, "", "scope deficit_gpus seed runs leases")
    check_scope(doc["scope"])
    whole(doc["deficit_gpus"], "deficit_gpus", 0)
    seed = doc["seed"]
    need(isinstance(seed, str) and re.fullmatch("[0-9a-fA-F]{64}", seed) is not None, "seed")
    for path, run in listed(doc["runs"], "runs"):
        check_run(run, path)
    for path, lease in listed(doc["leases"], "leases"):
        check_lease(lease, path)
    for which in ("runs", "leases"):
        seen = set()
        for path, item in listed(doc[which], which):
            need(item["id"] not in seen, f"{path}.id")
            seen.add(item["id"])
    known = {run["id"] for run in doc["runs"]}
    for path, lease in listed(doc["leases"], "leases"):
        need(lease["run"] in known, f"{path}.run")


def check_scope(scope):
    fields(scope, "scope", "flavor location", "cap")
    text(scope["flavor"], "scope.flavor")
    location(scope["location"], "scope.location")
    cap = scope.get("cap")
    if cap is not None:
        fields(cap, "scope.cap", "budget name envelopes")
        text(cap["budget"], "scope.cap.budget")
        text(cap["name"], "scope.cap.name")
        for path, envelope in listed(cap["envelopes"], "scope.cap.envelopes"):
            text(envelope, path)


def check_run(run, path):
    fields(run, path, "id owner", "malleable nominated")
    name(run["id"], f"{path}.id")
    name(run["owner"], f"{path}.owner")
    malleable = run.get("malleable")
    if malleable is not None:
        fields(malleable, f"{path}.malleable", "min_gpus step_gpus")
        whole(malleable["min_gpus"], f"{path}.malleable.min_gpus", 1)
        whole(malleable["step_gpus"], f"{path}.malleable.step_gpus", 1)
    need(isinstance(run.get("nominated", False), bool), f"{path}.nominated")


def check_lease(lease, path):
    fields(lease, path, "id run role group gpus flavor location funded budget envelope")
    for key in ("id", "run"):
        name(lease[key], f"{path}.{key}")
    for key in ("flavor", "budget", "envelope"):
        text(lease[key], f"{path}.{key}")
    need(isinstance(lease["role"], str) and lease["role"] in ("active", "spare"), f"{path}.role")
    whole(lease["group"], f"{path}.group", 0)
    whole(lease["gpus"], f"{path}.gpus", 1)
    location(lease["location"], f"{path}.location")
    need(isinstance(lease["funded"], bool), f"{path}.funded")
