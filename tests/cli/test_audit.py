"""`fairlead audit` as a user runs it: heads, logs, proofs, verdicts, exit codes."""

import json
import os
import sqlite3
import subprocess
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from fairlead.host.clock import now_ms
from fairlead.ledger import entries
from fairlead.ledger.place import open_file
from tests.cli.shells import run_inside
from tests.engine.gpu.worlds import Clocks, World, budget, node, run
from tests.ledger.drafts import draft, drafts


def audit(
    *arguments: object, state: Path, input: bytes | None = None
) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "FAIRLEAD_STATE": str(state)}
    return run_inside("audit", *map(str, arguments), input=input, environment=environment)


def document(*arguments: object, state: Path) -> Any:
    result = audit(*arguments, state=state)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory with a ledger of twelve entries."""
    with open_file(tmp_path / "ledger.db") as ledger:
        ledger.append(drafts(0, 10))
        ledger.append([draft(10, kind="lease.open")])
    return tmp_path


def test_the_head_and_the_log(state: Path) -> None:
    """For eyes and for scripts; the key is readable by its owner alone."""
    head = document("head", "-o", "json", state=state)
    assert (head["size"], head["epoch"]) == (12, 0)
    shown = audit("head", state=state).stdout.decode()
    assert head["root"] in shown
    (key,) = (state / "keys").iterdir()
    assert (key.name, key.stat().st_mode & 0o777) == (f"{head['key_id']}.pem", 0o600)
    assert (state / "keys").stat().st_mode & 0o777 == 0o700
    lines = audit("log", "--limit", 2, state=state).stdout.decode().splitlines()
    assert [line.split()[0] for line in lines] == ["SEQ", "11", "12"]
    assert "lease.open" in lines[-1]
    texts = audit("log", "--after", 4, "--limit", 3, "-o", "json", state=state).stdout
    assert [json.loads(text)["seq"] for text in texts.splitlines()] == [5, 6, 7]
    kinds = audit("log", "--kind", "ledger.created", "-o", "json", state=state).stdout
    assert json.loads(kinds)["seq"] == 1
    plans = audit("log", "--plan", "plan-4", "--after", 0, "-o", "json", state=state).stdout
    assert json.loads(plans)["body"]["number"] == 4


def check_alone(proof: dict[str, Any]) -> bool:
    """What a third party does: SHA-256 and Ed25519, none of our code."""
    node = sha256(b"\x00" + proof["entry"].encode()).digest()
    assert node.hex() == proof["leaf_hash"]
    at, last = proof["leaf_index"], proof["head"]["size"] - 1
    for text in proof["proof"]:
        sibling = bytes.fromhex(text)
        if at & 1 or at == last:
            node = sha256(b"\x01" + sibling + node).digest()
            while at and not at & 1:
                at, last = at >> 1, last >> 1
        else:
            node = sha256(b"\x01" + node + sibling).digest()
        at, last = at >> 1, last >> 1
    head = {name: value for name, value in proof["head"].items() if name != "signature"}
    signed = (
        b"fairlead/head/v1\n" + json.dumps(head, sort_keys=True, separators=(",", ":")).encode()
    )
    key = bytes.fromhex(proof["public_key"])
    assert sha256(key).hexdigest()[:16] == head["key_id"]
    Ed25519PublicKey.from_public_bytes(key).verify(
        bytes.fromhex(proof["head"]["signature"]), signed
    )
    return last == 0 and node.hex() == head["root"]


def test_a_third_party_checks_a_proof_alone(state: Path) -> None:
    """Every entry; and a proof of another entry does not pass for it."""
    proofs = [document("prove", seq, state=state) for seq in (1, 5, 12)]
    assert all(check_alone(proof) for proof in proofs)
    assert not check_alone({**proofs[0], "proof": proofs[1]["proof"]})


def test_a_proof_relative_to_a_head_held_elsewhere(state: Path, tmp_path: Path) -> None:
    """Inclusion in the older log, and that the newer one continues it."""
    held = tmp_path / "head.json"
    held.write_bytes(audit("head", "-o", "json", state=state).stdout)
    with open_file(state / "ledger.db") as ledger:
        ledger.append(drafts(20, 5))
    proof = document("prove", 5, "--head", held, state=state)
    assert proof["head"]["size"] == 12
    assert check_alone(proof)
    continued = document("prove", "--head", held, state=state)
    assert (continued["old"]["size"], continued["head"]["size"]) == (12, 17)
    for arguments, code in (
        (("prove", 13, "--head", held), 2),
        (("prove", 18), 2),
        (("prove", 0), 2),
        (("prove",), 2),
    ):
        assert audit(*arguments, state=state).returncode == code
    other = {**json.loads(held.read_bytes()), "root": "0" * 64}
    held.write_text(json.dumps(other))
    assert audit("prove", 5, "--head", held, state=state).returncode == 1
    assert audit("prove", "--head", held, state=state).returncode == 1
    held.write_text(json.dumps({**other, "ledger": "another"}))
    assert audit("prove", "--head", held, state=state).returncode == 1


def test_verify_says_yes_no_and_why(state: Path, tmp_path: Path) -> None:
    """Exit code 1 with the number of the entry; 2 for a head that is none; 3 for no ledger."""
    held = tmp_path / "head.json"
    held.write_bytes(audit("head", "-o", "json", state=state).stdout)
    assert document("verify", "--head", held, "-o", "json", state=state)["ok"]
    assert audit("verify", state=state).stdout.startswith(b"verified: 12 entries")
    with sqlite3.connect(state / "ledger.db") as database:
        database.execute("DROP TRIGGER entries_keep")
        database.execute(
            "UPDATE entries SET data = CAST(replace(data, '28800000', '28800001') AS BLOB) "
            "WHERE seq = 7"
        )
    result = audit("verify", "--head", held, "-o", "json", state=state)
    assert result.returncode == 1
    answer = json.loads(result.stdout)
    assert (answer["ok"], answer["seq"]) == (False, 7)
    assert b"NOT VERIFIED" in audit("verify", state=state).stdout
    held.write_text('{"size": "all"}')
    refused = audit("verify", "--head", held, state=state)
    assert (refused.returncode, b"error: " in refused.stderr) == (2, True)
    missing = audit("verify", "--ledger", tmp_path / "none.db", state=state)
    assert (missing.returncode, b"there is no ledger" in missing.stderr) == (3, True)


def test_an_export_verifies_elsewhere(state: Path, tmp_path: Path) -> None:
    """The whole log or a part; a changed one does not."""
    whole, part = tmp_path / "whole.jsonl", tmp_path / "part.jsonl"
    assert audit("export", "--out", whole, state=state).returncode == 0
    assert audit("export", state=state).stdout == whole.read_bytes()
    assert audit("export", "--out", part, "--first", 4, "--last", 9, state=state).returncode == 0
    nowhere = tmp_path / "nowhere"
    for file in (whole, part):
        assert audit("verify", file, state=nowhere).returncode == 0
    lines = part.read_bytes().splitlines(keepends=True)
    for changed in (lines[:-1], lines[:3] + lines[4:], [lines[0], *lines[2:], lines[1]], lines[1:]):
        part.write_bytes(b"".join(changed))
        assert audit("verify", part, state=nowhere).returncode in (1, 2)
    assert audit("export", "--first", 9, "--last", 99, state=state).returncode == 2


def test_upkeep_keeps_the_ledger_verifiable(state: Path, tmp_path: Path) -> None:
    """Rotate, archive, back up, lose, restore: each step can be followed by who held a head."""
    held = tmp_path / "head.json"
    held.write_bytes(audit("head", "-o", "json", state=state).stdout)
    assert audit("rotate-key", state=state).returncode == 0
    copy, archive = tmp_path / "copy.db", tmp_path / "archive"
    archive.mkdir()
    assert audit("backup", copy, state=state).returncode == 0
    segment = audit("archive", archive, "--last", 6, state=state).stdout.decode().strip()
    assert audit("verify", segment, state=state).returncode == 0
    verify = ("verify", "--head", held, "--archive", archive)
    assert audit(*verify, state=state).returncode == 0
    text = Path(segment).read_bytes()
    Path(segment).write_bytes(text.replace(b"28800000", b"28800001", 1))
    assert audit(*verify, state=state).returncode == 1
    Path(segment).unlink()
    assert b"no segment holds entry 1" in audit(*verify, state=state).stdout
    Path(segment).write_bytes(text)
    gone = audit("log", "--after", 0, state=state)
    assert (gone.returncode, b"archive" in gone.stderr) == (3, True)
    late = tmp_path / "late.json"
    late.write_bytes(audit("head", "-o", "json", state=state).stdout)
    arguments = ("restore", copy, "--reason", "disk died", "--lost", late)
    assert audit(*arguments, state=state).returncode == 3  # one is there
    (state / "ledger.db").rename(tmp_path / "old.db")
    done = audit(*arguments, state=state)
    assert done.returncode == 0, done.stderr
    assert audit("verify", "--head", held, state=state).returncode == 0
    lost = audit("verify", "--head", late, state=state)
    assert (lost.returncode, b"restored from a backup" in lost.stdout) == (1, True)


def test_upkeep_is_not_earlier_than_what_was_recorded(state: Path, tmp_path: Path) -> None:
    """A clock that was ahead: verifiers refuse an entry that is dated before the one before it."""
    ahead_ms, copy = now_ms() + 3_600_000, tmp_path / "copy.db"
    with open_file(state / "ledger.db") as ledger:
        ledger.append([replace(draft(11), time_ms=ahead_ms)])
    assert audit("rotate-key", state=state).returncode == 0
    assert audit("archive", tmp_path, "--last", 6, state=state).returncode == 0
    assert audit("backup", copy, state=state).returncode == 0
    (state / "ledger.db").rename(tmp_path / "old.db")
    assert audit("restore", copy, "--reason", "disk died", state=state).returncode == 0
    with open_file(state / "ledger.db") as ledger:
        assert {entry.time_ms for entry in ledger.entries(12)} == {ahead_ms}


def test_a_restored_ledger_goes_on_where_its_backup_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a control plane wrote it, on another machine or before a boot: the time since then is
    what `fairlead clock` asks the operator for. It was the wall clock's, whatever that said, and
    what ran was charged for it."""
    a_year_ago_ms = now_ms() - 365 * 86_400_000
    monkeypatch.setattr(entries, "now_ms", lambda: a_year_ago_ms)
    before, copy = tmp_path / "before", tmp_path / "copy.db"
    before.mkdir()
    with open_file(before / "ledger.db") as ledger:
        world = World(ledger, clocks=Clocks(a_year_ago_ms))
        world.apply(budget("a"), node(), run("r", gpus=4, command=["x"]))
        world.turn()
        last_ms = ledger.head().head.time_ms
    assert audit("backup", copy, state=before).returncode == 0
    (before / "ledger.db").rename(tmp_path / "old.db")
    assert audit("restore", copy, "--reason", "disk died", state=before).returncode == 0
    with open_file(before / "ledger.db") as ledger:
        assert ledger.head().head.epoch == 1
        assert ledger.head().head.time_ms == last_ms


