"""Whether a reply's head is what the ledger's keys say it is: signatures, and where keys come from.

The first time a server is asked, the keys are taken from its own log: the first entry names the
ledger and its key, and every later key was introduced by the one before. From then on only those
keys are believed, and what they introduce. Everything here is arithmetic on what was received.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fairlead.core.audit import Head, SignedHead, check_inclusion, leaf_hash
from fairlead.ledger.entries import parse
from fairlead.ledger.keys import signature_holds
from fairlead.ledger.statements import Standing

HEADERS = ("Fairlead-Head", "Fairlead-Ledger", "Fairlead-Signature")


def read_headers(headers: Mapping[str, str]) -> SignedHead | None:
    """The signed head that a reply carries; None when it carries none that can be read."""
    try:
        size, root = headers[HEADERS[0]].split(":")
        ledger, _, epoch = headers[HEADERS[1]].rpartition(":")
        time_ms, key_id, signature = headers[HEADERS[2]].split(":")
        head = Head(
            ledger=ledger,
            epoch=int(epoch),
            size=int(size),
            root=bytes.fromhex(root).hex(),
            time_ms=int(time_ms),
            key_id=key_id,
        )
    except (KeyError, ValueError):
        return None
    return SignedHead(head, signature)


def is_signed_by(signed: SignedHead, public_key: str) -> bool:
    """Whether the holder of that key signed the head."""
    return signature_holds(bytes.fromhex(public_key), signed.head.to_sign(), signed.signature)


def follow_keys(signed: SignedHead, own: Sequence[dict[str, Any]]) -> dict[str, str] | str:
    """The keys that the log of a head introduces, by id; or what is wrong with it.

    `own` are the entries about the ledger itself with their proofs of inclusion, as the server
    gives them. The head must be signed with the key in force.
    """
    standing = Standing()
    try:
        for each in own:
            problem = _follow(standing, signed.head, each)
            if problem:
                return f"entry {each['seq']}, about its keys: {problem}"
    except (KeyError, TypeError, ValueError) as error:
        return f"what it says of its keys is malformed ({error!r})"
    problem = standing.check(signed)
    if problem:
        return f"the head {problem}"
    return {name: key.hex() for name, key in standing.keys.items()}


def _follow(standing: Standing, head: Head, each: dict[str, Any]) -> str:
    data, seq = str(each["entry"]).encode(), int(each["seq"])
    included = 1 <= seq <= head.size and check_inclusion(
        leaf=leaf_hash(data),
        index=seq - 1,
        size=head.size,
        proof=tuple(bytes.fromhex(node) for node in each["proof"]),
        root=bytes.fromhex(head.root),
    )
    return standing.follow(parse(data)) if included else "it is not in the log of this head"
