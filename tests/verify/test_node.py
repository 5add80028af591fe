"""The second verifier, on Node: the same answers as the vectors say and as the first one gives."""

import base64
import json
import random
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.core.gpu import resolve_cases, resolve_oracle
from tests.verify import stories
from tests.verify.build import Document, encode
from tests.verify.node import VERIFIER, ask
from tests.verify.test_verify import (
    ANSWERS,
    RUBBISH,
    TOLD,
    VECTORS,
    expected,
    large,
    small,
    tiny,
    verdict,
)

pytestmark = pytest.mark.component("node")

DOCUMENTS = 300


def request(
    data: bytes, *, heads: list[str] | None = None, keys: list[str] | None = None
) -> tuple[str, Any]:
    """To verify these bytes."""
    return "verify", {
        "data": base64.b64encode(data).decode(),
        "heads": heads or [],
        "keys": keys or [],
    }


def test_vectors() -> None:
    """Bytes, numbers, seeds, pseudonyms, signatures, proofs and decisions are as published."""
    rows = [(section, row) for section in ANSWERS for row in VECTORS[section]]
    answers = ask(rows)
    for (section, row), answer in zip(rows, answers, strict=True):
        assert answer == expected(section, row), (section, row)


def test_true_outcomes_hold_and_signed_lies_are_found_out() -> None:
    """By the same check as in the first verifier."""
    answers = ask([request(encode(row["export"])) for _, row in TOLD])
    assert answers == [[row["code"], row["check"]] for _, row in TOLD]


def test_both_find_the_same_in_edited_files() -> None:
    """The exit status and the check that failed."""
    files = [encode(edit(json.loads(small()))) for edit in stories.EDITS.values()]
    assert ask([request(each) for each in files]) == [list(verdict(each)) for each in files]


def test_every_flipped_byte_is_found() -> None:
    """In a tiny outcome each byte in turn; every eighth is compared with the first verifier."""
    whole = tiny()
    places = list(range(len(whole)))
    asked = {"data": base64.b64encode(whole).decode(), "mask": 1, "places": places}
    (answers,) = ask([("flips", asked)])
    assert [place for place, (code, _) in zip(places, answers, strict=True) if code == 0] == []
    for place in places[::8]:
        flipped = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
        assert answers[place] == list(verdict(flipped)), place


def test_both_agree_on_other_changes_of_bytes() -> None:
    """Sampled, in a larger outcome."""
    rng, whole, changed = random.Random("node"), large(), [large()]
    for _ in range(150):
        at = rng.randrange(len(whole))
        changed.append(whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :])
        changed.append(whole[:at] + whole[at + 1 :])
    answers = ask([request(each) for each in changed])
    assert answers == [list(verdict(each)) for each in changed]
    assert [code for code, _ in answers].count(0) == 1


def test_rubbish_is_refused() -> None:
    """Whatever it is, the answer is a sentence and not a trace of the stack."""
    answers = ask([request(each) for each in RUBBISH])
    assert answers == [list(verdict(each)) for each in RUBBISH]


def test_both_agree_on_what_was_kept() -> None:
    """Heads and keys that are right, wrong, and unknown to the export."""
    export = json.loads(small())
    head = export["head"]
    right, wrong = f"{head['size']}:{head['root']}", f"{head['size']}:{'ab' * 32}"
    cases: list[tuple[list[str], list[str], int]] = [
        ([right], [head["key_id"], *export["keys"].values()], 0),
        ([wrong], [], 1),
        ([f"2:{head['root']}"], [], 1),
        ([], ["ab" * 32], 1),
    ]
    answers = ask([request(small(), heads=heads, keys=keys) for heads, keys, _ in cases])
    assert [code for code, _ in answers] == [code for _, _, code in cases]


def test_the_same_decisions_as_the_oracle() -> None:
    """A third implementation of the resolver, on random and hostile documents."""
    rows: list[tuple[str, Any]] = []
    results: list[Document] = []
    for case in range(DOCUMENTS):
        document = resolve_cases.random_doc(random.Random(f"node/{case}"))
        conflict = {
            "scope": {"cap": None, **document["scope"]},
            "deficit_gpus": document["deficit_gpus"],
            "runs": sorted(
                ({"malleable": None, "nominated": False, **each} for each in document["runs"]),
                key=lambda each: each["id"],
            ),
            "leases": sorted(document["leases"], key=lambda each: each["id"]),
        }
        rows.append(("resolve", {"conflict": conflict, "seed": document["seed"]}))
        results.append(resolve_oracle.decide(document))
    assert ask(rows) == results


def test_as_a_command(tmp_path: Path) -> None:
    """Exit status 0, 1, 2, with an account on standard output."""
    path = tmp_path / "outcome.json"
    path.write_bytes(small())

    def run(*arguments: object) -> tuple[int, str]:
        done = subprocess.run(
            ["node", str(VERIFIER), *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.returncode, done.stdout

    code, account = run(path)
    assert code == 0
    assert account.rstrip().endswith("this outcome is operator-trusted.")
    assert run(path, "--key", "ab" * 32)[0] == 1
    assert run(path, "--head", "rubbish")[0] == 2
    assert run(tmp_path / "nowhere")[0] == 2
    path.write_bytes(small()[:-1])
    assert run(path)[0] == 2


def test_nothing_but_built_in_modules() -> None:
    """No package to install; and in a browser, which has no modules of Node, none is asked for."""
    text = VERIFIER.read_text()
    assert not re.search(r"^import\b|\brequire\(|\bfrom \"", text, re.MULTILINE)
    assert set(re.findall(r'import\("([^"]*)"\)', text)) == {"node:crypto", "node:fs", "node:url"}
