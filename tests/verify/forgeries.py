"""Forgeries of genuine outcomes by who holds the signing key: every hash and signature holds.

`python -m tests.verify.forgeries` writes verify/forgeries.json: a few genuine exports, and each
forgery as a JSON patch (RFC 6902) of one of them. Both verifiers accept the genuine ones and refuse
every forgery, with the same check.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairlead.core.canonical import canonical
from tests.verify import stories
from tests.verify.build import (
    Case,
    Document,
    Lies,
    bytes_of,
    lp,
    operator_key,
    owner_key,
    sha,
    tell,
)
from tests.verify.stories import BEACON, BEFORE, VALUE, lease, put, run, without

FILE = Path(__file__).resolve().parents[2] / "verify" / "forgeries.json"
Edit = Callable[[Any], Any]

WORLD = {
    "scope": stories.SCOPE,
    "deficit_gpus": 5,
    "runs": [run("v", "vision"), run("s", "speech")],
    "leases": [
        lease("v0", "v", location={"cluster": "a"}),
        lease("v1", "v", group=1, location={"cluster": "b"}),
        lease("s0", "s", location={"cluster": "a"}),
    ],
}
DRAW = Case(WORLD, stories.PAYERS, tenants=("speech", "vision"), filler=0)
BASES: dict[str, Case] = {
    "draw": DRAW,
    "spared": replace(DRAW, left_out={"w": ("winner", "beneficiary")}),
    "nonce": replace(DRAW, nonces={"vision": "00ff"}),
    "beacon": replace(DRAW, beacon=BEACON, beacon_value=VALUE, start_ms=BEFORE),
    "void": replace(DRAW, ending="void"),
    "void of a beacon": replace(
        DRAW, ending="void", beacon=BEACON, beacon_value=VALUE, start_ms=BEFORE
    ),
    "continued": replace(DRAW, k=2, voids=1, carry={"beacon": None, "nonces": []}),
    "next": replace(DRAW, k=1),
    "rotated": replace(DRAW, rotate=True),
    "restored": replace(DRAW, epochs=1),
    "stake": replace(DRAW, weighting="stake"),
    "open": replace(DRAW, ending="open"),
}


@dataclass(frozen=True)
class Forgery:
    """A lie about a base, and the check that finds it."""

    base: str
    check: str
    lies: tuple[tuple[str, Edit], ...] = ()
    entries: tuple[tuple[str, Edit], ...] = ()
    """About entries of a kind, besides their body."""
    more: tuple[tuple[str, Any], ...] = ()
    """Other fields of the case."""
    file: Edit | None = None
    """An edit of the file: what is left out of it, which no signature covers."""

    def export(self) -> Document:
        case = BASES[self.base]
        lies: Lies = {**case.lies, **dict(self.lies)}
        made = tell(replace(case, lies=lies, entries=dict(self.entries), **dict(self.more)))
        if self.file is not None:
            self.file(made)
        return made


def resigned(key: int = 0, **changes: Any) -> Edit:
    """A head with other fields, signed with one of the operator's keys."""

    def edit(head: Document) -> Document:
        unsigned = {**head, **changes, "key_id": operator_key(key).key_id}
        del unsigned["signature"]
        data = b"fairlead/head/v1\n" + canonical(unsigned)
        return {**unsigned, "signature": operator_key(key).sign(data).hex()}

    return edit


def commit_head(key: int = 0, **changes: Any) -> Edit:
    return put("commit_head", value=resigned(key, **changes))


def lied(base: str, check: str, about: str, edit: Edit, **more: Any) -> Forgery:
    return Forgery(base, check, lies=((about, edit),), more=tuple(more.items()))


def entry(base: str, check: str, kind: str, edit: Edit) -> Forgery:
    return Forgery(base, check, entries=((kind, edit),))


def field(name: str, value: Any) -> Edit:
    return put(name, value=value)


def later(ms: int) -> Edit:
    return put("time_ms", value=lambda time_ms: time_ms + ms)


HASH = "ab" * 32
FOREIGN = {**BEACON, "public_key": "8" + BEACON["public_key"][1:-1] + "b"}


