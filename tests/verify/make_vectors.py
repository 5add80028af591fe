"""Writes verify/vectors.json: `python -m tests.verify.make_vectors`. The same bytes every time.

What is expected comes from the oracle, from the ledger's own proofs and from the hashing in
`build`, never from the two verifiers that are tried on it.
"""

import json
import random
from pathlib import Path
from typing import Any

from fairlead.core.audit import Frontier, TreeNode, consistency_proof, inclusion_proof
from fairlead.core.canonical import canonical
from tests.core.gpu import resolve_cases, resolve_oracle
from tests.core.lottery import network
from tests.verify import stories
from tests.verify.build import Document, Names, bytes_of, seed_of, sha, tell, turn_seed_of

VECTORS = Path(__file__).resolve().parents[2] / "verify" / "vectors.json"

VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    2**53 - 1,
    "",
    "plain",
    'quote " and \\ backslash',
    "tab\tand\nline",
    "\u0000\u0001\u001f\u007f",
    "é π 日本 \U0001f600",
    [],
    {},
    [1, [2, [3]]],
    {"b": 1, "a": {"z": None, "aa": []}},
    {"10": 1, "9": 2, "1": 3},
    {"\uff5e": "sorts after", "\U0001f600": "in UTF-16, before in code points", "z": ""},
]

# RFC 8032, 7.1: key, message, signature.
RFC_8032 = (
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b"
        "46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11"
        "d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc"
        "6594a7c15e9716ed28dc027beceea1ec40a",
    ),
    (
        "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
        "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a"
        "2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
        "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b58909351fc9ac90b3ecfdfbc7c66431e"
        "0303dca179c138ac17ad9bef1177331a704",
    ),
)
ORDER = 2**252 + 27742317777372353535851937790883648493


def ed25519() -> list[Document]:
    """Signatures that hold, and ways of not holding."""
    rows = [
        {"public_key": key, "message": message, "signature": signature, "holds": True}
        for key, message, signature in RFC_8032
    ]
    key, message, signature = RFC_8032[2]
    # S + L solves the same equation; who accepts it accepts two signatures for one message.
    again = int.from_bytes(bytes.fromhex(signature)[32:], "little") + ORDER
    wrong = (
        (key, message + "00", signature),
        (RFC_8032[1][0], message, signature),
        (key, message, signature[64:] + signature[:64]),
        (key, message, signature[:64] + again.to_bytes(32, "little").hex()),
        ("02" + "00" * 31, message, signature),  # no point of the curve
        ("ff" * 32, message, signature),
    )
    return rows + [
        {"public_key": one, "message": two, "signature": three, "holds": False}
        for one, two, three in wrong
    ]


def fair_numbers() -> list[Document]:
    """Small and large ranges, and some for which the first number must be thrown away."""
    rows: list[Document] = []
    for n in (1, 2, 3, 5, 6, 7, 10, 1_000, 100_000, 2**32, 2**53 - 1):
        for stage in ("owner", "token"):
            for k in (0, 1, 2, 255, 2**40):
                rows.append({"n": n, "stage": stage, "k": k, "seed": bytes_of(f"{n}").hex()})
    # 2^64 modulo this n is nearly n, so that one number in 3 000 is thrown away.
    n, seed = (2**64 - 1) // 3_000, bytes_of("thrown away")
    thrown = [k for k in range(20_000) if _first(n, seed, "owner", k) >= 2**64 - 2**64 % n]
    rows += [{"n": n, "stage": "owner", "k": k, "seed": seed.hex()} for k in thrown]
    for row in rows:
        row["number"] = resolve_oracle.below(
            row["n"], bytes.fromhex(row["seed"]), row["stage"], row["k"]
        )
    return rows


def _first(n: int, seed: bytes, stage: str, k: int) -> int:
    """The first number of a draw, before it is known whether it may be used."""
    limit = 2**64 // n * n
    number = resolve_oracle.below(2**64, seed, stage, k)
    return number if number < limit else 2**64 - 1


