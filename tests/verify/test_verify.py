"""The standalone verifier in Python: what it accepts, what it finds out, and how it says so."""

import ast
import importlib.util
import json
import random
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.verify import make_vectors, stories
from tests.verify.build import Document, encode, tell

VERIFIER = Path(__file__).resolve().parents[2] / "verify" / "fairlead_verify.py"
VECTORS: Document = json.loads(make_vectors.VECTORS.read_text())
TOLD = [(row["name"], row) for name in ("outcomes", "lies") for row in VECTORS[name]]
SAMPLE = 250


@cache
def verifier() -> ModuleType:
    """The file as a module; nobody installs it."""
    spec = importlib.util.spec_from_file_location("fairlead_verify", VERIFIER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def verdict(data: bytes, *kept: Any) -> tuple[int, str]:
    """The exit status and the check that failed."""
    found = verifier().verify(data, *kept)
    return found.code, found.check


@cache
def small() -> bytes:
    """A small outcome with everything in it."""
    return encode(tell(stories.BASE))


@cache
def tiny() -> bytes:
    """One lease, one owner, one draw."""
    return encode(tell(stories.TINY))


@cache
def large() -> bytes:
    """A larger one."""
    return encode(tell(stories.large(72)))


def expected(section: str, row: Document) -> Any:
    """What a vector says should come out."""
    names = {
        "canonical": "text",
        "fair_number": "number",
        "seed": "seed",
        "turn_seed": "seed",
        "resolve": "result",
        "pseudonym": "pseudonym",
    }
    return row[names.get(section, "holds")]


def unhex(text: str) -> bytes:
    return bytes.fromhex(text)


def seed(row: Document) -> str:
    nonces = [(each["owner"], unhex(each["nonce"])) for each in row["nonces"]]
    luck = unhex(row["entropy"]), unhex(row["beacon_value"]), nonces
    made: bytes = verifier().seed_of(unhex(row["conflict_digest"]), row["k"], *luck)
    return made.hex()


def turn_seed(row: Document) -> str:
    nonces = [(each["owner"], unhex(each["nonce"])) for each in row["nonces"]]
    luck = unhex(row["entropy"]), unhex(row["beacon_value"]), nonces
    made: bytes = verifier().turn_seed_of(unhex(row["chain"]), row["turn"], *luck)
    return made.hex()


def resolved(row: Document) -> Any:
    v = verifier()
    conflict = json.loads(json.dumps(row["conflict"]), object_hook=v.Doc)
    return v.Resolve(conflict, unhex(row["seed"]), row.get("owner_weighting", "owners")).result()


def included(row: Document) -> bool:
    proof = [unhex(each) for each in row["proof"]]
    try:
        root = verifier().root_over(unhex(row["leaf"]), row["index"], row["size"], proof)
    except verifier().DoesNotHold:
        return False
    return not proof and root == unhex(row["root"])


def consistent(row: Document) -> bool:
    proof, old = [unhex(each) for each in row["proof"]], unhex(row["old_root"])
    try:
        roots = verifier().two_roots(old, row["old_size"], row["new_size"], proof)
    except verifier().DoesNotHold:
        return False
    return not proof and roots == (old, unhex(row["new_root"]))


# What the verifier makes of a vector.
ANSWERS: dict[str, Callable[[Document], Any]] = {
    "canonical": lambda row: verifier().canonical_text(row["value"]),
    "fair_number": lambda row: verifier().fair_number(
        row["n"], unhex(row["seed"]), row["stage"].encode(), row["k"]
    ),
    "seed": seed,
    "turn_seed": turn_seed,
    "beacon": lambda row: verifier().beacon_holds(
        unhex(row["public_key"]), row["round"], unhex(row["signature"])
    ),
    "pseudonym": lambda row: verifier().pseudonym(
        unhex(row["secret"]), row["chain"], row["k"], row["kind"], row["parts"]
    ),
    "ed25519": lambda row: verifier().signature_holds(
        unhex(row["public_key"]), unhex(row["message"]), unhex(row["signature"])
    ),
    "inclusion": included,
    "consistency": consistent,
    "resolve": resolved,
}


@pytest.mark.parametrize("section", ANSWERS)
def test_vectors(section: str) -> None:
    """Bytes, numbers, seeds, pseudonyms, signatures, proofs and decisions are as published."""
    rows = VECTORS[section]
    assert [ANSWERS[section](row) for row in rows] == [expected(section, row) for row in rows]


def test_the_vectors_are_those_that_the_code_makes() -> None:
    """The published file is not edited by hand, and does not fall behind."""
    assert make_vectors.as_text(make_vectors.make()) == make_vectors.VECTORS.read_text()


@pytest.mark.parametrize(("name", "row"), TOLD, ids=[name for name, _ in TOLD])
def test_true_outcomes_hold_and_signed_lies_are_found_out(name: str, row: Document) -> None:
    """Not even the holder of the key can tell another story: each lie fails its check."""
    assert verdict(encode(row["export"])) == (row["code"], row["check"])


@pytest.mark.parametrize("name", stories.EDITS)
def test_an_edited_file_is_found_out(name: str) -> None:
    """No field can be changed, even by who makes the file canonical again."""
    assert verdict(encode(stories.EDITS[name](json.loads(small()))))[0] in (1, 2)


def test_every_flipped_byte_is_found() -> None:
    """In a tiny outcome, each byte in turn."""
    whole = tiny()
    assert verdict(whole) == (0, "")
    unnoticed = [
        place
        for place in range(len(whole))
        if verdict(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])[0] == 0
    ]
    assert unnoticed == []


