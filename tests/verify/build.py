"""Outcomes made from nothing but the reference page and a ledger in memory, honest ones and lies.

The hashing, the seed and the pseudonyms are written out here once more, and the decision is the
oracle's, so that a verifier that agrees does not agree with itself. A lie is told the way an
operator would tell it: with the signing key, so that every hash and every signature holds.
"""

import copy
import hashlib
import hmac
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fairlead.core.canonical import canonical, digest
from fairlead.ledger.keys import SecretKey
from fairlead.ports.ledger import Blob, Draft, Entry
from tests.core.gpu import resolve_oracle as oracle
from tests.ledger.memory import MemoryKeys, MemoryLedger

Document = dict[str, Any]
Lies = dict[str, Callable[[Any], Any]]
"""By what is lied about (conflict, notice, commit, draw, close): from the truth to what is told."""

TIME_MS = 1_767_225_600_000


def lp(part: bytes | str) -> bytes:
    data = part.encode() if isinstance(part, str) else part
    return len(data).to_bytes(8, "big") + data


def sha(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"".join(parts), "sha256")


def bytes_of(name: str) -> bytes:
    """32 bytes that look random and are the same every time."""
    return sha(b"vector/", name.encode())


def encode(export: Document) -> bytes:
    """The file."""
    return canonical(export) + b"\n"


def owner_key(owner: str) -> Ed25519PrivateKey:
    """The key that an owner signs its nonces with; the same every time."""
    return Ed25519PrivateKey.from_private_bytes(bytes_of(f"owner key {owner}"))


def operator_key(number: int) -> SecretKey:
    """The operator's keys, in the order in which they are made."""
    return SecretKey(Ed25519PrivateKey.from_private_bytes(bytes_of(f"key {number}")))


def public_key_of(key_id: str) -> str:
    known = {key.key_id: key.public_key.hex() for key in map(operator_key, range(10))}
    return known[key_id]


class FixedKeys(MemoryKeys):
    """Signing keys that are the same every time."""

    def create(self) -> SecretKey:
        key = operator_key(len(self._loaded))
        self._loaded[key.key_id] = key
        return key


@dataclass
class Names:
    """The pseudonyms of one outcome, and what they stand for."""

    chain: bytes
    k: int
    payers: dict[str, str]
    """Whose budget a budget is."""
    openings: dict[str, list[Document]] = field(default_factory=dict)

    def hide(self, owner: str, kind: str, *parts: str) -> str:
        key = mac(
            bytes_of(f"secret {owner}"),
            lp("fairlead/pseudonym/v1"),
            lp(self.chain),
            lp(self.k.to_bytes(8, "big")),
        )
        opened = {"kind": kind, "parts": list(parts)}
        mine = self.openings.setdefault(owner, [])
        if kind != "owner" and opened not in mine:
            mine.append(opened)
        return f"{kind[0]}-{mac(key, lp(kind), *map(lp, parts)).hex()[:32]}"

    def scope(self, scope: Document) -> Document:
        cap = scope["cap"]
        if cap is not None:
            owner, budget = self.payers[cap["budget"]], cap["budget"]
            cap = {
                "budget": self.hide(owner, "budget", budget),
                "name": self.hide(owner, "cap", budget, cap["name"]),
                "envelopes": sorted(
                    self.hide(owner, "envelope", budget, each) for each in cap["envelopes"]
                ),
            }
        return {**scope, "cap": cap}

    def conflict(self, clear: Document) -> Document:
        """The clear document under pseudonyms, as it is frozen."""
        owners = {run["id"]: run["owner"] for run in clear["runs"]}
        runs = [
            {
                **run,
                "id": self.hide(run["owner"], "run", run["id"]),
                "owner": self.hide(run["owner"], "owner", run["owner"]),
            }
            for run in clear["runs"]
        ]
        leases = [
            {
                **lease,
                "id": self.hide(owners[lease["run"]], "lease", lease["id"]),
                "run": self.hide(owners[lease["run"]], "run", lease["run"]),
                "budget": self.hide(self.payers[lease["budget"]], "budget", lease["budget"]),
                "envelope": self.hide(
                    self.payers[lease["budget"]], "envelope", lease["budget"], lease["envelope"]
                ),
            }
            for lease in clear["leases"]
        ]
        return {
            "scope": self.scope(clear["scope"]),
            "deficit_gpus": clear["deficit_gpus"],
            "runs": sorted(runs, key=lambda run: str(run["id"])),
            "leases": sorted(leases, key=lambda lease: str(lease["id"])),
        }