def _times() -> dict[str, Forgery]:
    day = 86_400_000
    return {
        "the scope is later than the commitment": entry(
            "draw", "entries", "gpu.resolve.scope", later(day)
        ),
        "the commitment is earlier than the scope": entry(
            "draw", "entries", "gpu.resolve.commit", later(-day)
        ),
        "the draw is earlier than the commitment": entry(
            "draw", "entries", "gpu.resolve.draw", later(-day)
        ),
        "a closure is earlier than the draw": entry("draw", "entries", "lease.close", later(-day)),
        "a lease ends after its closure": lied("draw", "closures", "close", field("end_ms", 2**50)),
        "a lease ends at no time": lied("draw", "form", "close", field("end_ms", None)),
        "a secret is later than the commitment": entry(
            "draw", "entries", "owner.pseudonym", later(day)
        ),
        "a nonce is later than the commitment": entry(
            "nonce", "entries", "gpu.resolve.nonce", later(day)
        ),
        "a void is earlier than the commitment": entry(
            "void", "entries", "gpu.resolve.void", later(-day)
        ),
        "the commitment's head is earlier than it": lied(
            "draw", "entries", "draw", commit_head(time_ms=1)
        ),
        "the commitment's head is later than the draw": lied(
            "draw", "entries", "draw", commit_head(time_ms=2**50)
        ),
        "the head is earlier than its entries": lied(
            "draw", "entries", "head", resigned(time_ms=1)
        ),
        **{
            f"the {what} is {how} than {other}": Forgery(
                base, "entries", more=(("change_ms", change_ms),)
            )
            for what, base in (("rotation", "rotated"), ("restore", "restored"))
            for how, other, change_ms in (
                ("earlier", "the commitment", -day),
                ("later", "the draw", day),
            )
        },
    }


def _keys_and_epochs() -> dict[str, Forgery]:
    return {
        "the commitment's head is of a later epoch": lied(
            "draw", "signatures", "draw", commit_head(epoch=1)
        ),
        "the head is of a later epoch": lied("draw", "signatures", "head", resigned(epoch=1)),
        "the head is of an earlier epoch": lied(
            "restored", "signatures", "head", resigned(epoch=0)
        ),
        "two epochs later, and one shown": lied(
            "restored", "signatures", "head", resigned(epoch=2)
        ),
        "the restore is not shown": Forgery(
            "restored", "signatures", file=put("changes", value=[])
        ),
        "the head is signed with an unrelated key": lied("draw", "signatures", "head", resigned(5)),
        "the commitment's head is signed with an unrelated key": lied(
            "draw", "signatures", "draw", commit_head(5)
        ),
        "both heads are signed with unrelated keys": Forgery(
            "draw", "signatures", (("draw", commit_head(5)), ("head", resigned(6)))
        ),
        "the head is signed with the key before": lied(
            "rotated", "signatures", "head", resigned(0)
        ),
        "the commitment's head is signed with the key after": lied(
            "rotated", "signatures", "draw", commit_head(1)
        ),
        "the rotation is not shown": Forgery(
            "rotated", "signatures", file=put("changes", value=[])
        ),
        "a head of another ledger": lied(
            "draw", "consistency", "draw", commit_head(ledger="another")
        ),
        "the head is of another ledger": lied(
            "draw", "consistency", "head", resigned(ledger="another")
        ),
        "the commitment's head is of another size": lied(
            "draw", "entries", "draw", commit_head(size=1)
        ),
        "the commitment's head has another root": lied(
            "draw", "consistency", "draw", commit_head(root=HASH)
        ),
    }