def seeds() -> list[Document]:
    """Each part alone and all together."""
    nonces = [{"owner": "a", "nonce": "00"}, {"owner": "b", "nonce": bytes_of("n").hex()}]
    rows = []
    for k in (0, 1, 2**40):
        for beacon in ("", bytes_of("beacon").hex()):
            for given in ([], nonces[:1], nonces):
                seed = seed_of(
                    bytes_of("conflict").hex(), k, bytes_of("entropy"), bytes.fromhex(beacon), given
                )
                rows.append(
                    {
                        "conflict_digest": bytes_of("conflict").hex(),
                        "k": k,
                        "nonces": given,
                        "entropy": bytes_of("entropy").hex(),
                        "beacon_value": beacon,
                        "seed": seed.hex(),
                    }
                )
    return rows


def turn_seeds() -> list[Document]:
    """Each part alone and all together."""
    nonces = [{"owner": "a", "nonce": "00"}, {"owner": "b", "nonce": bytes_of("n").hex()}]
    rows: list[Document] = []
    for turn in (0, 1, 2**40):
        for beacon in ("", stories.VALUE):
            for given in ([], nonces[:1], nonces):
                parts = (bytes_of("chain"), turn, bytes_of("entropy"), bytes.fromhex(beacon), given)
                rows.append(
                    {
                        "chain": bytes_of("chain").hex(),
                        "turn": turn,
                        "nonces": given,
                        "entropy": bytes_of("entropy").hex(),
                        "beacon_value": beacon,
                        "seed": turn_seed_of(*parts).hex(),
                    }
                )
    return rows


def beacons() -> list[Document]:
    """A round of drand's quicknet, one of a network of our own, and ways of not being signed."""
    quicknet, ours = stories.BEACON["public_key"], network.KEY
    infinity = "c0" + "00" * 47
    made = [
        (quicknet, 1_000, stories.VALUE, True),
        (ours, 7, network.sign(7), True),
        (quicknet, 1_001, stories.VALUE, False),
        (ours, 1_000, stories.VALUE, False),
        (ours, 8, network.sign(7), False),
        (ours, 7, network.sign(7, network.SECRET + 1), False),
        (ours, 7, infinity, False),
        (ours, 7, "80" + "00" * 47, False),  # a point of the curve, and not of the group
        (ours, 7, "9f" + "ff" * 47, False),
        (ours, 7, "80" + "00" * 46 + "01", False),
        (ours, 7, network.sign(7)[:-2], False),
        (ours[:-2], 7, network.sign(7), False),
        ("c0" + "00" * 95, 7, infinity, False),
    ]
    names = ("public_key", "round", "signature", "holds")
    return [dict(zip(names, row, strict=True)) for row in made]


def pseudonyms() -> list[Document]:
    """One of each kind."""
    rows = []
    for k in (0, 1):
        names = Names(bytes_of("chain"), k, {})
        for kind, parts in (
            ("owner", ["vision"]),
            ("run", ["vision/train"]),
            ("lease", ["π"]),
            ("budget", [""]),
            ("envelope", ["shared", "west"]),
            ("envelope", ["sharedw", "est"]),
            ("cap", ["shared", "all"]),
        ):
            rows.append(
                {
                    "secret": bytes_of("secret vision").hex(),
                    "chain": bytes_of("chain").hex(),
                    "k": k,
                    "kind": kind,
                    "parts": parts,
                    "pseudonym": names.hide("vision", kind, *parts),
                }
            )
    return rows


def proofs() -> tuple[list[Document], list[Document]]:
    """Every place and every two sizes of small trees, some with a proof that is not theirs."""
    leaves = [sha(b"\0", bytes([number])) for number in range(17)]
    grown = Frontier().extend(leaves)
    roots = [Frontier().extend(leaves[:size]).frontier.root().hex() for size in range(18)]

    def stored(nodes: Any) -> list[bytes]:
        return [TreeNode.among(node, grown.completed[node.last_leaf]) for node in nodes]

    inclusion, consistency = [], []
    for size in (1, 2, 3, 5, 8, 13, 17):
        for index in range(size):
            proof = [each.hex() for each in inclusion_proof(index, size, stored)]
            row = {"leaf": leaves[index].hex(), "index": index, "size": size, "root": roots[size]}
            inclusion.append({**row, "proof": proof, "holds": True})
            inclusion.append({**row, "proof": [*proof, roots[1]], "holds": False})
            inclusion.append({**row, "proof": proof[1:], "holds": not proof})
        for old in range(1, size + 1):
            proof = [each.hex() for each in consistency_proof(old, size, stored)]
            link = {"old_size": old, "new_size": size, "new_root": roots[size]}
            consistency.append({**link, "old_root": roots[old], "proof": proof, "holds": True})
            more = [*proof, roots[1]]
            consistency.append({**link, "old_root": roots[old], "proof": more, "holds": False})
            consistency.append({**link, "old_root": roots[0], "proof": proof, "holds": False})
    return inclusion, consistency