def chain_of(clear_scope: Document, payers: dict[str, str]) -> bytes:
    """The name of a scope's sequence."""
    salt, cap = b"", clear_scope["cap"]
    if cap is not None:
        salt = mac(bytes_of(f"secret {payers[cap['budget']]}"), lp("fairlead/chain-salt/v1"))
        clear_scope = {**clear_scope, "cap": {**cap, "envelopes": sorted(cap["envelopes"])}}
    return sha(lp("fairlead/chain/v1"), lp(salt), lp(canonical(clear_scope)))


def seed_of(
    conflict_digest: str, k: int, entropy: bytes, beacon: bytes, nonces: Sequence[Document]
) -> bytes:
    """The seed, from the page."""
    rest = [lp(each["owner"]) + lp(bytes.fromhex(each["nonce"])) for each in nonces]
    return sha(
        lp("fairlead/seed/v1"),
        lp(bytes.fromhex(conflict_digest)),
        lp(k.to_bytes(8, "big")),
        lp(entropy),
        lp(beacon),
        *rest,
    )


def turn_seed_of(
    chain: bytes, turn: int, entropy: bytes, beacon: bytes, nonces: Sequence[Document]
) -> bytes:
    """The seed of a turn, from the page: nothing of the conflict is in it."""
    rest = [lp(each["owner"]) + lp(bytes.fromhex(each["nonce"])) for each in nonces]
    head = (lp("fairlead/seed/v2"), lp(chain), lp(turn.to_bytes(8, "big")))
    return sha(*head, lp(entropy), lp(beacon), *rest)


def notice_of(conflict: Document, left_out: Sequence[Document], weighting: str) -> Document:
    """Candidates, exclusions, odds of the first draw."""
    scope, rows = conflict["scope"], list(left_out)
    for lease in conflict["leases"]:
        uncapped = {**scope, "cap": None}
        if lease["flavor"] != scope["flavor"]:
            rows.append({"lease": lease["id"], "reason": "flavor"})
        elif not oracle.in_scope(lease, uncapped):
            rows.append({"lease": lease["id"], "reason": "location"})
        elif not oracle.in_scope(lease, scope):
            rows.append({"lease": lease["id"], "reason": "payer"})
    return {
        "candidates": [each["id"] for each in conflict["leases"] if oracle.in_scope(each, scope)],
        "exclusions": sorted(rows, key=lambda row: str(row["lease"])),
        "tokens": first_tokens(conflict, weighting),
    }


def first_tokens(conflict: Document, weighting: str) -> list[Document]:
    """The tokens of the first draw with their odds; empty where no draw is needed."""
    if weighting == "stake":
        return oracle.stake_tokens({**conflict, "seed": "00" * 32})
    world = oracle.World({**conflict, "seed": "00" * 32})
    if sum(lease["gpus"] for lease in world.candidates()) < world.deficit:
        return []
    for tier in oracle.TIERS:
        runs = [run for run in world.runs if world.tier(run) == tier]
        oracle.drop_spares(world, runs)
        oracle.shrink(world, runs)
        if world.met():
            return []
        tokens = [
            run for run in runs if any(world.inside(lease) for lease in world.open_leases(run))
        ]
        owners = [world.runs[run]["owner"] for run in tokens]
        if tokens:
            return sorted(
                (
                    {
                        "token": run,
                        "owner": owner,
                        "one_in": len(owners)
                        if weighting == "tokens"
                        else len(set(owners)) * owners.count(owner),
                    }
                    for run, owner in zip(tokens, owners, strict=True)
                ),
                key=lambda row: str(row["token"]),
            )
    return []