def _entries() -> dict[str, Forgery]:
    kinds = {
        "scope": "gpu.resolve.scope",
        "commitment": "gpu.resolve.commit",
        "draw": "gpu.resolve.draw",
        "secret": "owner.pseudonym",
    }
    made = {
        f"another author of the {what}": entry("draw", "entries", kind, field("author", "mallory"))
        for what, kind in kinds.items()
    }
    made |= {
        f"reasons of the {what}": entry("draw", "entries", kind, field("reasons", ("Salt",)))
        for what, kind in kinds.items()
    }
    for what in ("scope", "commitment", "draw"):
        for name in ("plan_id", "effect"):
            forged = entry("draw", "order", kinds[what], field(name, "mine"))
            made[f"another {name} of the {what}"] = forged
    made |= {
        "another plan of a secret": entry(
            "draw", "openings", "owner.pseudonym", put("plan_id", value=lambda plan: plan + "x")
        ),
        "another effect of a secret": entry(
            "draw", "openings", "owner.pseudonym", field("effect", "again")
        ),
        "another plan of a closure": entry(
            "draw", "closures", "lease.close", put("plan_id", value=lambda plan: plan + "x")
        ),
        "a closure without an effect": entry(
            "draw", "closures", "lease.close", field("effect", None)
        ),
        "another author of the draw before": entry(
            "next", "entries", "gpu.resolve.draw", field("author", "mallory")
        ),
        "an input of the draw": entry(
            "draw", "entries", "gpu.resolve.draw", field("input_digest", HASH)
        ),
        "no input of the commitment": entry(
            "draw", "entries", "gpu.resolve.commit", field("input_digest", None)
        ),
        "another input of the commitment": entry(
            "draw", "digests", "gpu.resolve.commit", field("input_digest", HASH)
        ),
        "another version of the scope": entry(
            "draw", "entries", "gpu.resolve.scope", field("version", 9)
        ),
        "another version of the commitment": entry(
            "draw", "order", "gpu.resolve.commit", field("version", 2)
        ),
        "another version of the draw": entry(
            "draw", "order", "gpu.resolve.draw", field("version", 3)
        ),
        "another version of a secret": entry(
            "draw", "entries", "owner.pseudonym", field("version", 2)
        ),
        "a lease is closed twice": Forgery("draw", "closures", more=(("twice", ((None, "x"),)),)),
        "two entries of one plan and effect": Forgery(
            "draw", "entries", more=(("twice", ((None, None), (None, None))),)
        ),
        "an entry is shown twice": Forgery("draw", "entries", file=_shown_twice),
    }
    return made


def _shown_twice(export: Document) -> None:
    export["openings"][0]["entry"] = export["openings"][1]["entry"]


def _spared() -> dict[str, Forgery]:
    def rows(edit: Callable[[list[Document]], list[Document]]) -> Edit:
        return put("exclusions", value=edit)

    def reason(text: str) -> Edit:
        return rows(
            lambda all_: [
                {**row, "reason": text if row["reason"] == "beneficiary" else row["reason"]}
                for row in all_
            ]
        )

    def no_candidate(notice: Document) -> Document:
        spared = notice["candidates"].pop()
        notice["exclusions"].append({"lease": spared, "reason": "ending"})
        notice["exclusions"].sort(key=lambda row: row["lease"])
        return notice

    def both(notice: Document) -> Document:
        spared = notice["candidates"][0]
        notice["exclusions"].append({"lease": spared, "reason": "ending"})
        notice["exclusions"].sort(key=lambda row: row["lease"])
        return notice

    return {
        "spared for a made-up reason": lied("spared", "decision", "notice", reason("a friend")),
        "spared for no reason": lied("spared", "decision", "notice", reason("")),
        "spared as out of scope, and not shown": lied(
            "spared", "decision", "notice", reason("location")
        ),
        "spared twice": lied(
            "spared", "form", "notice", rows(lambda all_: [each for each in all_ for _ in (0, 1)])
        ),
        "spared twice, for two reasons": lied(
            "spared",
            "form",
            "notice",
            rows(
                lambda all_: [
                    {**each, "reason": why} for each in all_ for why in (each["reason"], "ending")
                ]
            ),
        ),
        "a candidate is spared after all": lied("draw", "decision", "notice", no_candidate),
        "a candidate is spared as well": lied("draw", "decision", "notice", both),
        "out of scope for another reason": lied(
            "draw", "decision", "notice", put("exclusions", 0, "reason", value="payer")
        ),
        "a spared lease is not announced": lied("draw", "decision", "notice", rows(lambda _: [])),
    }


def _salts() -> dict[str, Forgery]:
    def label(name: str) -> Edit:
        def edit(conflict: Document) -> Document:
            for each in conflict["leases"]:
                each["location"][name] = "7"
            return conflict

        return edit

    return {
        "a label of a lease": lied(
            "draw", "decision", "conflict", put("leases", 0, "location", "rack", value="7")
        ),
        "a label of every lease": lied("draw", "decision", "conflict", label("salt")),
        "a label without a name": lied("draw", "decision", "conflict", label("")),
        "a field of a lease": lied("draw", "form", "conflict", put("leases", 0, "salt", value="7")),
        "a field of a run": lied("draw", "form", "conflict", put("runs", 0, "salt", value="7")),
        "a field of the conflict": lied("draw", "form", "conflict", put("salt", value="7")),
        "a field of the commitment": lied("draw", "form", "commit", put("salt", value="7")),
        "a field of the draw": lied("draw", "form", "draw", put("salt", value="7")),
        "a field of the notice": lied("draw", "form", "notice", put("salt", value="7")),
        "a field of a token": lied(
            "draw", "decision", "notice", put("tokens", 0, "salt", value="7")
        ),
        "another notice": lied("draw", "digests", "commit", put("notice_digest", value=HASH)),
    }