def test_upkeep_can_be_tried_without_doing_it(state: Path, tmp_path: Path) -> None:
    """--dry-run of every upkeep command: the same checks, a sentence, and nothing changed."""
    ledger, copy = state / "ledger.db", tmp_path / "copy.db"
    before = ledger.read_bytes(), sorted(path.name for path in (state / "keys").iterdir())
    archive = tmp_path / "archive"
    archive.mkdir()
    for arguments in (("backup", copy), ("archive", archive, "--last", 6), ("rotate-key",)):
        done = audit(*arguments, "--dry-run", state=state)
        assert (done.returncode, b"(dry run)" in done.stdout) == (0, True), done
    assert not copy.exists()
    assert list(archive.iterdir()) == []
    assert before == (ledger.read_bytes(), sorted(p.name for p in (state / "keys").iterdir()))
    assert audit("archive", archive, "--last", 99, "--dry-run", state=state).returncode == 2
    assert audit("backup", copy, state=state).returncode == 0
    assert audit("backup", copy, "--dry-run", state=state).returncode == 3
    restore = ("restore", copy, "--reason", "x", "--dry-run")
    assert audit(*restore, state=state).returncode == 3, "a ledger is in the way"
    ledger.rename(tmp_path / "old.db")
    assert b"12 entries would be restored" in audit(*restore, state=state).stdout
    assert not ledger.exists()
    (state / "keys").rename(tmp_path / "away")
    assert audit(*restore, state=state).returncode == 3, "the key is not there"


def test_every_answer_is_yaml_too(state: Path) -> None:
    """The same data as JSON."""
    for arguments in (("head",), ("verify",), ("log", "--limit", 1)):
        told = document(*arguments, "-o", "json", state=state)
        said = audit(*arguments, "-o", "yaml", state=state).stdout
        assert list(yaml.safe_load_all(said)) == [told], arguments
