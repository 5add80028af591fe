"""Forgeries by who holds the signing key: both verifiers refuse them all, with the same reason."""

import json

import pytest

from tests.verify import forgeries
from tests.verify.build import Document, encode
from tests.verify.node import ask
from tests.verify.test_node import request
from tests.verify.test_verify import verdict, verifier

PUBLISHED: Document = json.loads(forgeries.FILE.read_text())
ROWS = PUBLISHED["forgeries"]


def forged(row: Document) -> bytes:
    return encode(forgeries.patched(PUBLISHED["bases"][row["base"]], row["patch"]))


def test_the_forgeries_are_those_that_the_code_makes() -> None:
    """The published file is not edited by hand, and has at least those that were asked for."""
    assert forgeries.as_text(forgeries.make()) == forgeries.FILE.read_text()
    assert len(ROWS) >= 66
    assert len({json.dumps([row["base"], row["patch"]]) for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("name", PUBLISHED["bases"])
def test_what_is_forged_is_genuine(name: str) -> None:
    """Without its patch, everything holds."""
    assert verdict(encode(PUBLISHED["bases"][name])) == (0, "")


@pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])
def test_a_forgery_is_refused(row: Document) -> None:
    """By the check that is published with it, in a sentence."""
    found = verifier().verify(forged(row))
    assert (found.code, found.check) == (row["code"], row["check"])
    assert found.account[-1].startswith(("DOES NOT HOLD (", "CANNOT BE CHECKED ("))


@pytest.mark.component("node")
def test_the_second_verifier_refuses_them_too() -> None:
    """By the same checks; and it accepts what is genuine."""
    genuine = [encode(export) for export in PUBLISHED["bases"].values()]
    answers = ask([request(data) for data in [*genuine, *map(forged, ROWS)]])
    assert answers[: len(genuine)] == [[0, ""]] * len(genuine)
    assert answers[len(genuine) :] == [[row["code"], row["check"]] for row in ROWS]


def test_a_nonce_signed_with_a_key_that_is_not_yours_is_refused() -> None:
    """The operator can register a key for you; only you know that it is not yours."""
    data = encode(PUBLISHED["bases"]["nonce"])
    given = json.loads(data)["openings"][1]["nonce"]["key"]["entry"]["body"]["public_key"]
    assert verifier().verify(data, owner_keys=[given]).code == 0
    found = verifier().verify(data, owner_keys=["ab" * 32])
    assert (found.code, found.check) == (1, "openings")


@pytest.mark.parametrize(
    ("base", "label"),
    [
        ("draw", "operator-trusted"),
        ("nonce", "owner-nonced"),
        ("beacon", "beacon"),
        ("continued", "operator-trusted"),
    ],
)
def test_the_label_is_what_was_checked(base: str, label: str) -> None:
    """The last sentence says it; a nonce protects only the owner who gave it."""
    export = PUBLISHED["bases"][base]
    assert verifier().verify(encode(export)).account[-1].endswith(f"this outcome is {label}.")
    public = encode({**export, "openings": [], "closures": []})
    ours = "operator-trusted" if label == "owner-nonced" else label
    assert verifier().verify(public).account[-1].endswith(f"this outcome is {ours}.")