def _bodies() -> dict[str, Forgery]:
    return {
        "a second sequence of the flavor": Forgery("draw", "scope", more=(("sequence", "mine"),)),
        "the scope is of another flavor": lied("draw", "order", "scope", field("flavor", "A100")),
        "the scope is of a place": lied("draw", "order", "scope", field("location", {"a": "b"})),
        "the scope is of a cap": lied("draw", "order", "scope", field("capped", True)),
        "another chain of the scope": lied("draw", "order", "scope", field("chain", HASH)),
        "another entropy fixed": lied(
            "draw", "commitment", "scope", field("next_commitment", HASH)
        ),
        "another chain of the commitment": lied("draw", "order", "commit", field("chain", HASH)),
        "another number of the commitment": lied("draw", "order", "commit", field("k", 7)),
        "another entry before": lied("draw", "order", "commit", field("previous_seq", 1)),
        "another deficit": lied("draw", "digests", "commit", field("deficit_gpus", 1)),
        "another conflict": lied("draw", "digests", "commit", field("conflict_digest", HASH)),
        "another weighting": lied("draw", "order", "commit", field("owner_weighting", "stake")),
        "a weighting of its own": lied("draw", "form", "commit", field("owner_weighting", "mine")),
        "another turn": lied("draw", "order", "commit", field("turn", 1)),
        "no turn": lied("draw", "form", "commit", without("turn")),
        "continued without a void": lied("draw", "order", "commit", field("continued", True)),
        "another chain of the draw": lied("draw", "order", "draw", field("chain", HASH)),
        "another number of the draw": lied("draw", "order", "draw", field("k", 7)),
        "another turn of the draw": lied("draw", "order", "draw", field("turn", 7)),
        "another commitment answered": lied("draw", "order", "draw", field("commit_seq", 1)),
        "another entropy revealed": lied("draw", "commitment", "draw", field("entropy", HASH)),
        "another seed": lied("draw", "seed", "draw", field("seed", HASH)),
        "no seed": lied("draw", "seed", "draw", field("seed", None)),
        "another result": lied("draw", "digests", "draw", field("result_digest", HASH)),
        "the same entropy once more": lied(
            "draw", "commitment", "draw", field("next_commitment", sha(bytes_of("entropy 0")).hex())
        ),
        "the draw before is of another turn": lied("next", "order", "previous", field("turn", 7)),
        "the draw before is of another number": lied("next", "order", "previous", field("k", 7)),
        "another victim": lied("draw", "decision", "result", _another_victim),
        "a victim less": lied(
            "draw", "decision", "result", put("actions", value=lambda all_: all_[:-1])
        ),
        "another draw": lied("draw", "decision", "result", put("draws", 0, "index", value=1)),
        "something withdrawn": lied(
            "draw", "decision", "result", lambda x: put("withdrawn", value=x["actions"][:1])(x)
        ),
        "heaps of its own": lied("stake", "decision", "result", _another_victim),
        "better odds under stake": lied(
            "stake", "decision", "notice", put("tokens", 0, "times", value=2)
        ),
        "drawn by owners, said to be by stake": Forgery(
            "stake", "decision", more=(("played", "owners"), ("k", 1))
        ),
        "a lease ended for another reason": lied("draw", "closures", "close", field("reason", "x")),
        "another lease ended": lied("draw", "closures", "close", field("lease", "x")),
        "a lease of another run ended": lied("draw", "closures", "close", field("run", "x")),
        "ended by another outcome": lied("draw", "closures", "close", field("outcome", 1)),
        "secrets fixed too late": Forgery("draw", "openings", more=(("late", ("owner",)),)),
        "no head between commitment and draw": Forgery(
            "draw", "consistency", more=(("late", ("commit",)),)
        ),
    }