def decisions() -> list[Document]:
    """Documents of the generator that between them do everything, with the oracle's decisions."""
    rows, seen = [], set[str]()
    for case in range(400):
        document = resolve_cases.random_doc(random.Random(f"vectors/{case}"))
        result = resolve_oracle.decide(document)
        what = {each["kind"] for each in result["actions"]}
        what |= {"withdrawn" for each in result["withdrawn"]}
        what |= {f"tier {each['tier']}" for each in result["draws"]}
        what |= {"outside" for each in result["actions"] if not each["in_scope"]}
        what |= {"refused"} if not result["resolved"] else set()
        if what <= seen and case > 12:
            continue
        seen |= what
        rows.append({"conflict": _frozen(document), "seed": document["seed"], "result": result})
    return rows + by_weighting("tokens", 6) + by_weighting("stake", 12)


def by_weighting(weighting: str, count: int) -> list[Document]:
    """Documents in which it makes a difference whether owners, tokens or GPUs are equal."""
    rows: list[Document] = []
    for case in range(400):
        document = resolve_cases.random_doc(random.Random(f"{weighting}/{case}"))
        result = resolve_oracle.decide(document, weighting)
        if result["draws"] != resolve_oracle.decide(document)["draws"]:
            rows.append(
                {
                    "conflict": _frozen(document),
                    "seed": document["seed"],
                    "result": result,
                    "owner_weighting": weighting,
                }
            )
        if len(rows) == count:
            break
    return rows


def _frozen(document: Document) -> Document:
    """The conflict of a document, defaults filled in."""
    return {
        "scope": {"cap": None, **document["scope"]},
        "deficit_gpus": document["deficit_gpus"],
        "runs": sorted(
            ({"malleable": None, "nominated": False, **each} for each in document["runs"]),
            key=lambda each: each["id"],
        ),
        "leases": sorted(document["leases"], key=lambda each: each["id"]),
    }


def make() -> Document:
    """All vectors."""
    inclusion, consistency = proofs()
    return {
        "about": "Vectors of docs/reference/outcome-export.md, made by tests.verify.make_vectors",
        "canonical": [{"value": each, "text": canonical(each).decode()} for each in VALUES],
        "fair_number": fair_numbers(),
        "seed": seeds(),
        "turn_seed": turn_seeds(),
        "beacon": beacons(),
        "pseudonym": pseudonyms(),
        "ed25519": ed25519(),
        "inclusion": inclusion,
        "consistency": consistency,
        "resolve": decisions(),
        "outcomes": [
            {"name": name, "export": tell(case), "code": 0, "check": ""}
            for name, case in stories.TRUE.items()
        ],
        "lies": [
            {
                "name": name,
                "export": tell(case),
                "code": 2 if check == "form" else 1,
                "check": check,
            }
            for name, (case, check) in stories.LIES.items()
        ],
    }


def as_text(vectors: Document) -> str:
    """One line per vector, so that a change shows as what it is."""
    parts = []
    for name, rows in vectors.items():
        if isinstance(rows, list):
            lines = ",\n".join("  " + json.dumps(row, sort_keys=True) for row in rows)
            parts.append(f"{json.dumps(name)}: [\n{lines}\n]")
        else:
            parts.append(f"{json.dumps(name)}: {json.dumps(rows)}")
    return "{" + ",\n".join(parts) + "}\n"


if __name__ == "__main__":
    VECTORS.write_text(as_text(make()))