@dataclass
class Case:
    """What happened, in clear."""

    clear: Document
    """The input of `gpu.resolve` without the seed, every default filled in."""
    payers: dict[str, str]
    tenants: Sequence[str] = ()
    """For whom the export is made; nobody: for the public."""
    k: int = 0
    nonces: dict[str, str] = field(default_factory=dict)
    beacon: Document | None = None
    beacon_value: str | None = None
    ending: str = "draw"
    """draw, void or open."""
    left_out: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Leases that were not candidates although in scope: (owner, reason)."""
    filler: int = 3
    """Other entries between those that matter."""
    rotate: bool = False
    closed: bool = True
    kept_sizes: Sequence[int] = ()
    turns: bool = True
    """False: the first protocol."""
    voids: int = 0
    """How many of the k outcomes before were voided."""
    carry: Document | None = None
    """The luck that the outcome before hands on, which was voided; nonces by owner."""
    start_ms: int = TIME_MS
    change_ms: int = 0
    """How much later than it was a change of the key or the epoch is said to be."""
    epochs: int = 0
    """How often the ledger was restored between the commitment and its answer."""
    entries: Lies = field(default_factory=dict)
    """By kind: what is said of an entry besides its body; from the truth to what is told."""
    twice: Sequence[tuple[str | None, str | None]] = ()
    """Plans (None: the lease's) and effects under which its closures are recorded once more."""
    late: Sequence[str] = ()
    """What is done too late: fixing the secrets (`owner`), or committing (`commit`)."""
    entropy: str = ""
    """Another than was promised, and everything that follows from it."""
    sequence: str = ""
    """A second sequence for the same scope."""
    weighting: str = ""
    """Between whom it is said that chance is fair; empty: nothing is said, and it is owners."""
    played: str = ""
    """And between whom it was, where that is another answer."""
    lies: Lies = field(default_factory=dict)


class Teller:
    """Records one case in a ledger of its own and exports it."""

    def __init__(self, case: Case) -> None:
        self.case = case
        start_ms = case.start_ms
        self.ledger = MemoryLedger(FixedKeys(), ledger_id="ledger-of-vectors", time_ms=start_ms)
        self.time_ms = start_ms
        self.chain = chain_of(case.clear["scope"], case.payers)
        if case.turns:
            self.chain = sha(lp("fairlead/chain/v2"), lp(case.clear["scope"]["flavor"]))
        if case.sequence:
            self.chain = bytes_of(case.sequence)
        self.turn = case.k - case.voids
        self.names = Names(self.chain, self.turn, case.payers)
        self.plan = f"resolve.{self.chain.hex()[:16]}"
        self.version = {"tokens": 2, "stake": 3}.get(case.weighting, 1)
        self.given: dict[str, tuple[Entry, Entry]] = {}

    def lie(self, about: str, truth: Any) -> Any:
        return self.case.lies.get(about, lambda same: same)(copy.deepcopy(truth))

    def append(self, kind: str, body: Document, **more: Any) -> Entry:
        self.time_ms += 1_000
        said = {"time_ms": self.time_ms, "author": "fairlead", **more}
        said = self.case.entries.get(kind, lambda same: same)(dict(said))
        (entry,) = self.ledger.append([Draft(kind=kind, body=body, **said)])
        return entry

    def fill(self) -> None:
        for number in range(self.case.filler):
            self.append("object.applied", {"number": number})

    def fix_owners(self) -> dict[str, Entry]:
        owners = {run["owner"] for run in self.case.clear["runs"]} | set(self.case.payers.values())
        return {
            owner: self.append(
                "owner.pseudonym",
                {
                    "owner": owner,
                    "commitment": sha(
                        lp("fairlead/owner/v1"), lp(bytes_of(f"secret {owner}"))
                    ).hex(),
                },
                plan_id=f"owner.{owner}",
                effect="pseudonym",
            )
            for owner in sorted(owners)
        }

    def give_nonces(self) -> None:
        """Every owner with a nonce registers a key and signs; the entries are in `given`."""
        for owner, nonce in sorted(self.case.nonces.items()) if self.case.turns else ():
            key = owner_key(self.case.lies.get("signer", str)(owner))
            public = key.public_key().public_bytes_raw()
            about = (lp("ledger-of-vectors"), lp(owner))
            message = b"".join((lp("fairlead/owner-key/v1"), *about, lp(public)))
            body = {"owner": owner, "public_key": public.hex(), "approval": None}
            body["signature"] = key.sign(message).hex()
            plan = f"owner.{owner}"
            body = self.lie("key", body)
            registered = self.append("owner.key", body, plan_id=plan, effect="key 0")
            size = self.ledger.head().head.size
            parts = (lp(bytes.fromhex(nonce)), lp(size.to_bytes(8, "big")))
            signed = key.sign(b"".join((lp("fairlead/nonce/v1"), *about, *parts))).hex()
            given = {"owner": owner, "nonce": nonce, "size": size, "signature": signed}
            given = self.lie("nonce", given)
            effect = f"nonce {given['size']}"
            entry = self.append("gpu.resolve.nonce", given, plan_id=plan, effect=effect)
            self.given[owner] = (entry, registered)

    def luck(self, nonces: list[Document]) -> Document:
        return {"beacon": self.case.beacon, "nonces": nonces}

    def hidden_nonces(self) -> list[Document]:
        return sorted(
            (
                {"owner": self.names.hide(owner, "owner", owner), "nonce": nonce}
                for owner, nonce in self.case.nonces.items()
            ),
            key=lambda each: each["owner"],
        )

    def open_sequence(self) -> Entry:
        """The entry that publishes the hash of the entropy: the scope's, or the outcome before."""
        k, scope = self.case.k, self.case.clear["scope"]
        promised = sha(bytes_of(f"entropy {self.turn}")).hex()
        said = {"chain": self.chain.hex(), "next_commitment": promised}
        turns, carry = self.case.turns, self.case.carry
        if k == 0:
            location = {} if turns else scope["location"]
            body = {**said, "flavor": scope["flavor"], "location": location}
            body["capped"] = scope["cap"] is not None and not turns
            body = self.lie("scope", body)
            return self.append("gpu.resolve.scope", body, plan_id=self.plan, effect="scope")
        body = {
            **said,
            "k": k - 1,
            "commit_seq": 1,
            "commit_head": self.ledger.head().as_document(),
            "entropy": bytes_of(f"entropy {k - 1}").hex(),
            "beacon_value": None,
            "seed": "00" * 32,
            "result_digest": "00" * 32,
            "label": "operator-trusted",
        }
        if turns:
            body |= {"turn": self.turn - (carry is None)}
        kind = "gpu.resolve.draw"
        if carry is not None:
            body |= {"carry": self.lie("carry", carry), "reason": "the run is gone"}
            body["entropy"] = bytes_of(f"entropy {self.turn}").hex()
            kind = "gpu.resolve.void"
        before = f"{self.plan}.{k - 1}"
        body = self.lie("previous", body)
        return self.append(kind, body, plan_id=before, effect="outcome")

    def tell(self) -> Document:
        """The export."""
        case = self.case
        fixed = {} if "owner" in case.late else self.fix_owners()
        self.fill()
        self.give_nonces()
        previous = self.open_sequence()
        self.fill()
        conflict = self.lie("conflict", self.frozen())
        left_out = [
            {"lease": self.names.hide(owner, "lease", lease), "reason": reason}
            for lease, (owner, reason) in case.left_out.items()
        ]
        notice = self.lie("notice", notice_of(conflict, left_out, case.weighting))
        nonces = self.hidden_nonces()
        body = {
            "chain": self.chain.hex(),
            "k": case.k,
            "previous_seq": previous.seq,
            "scope": conflict["scope"],
            "deficit_gpus": conflict["deficit_gpus"],
            "conflict_digest": digest(conflict),
            "notice_digest": digest(notice),
            "nonces": nonces,
            "beacon": case.beacon,
        }
        if case.turns:
            body |= {"turn": self.turn, "continued": case.carry is not None}
        if case.weighting or case.turns:
            body["owner_weighting"] = case.weighting or "owners"
        self.early = self.ledger.head()
        commit = self.append(
            "gpu.resolve.commit",
            self.lie("commit", body),
            plan_id=f"{self.plan}.{case.k}",
            effect="commit",
            input_digest=digest(conflict),
            version=self.version,
            blobs=(Blob.of(canonical(conflict)), Blob.of(canonical(notice))) if case.turns else (),
        )
        fixed = fixed or self.fix_owners()
        self.fill()
        result, answer = None, None
        if case.ending != "open":
            result, answer = self.answer(commit, conflict, nonces)
        closures = self.close(commit, result) if result and case.ending == "draw" else []
        self.fill()
        return self.export(
            previous=previous,
            commit=commit,
            answer=answer,
            closures=closures,
            fixed=fixed,
            conflict=conflict,
            notice=notice,
            result=result,
        )

    def frozen(self) -> Document:
        """The conflict under pseudonyms; with a turn, with no labels but those that decide."""
        conflict = self.names.conflict(self.case.clear)
        for lease in conflict["leases"] if self.case.turns else ():
            kept = self.case.clear["scope"]["location"]
            lease["location"] = {
                key: value for key, value in lease["location"].items() if key in kept
            }
        return conflict

    def answer(
        self, commit: Entry, conflict: Document, nonces: list[Document]
    ) -> tuple[Document | None, Entry]:
        """The result, and the draw or the void."""
        case, result, seed = self.case, None, None
        entropy, value = bytes_of(case.entropy or f"entropy {self.turn}"), case.beacon_value
        if case.beacon is None or value is not None:
            beacon = bytes.fromhex(value or "")
            seed = seed_of(digest(conflict), case.k, entropy, beacon, nonces).hex()
            if case.turns:
                seed = turn_seed_of(self.chain, self.turn, entropy, beacon, nonces).hex()
            frozen = {**self.frozen(), "seed": seed}
            result = oracle.decide(frozen, case.played or case.weighting or "owners")
            result["conflict_digest"] = digest(conflict)
            result = self.lie("result", result)
        head = self.early if "commit" in case.late else self.ledger.head()
        if case.rotate:
            self.time_ms += 1_000
            self.ledger.rotate_key(time_ms=self.time_ms + case.change_ms, author="operator")
        for _ in range(case.epochs):
            self.time_ms += 1_000
            time_ms = self.time_ms + case.change_ms
            self.ledger.begin_epoch(time_ms=time_ms, author="operator", reason="a backup")
        body: Document = {
            "chain": self.chain.hex(),
            "k": case.k,
            "commit_seq": commit.seq,
            "commit_head": head.as_document(),
            "entropy": entropy.hex(),
            "beacon_value": value,
            "seed": seed,
            "result_digest": digest(result) if result else None,
            "label": "verifiable" if nonces or case.beacon else "operator-trusted",
            "next_commitment": sha(bytes_of(f"entropy {self.turn + 1}")).hex(),
        }
        if case.turns:
            body |= {"turn": self.turn}
            if body["label"] == "verifiable":
                body["label"] = "beacon" if case.beacon else "owner-nonced"
            if case.carry is not None:
                body["label"] = "operator-trusted"
        if case.ending == "void":
            body["reason"] = "the winner's devices failed"
            if case.turns:
                body["next_commitment"] = sha(bytes_of(f"entropy {self.turn}")).hex()
                body["carry"] = self.luck(nonces)
        entry = self.append(
            f"gpu.resolve.{case.ending}",
            self.lie("draw", body),
            plan_id=f"{self.plan}.{case.k}",
            effect="outcome",
            version=self.version,
            blobs=(Blob.of(canonical(result)),) if result and case.turns else (),
        )
        return result, entry

    def close(self, commit: Entry, result: Document) -> list[Entry]:
        """Every cut lease ends; the entries of the tenants are what the export shows."""
        owner_of = {run["id"]: run["owner"] for run in self.case.clear["runs"]}
        clear = {
            self.names.hide(owner_of[lease["run"]], "lease", lease["id"]): lease
            for lease in self.case.clear["leases"]
        }
        shown = []
        for action in result["actions"] if self.case.closed else ():
            lease = clear[action["lease"]]
            body = {
                "lease": lease["id"],
                "run": lease["run"],
                "reason": action["kind"],
                "end_ms": self.time_ms,
                "outcome": commit.seq,
            }
            entry = self.append(
                "lease.close", self.lie("close", body), plan_id=lease["id"], effect="close"
            )
            if owner_of[lease["run"]] in self.case.tenants:
                shown.append(entry)
            for plan, effect in self.case.twice:
                again = {**entry.body, "end_ms": 0}
                named = {"plan_id": plan or lease["id"], "effect": effect}
                shown.append(self.append("lease.close", again, **named))
        return shown

    def export(
        self,
        *,
        previous: Entry,
        commit: Entry,
        answer: Entry | None,
        closures: list[Entry],
        fixed: dict[str, Entry],
        conflict: Document,
        notice: Document,
        result: Document | None,
    ) -> Document:
        case, head = self.case, self.ledger.head()
        heads: list[Document] = [self.lie("head", head.as_document())]
        sizes = list(case.kept_sizes)
        if answer is not None:
            heads.append(answer.body["commit_head"])
            sizes.insert(0, heads[1]["size"])
        openings: list[Document] = [
            {
                "owner": owner,
                **self.opened_nonce(owner),
                "secret": bytes_of(f"secret {owner}").hex(),
                "entry": self.proved(fixed[owner]),
                "names": sorted(
                    self.names.openings.get(owner, []),
                    key=lambda name: (name["kind"], name["parts"]),
                ),
            }
            for owner in sorted(case.tenants)
        ]
        changes = {}
        if case.turns:
            changes["changes"] = [
                self.proved(entry)
                for entry in self.ledger.entries(heads[-1]["size"] if answer else head.head.size)
                if entry.kind in ("key.rotated", "ledger.epoch")
            ]
        return {
            "format": "fairlead-outcome/2" if case.turns else "fairlead-outcome/1",
            **changes,
            "chain": self.chain.hex(),
            "k": case.k,
            "scope": conflict["scope"],
            "previous": self.proved(previous),
            "commit": self.proved(commit),
            "draw": self.proved(answer) if answer and case.ending == "draw" else None,
            "void": self.proved(answer) if answer and case.ending == "void" else None,
            "conflict": conflict,
            "notice": notice,
            "result": result,
            "closures": [self.proved(entry) for entry in closures],
            "openings": openings,
            "head": heads[0],
            "keys": {each["key_id"]: public_key_of(each["key_id"]) for each in heads},
            "consistency": [self.link(size) for size in sizes],
        }

    def opened_nonce(self, owner: str) -> Document:
        if not self.case.turns:
            return {}
        found = self.given.get(owner)
        given = found and {"entry": self.proved(found[0]), "key": self.proved(found[1])}
        return {"nonce": given}

    def proved(self, entry: Entry) -> Document:
        proof = self.ledger.inclusion(entry.seq, self.ledger.head().head.size)
        return {"entry": json.loads(entry.data), "proof": [each.hex() for each in proof]}

    def link(self, size: int) -> Document:
        head = self.ledger.head().head
        return {
            "old_size": size,
            "old_root": self.root(size),
            "new_size": head.size,
            "new_root": head.root,
            "proof": [each.hex() for each in self.ledger.consistency(size, head.size)],
        }

    def root(self, size: int) -> str:
        """The root over the first entries, from their bytes (RFC 9162, 2.1.1)."""
        leaves = [sha(b"\0", entry.data) for entry in self.ledger.entries(0, size)]

        def over(part: list[bytes]) -> bytes:
            if len(part) == 1:
                return part[0]
            middle = 1 << ((len(part) - 1).bit_length() - 1)
            return sha(b"\1", over(part[:middle]), over(part[middle:]))

        return over(leaves).hex()


def tell(case: Case) -> Document:
    """The export of a case."""
    return Teller(case).tell()