def _another_victim(result: Document) -> Document:
    for each in result["actions"]:
        each["run"] = "r-" + "00" * 16
    return result


def _labels() -> dict[str, Forgery]:
    names = ("beacon", "owner-nonced", "verifiable")
    made = {
        f"called {label}": lied("draw", "seed", "draw", field("label", label)) for label in names
    }
    return made | {
        "a nonce called a beacon": lied("nonce", "seed", "draw", field("label", "beacon")),
        "a continued outcome called a beacon": lied(
            "continued", "seed", "draw", field("label", "beacon")
        ),
    }


def _nonces() -> dict[str, Forgery]:
    def signed_by(owner: str) -> Edit:
        def edit(given: Document) -> Document:
            parts = (lp("fairlead/nonce/v1"), lp("ledger-of-vectors"), lp(given["owner"]))
            rest = (lp(bytes.fromhex(given["nonce"])), lp(given["size"].to_bytes(8, "big")))
            return {**given, "signature": owner_key(owner).sign(b"".join((*parts, *rest))).hex()}

        return edit

    free = {"org": "00", "vision": "00ff"}
    return {
        "a nonce that the operator signed": lied(
            "nonce", "openings", "nonce", signed_by("mallory")
        ),
        "a nonce with a signature of another": lied(
            "nonce", "openings", "nonce", field("signature", "ab" * 64)
        ),
        "another nonce than was signed": lied("nonce", "openings", "nonce", field("nonce", "01")),
        "an old nonce as a new one": lied("nonce", "openings", "nonce", field("size", 1)),
        "a nonce from the future": lied("nonce", "openings", "nonce", field("size", 999)),
        "a nonce of another owner": lied("nonce", "openings", "nonce", field("owner", "speech")),
        "a key of another owner": lied("nonce", "openings", "key", field("owner", "speech")),
        "a nonce in the seed that nobody signed": Forgery(
            "nonce", "openings", file=put("openings", 1, "nonce", value=None)
        ),
        "a nonce of somebody without a run": Forgery("nonce", "seed", more=(("nonces", free),)),
        "a nonce left out of the seed": lied("nonce", "seed", "commit", field("nonces", [])),
        "a nonce that is not of its plan": entry(
            "nonce", "openings", "gpu.resolve.nonce", field("plan_id", "mine")
        ),
        "a key that its holder did not register": lied(
            "nonce", "openings", "key", field("signature", "ab" * 64)
        ),
        "a first key that another approved": lied(
            "nonce", "openings", "key", field("approval", "ab" * 64)
        ),
        "a key that is not of its plan": entry(
            "nonce", "openings", "owner.key", field("effect", "mine")
        ),
    }


def _beacons() -> dict[str, Forgery]:
    late = (("start_ms", BEFORE + 10_000_000),)
    other = {**BEACON, "period_ms": 30_000}
    return {
        "a value that the network did not sign": Forgery(
            "beacon", "seed", more=(("beacon_value", "8" + "0" * 95),)
        ),
        "a value of no size": Forgery("beacon", "seed", more=(("beacon_value", "ab"),)),
        "the value of another round": Forgery(
            "beacon", "seed", more=(("beacon", {**BEACON, "round": 1_001}),)
        ),
        "a round that had happened": Forgery("beacon", "seed", more=late),
        "a known network under another name": Forgery(
            "beacon", "seed", more=(("beacon", {**BEACON, "source": "ours"}),)
        ),
        "another network of the name": Forgery("beacon", "seed", more=(("beacon", FOREIGN),)),
        "another period of the network": Forgery("beacon", "seed", more=(("beacon", other),)),
        "a beacon that was not announced": lied(
            "draw", "seed", "draw", field("beacon_value", VALUE)
        ),
        "no value of the beacon": Forgery("beacon", "seed", more=(("beacon_value", None),)),
        "a beacon announced and not used": lied(
            "beacon", "seed", "draw", field("beacon_value", None)
        ),
    }