def test_other_changes_of_bytes_are_found() -> None:
    """Other bits, bytes lost, bytes doubled, ends cut off; in a larger outcome, sampled."""
    rng, whole = random.Random("bytes"), large()
    assert verdict(whole) == (0, "")
    for _ in range(SAMPLE):
        at, bit = rng.randrange(len(whole)), 1 << rng.randrange(8)
        before, after = whole[:at], whole[at + 1 :]
        flipped = before + bytes([whole[at] ^ bit]) + after
        for changed in (flipped, before + after, whole[: at + 1] + whole[at:], before):
            assert changed == whole or verdict(changed)[0] in (1, 2), (at, bit)


RUBBISH = (
    b"",
    b"\n",
    b"null\n",
    b"[]\n",
    b"{}\n",
    b"\xff\n",
    b'{"k":NaN}\n',
    b"[" * 100_000,
    b"1" * 5_000 + b"\n",
    b'{"a":1,"a":1}\n',
    b'"\\ud800"\n',
    b"\xef\xbb\xbf{}\n",
    b"1.5\n",
    b"-0\n",
    b"9007199254740992\n",
    b"[" * 5_000 + b"]" * 5_000 + b"\n",
)


@pytest.mark.parametrize("data", RUBBISH, ids=lambda data: repr(data[:12]))
def test_rubbish_is_refused(data: bytes) -> None:
    """Whatever it is, the answer is a sentence and not a traceback."""
    assert verdict(data)[0] == 2


def test_a_kept_head_decides() -> None:
    """The log that you saw, another log of that size, and one that the export does not lead to."""
    export = VECTORS["outcomes"][list(stories.TRUE).index("with kept heads")]["export"]
    data, head = encode(export), export["head"]
    kept = [(link["old_size"], link["old_root"]) for link in export["consistency"]]
    assert len(kept) == 5
    assert verdict(data, [*kept, (head["size"], head["root"])]) == (0, "")
    for size, _ in kept:
        assert verdict(data, [(size, "ab" * 32)]) == (1, "kept")
    assert verdict(data, [(3, "ab" * 32)]) == (1, "kept")


def test_a_known_key_decides() -> None:
    """By its id or whole; a key that did not sign is a no."""
    ((key_id, key),) = json.loads(small())["keys"].items()
    assert verdict(small(), [], [key_id, key]) == (0, "")
    assert verdict(small(), [], ["ab" * 32]) == (1, "kept")


def test_the_account_says_when_tokens_are_equal() -> None:
    """Who loses by it should read it; where owners are equal there is nothing to say."""
    said = "Every run was as likely as the next"
    fair = encode(VECTORS["outcomes"][list(stories.TRUE).index("tokens are equal")]["export"])
    assert any(line.startswith(said) for line in verifier().verify(fair).account)
    assert not any(line.startswith(said) for line in verifier().verify(small()).account)


def test_the_account_is_for_the_loser() -> None:
    """It says which leases were theirs, by which draw they went, and what the label is."""
    account = "\n".join(verifier().verify(small()).account)
    assert "Yours: lease v1, 4 GPUs, DropSpare; ended 2026-01-01" in account
    assert "You named no head and no key that you kept" in account
    assert account.endswith("this outcome is operator-trusted.")


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The file as users run it, without anything that is installed."""
    return subprocess.run(
        [sys.executable, "-I", "-S", str(VERIFIER), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_as_a_command_without_site_packages(tmp_path: Path) -> None:
    """Exit status 0, 1, 2, with an account on standard output."""
    path, head = tmp_path / "outcome.json", json.loads(small())["head"]
    path.write_bytes(small())
    done = command(path, "--head", f"{head['size']}:{head['root']}", "--key", head["key_id"])
    assert (done.returncode, done.stderr) == (0, "")
    assert "Everything holds" in done.stdout
    done = command(path, "--key", "ab" * 32)
    assert done.returncode == 1
    assert "DOES NOT HOLD (kept)" in done.stdout
    assert command(path, "--head", "rubbish").returncode == 2
    assert command(tmp_path / "nowhere").returncode == 2
    path.write_bytes(small() + b" ")
    done = command(path)
    assert done.returncode == 2
    assert "CANNOT BE CHECKED (bytes)" in done.stdout


def test_one_file_of_the_standard_library_and_of_python_3_9() -> None:
    """Nothing to install, and nothing newer than a tenant may have."""
    tree = ast.parse(VERIFIER.read_text(), feature_version=(3, 9))
    imported = set[str | None]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module)
    allowed = ("argparse", "collections", "datetime", "hashlib", "hmac", "json", "re", "sys")
    assert imported <= set(allowed)