def _voids() -> dict[str, Forgery]:
    luck = {"beacon": BEACON, "nonces": []}
    return {
        "a void with a new entropy": lied(
            "void", "commitment", "draw", field("next_commitment", HASH)
        ),
        "a void hands on a beacon that it had not": lied(
            "void", "seed", "draw", field("carry", luck)
        ),
        "a void hands on nonces that it had not": lied(
            "void",
            "seed",
            "draw",
            put("carry", "nonces", value=[{"owner": "o-" + "00" * 16, "nonce": "00"}]),
        ),
        "a void drops a beacon whose value is known": lied(
            "void of a beacon", "seed", "draw", put("carry", "beacon", value=None)
        ),
        "a void hands on a later round": lied(
            "void of a beacon", "seed", "draw", put("carry", "beacon", "round", value=1_001)
        ),
        "a void does not disclose its seed": lied("void", "seed", "draw", field("seed", None)),
        "a void does not disclose its beacon": lied(
            "void of a beacon", "seed", "draw", field("beacon_value", None)
        ),
        "a void hands on nothing": lied("void", "form", "draw", without("carry")),
        "another beacon after a void": Forgery(
            "continued",
            "order",
            more=(("beacon", BEACON), ("beacon_value", VALUE), ("start_ms", BEFORE)),
        ),
        "another nonce after a void": Forgery(
            "continued", "order", more=(("nonces", {"vision": "00"}),)
        ),
        "a draw of no turn before it": lied("next", "order", "previous", without("turn")),
        "a void of no turn before it": lied(
            "continued", "order", "previous", lambda body: without("carry")(without("turn")(body))
        ),
        "a new turn after a void": lied("continued", "order", "commit", field("turn", 2)),
        "a void that is not said to be continued": lied(
            "continued", "order", "commit", field("continued", False)
        ),
        "another entropy after a void than it discloses": lied(
            "continued", "commitment", "previous", field("entropy", HASH)
        ),
        "another entropy after a void": lied(
            "continued", "commitment", "previous", field("next_commitment", HASH)
        ),
    }


def forgeries() -> dict[str, Forgery]:
    made: dict[str, Forgery] = {}
    parts = (_times, _keys_and_epochs, _entries, _spared, _salts, _bodies, _labels, _nonces)
    for part in (*parts, _beacons, _voids):
        made |= part()
    return made


# -- patches --------------------------------------------------------------------------------------


def patch(old: Any, new: Any, path: str = "") -> Iterator[Document]:
    """What makes one document the other (RFC 6902)."""
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            at = f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
            if key not in new:
                yield {"op": "remove", "path": at}
            elif key not in old:
                yield {"op": "add", "path": at, "value": new[key]}
            else:
                yield from patch(old[key], new[key], at)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for place, (first, second) in enumerate(zip(old, new, strict=True)):
            yield from patch(first, second, f"{path}/{place}")
    else:
        yield {"op": "replace", "path": path, "value": new}


def patched(document: Document, operations: list[Document]) -> Document:
    """The document after its patch."""
    made = json.loads(json.dumps(document))
    for each in operations:
        *steps, last = each["path"].split("/")[1:]
        inner = made
        for step in steps:
            inner = inner[_key(inner, step)]
        if each["op"] == "remove":
            del inner[_key(inner, last)]
        else:
            inner[_key(inner, last)] = each["value"]
    return made  # type: ignore[no-any-return]


def _key(inner: Any, step: str) -> Any:
    name = step.replace("~1", "/").replace("~0", "~")
    return int(name) if isinstance(inner, list) else name


def make() -> Document:
    bases = {name: tell(case) for name, case in BASES.items()}
    rows = [
        {
            "name": name,
            "base": forged.base,
            "code": 2 if forged.check == "form" else 1,
            "check": forged.check,
            "patch": list(patch(bases[forged.base], forged.export())),
        }
        for name, forged in forgeries().items()
    ]
    about = "Forgeries of genuine outcomes, by who holds the key; made by tests.verify.forgeries"
    return {"about": about, "bases": bases, "forgeries": rows}


def as_text(made: Document) -> str:
    """One line for each base and forgery."""

    def line(value: Any) -> str:
        return json.dumps(value, sort_keys=True, separators=(",", ":"))

    bases = ",\n".join(f"  {line(name)}: {line(made['bases'][name])}" for name in made["bases"])
    rows = ",\n".join("  " + line(row) for row in made["forgeries"])
    about = line(made["about"])
    return f'{{"about": {about},\n"bases": {{\n{bases}\n}},\n"forgeries": [\n{rows}\n]}}\n'


if __name__ == "__main__":
    FILE.write_text(as_text(make()))
