"""Replay from the ledger: the recorded decision again, byte for byte, or a plain answer."""

import json
import os
import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Any

from fairlead.core.canonical import canonical, digest
from fairlead.core.lottery import Commitment, entropy_hash, reveal
from fairlead.ledger.place import open_file
from fairlead.ledger.replay import replay
from fairlead.ports.ledger import Draft, Entry
from fairlead.schema.kinds import KINDS
from fairlead.schema.replay import Verdict
from tests.cli.shells import run_inside
from tests.ledger.drafts import TIME_MS, draft
from tests.ledger.memory import MemoryLedger

INPUT = {
    "capacity_millicores": 1000,
    "pods": [{"uid": "a", "min_millicores": 100, "max_millicores": 900, "demand": 0.5}],
}
OUTPUT = KINDS["cpu.clear"].run(canonical(INPUT)).result


def decision(body: dict[str, Any], **other: Any) -> Draft:
    """A recorded clearing."""
    given = {"kind": "cpu.clear", "plan_id": None, "effect": None, "input_digest": digest(INPUT)}
    return draft(1, body=body, **given | other)


def test_a_decision_is_the_same_from_body_and_from_blob() -> None:
    """Small inputs are in the entry, large ones beside the log under their digest."""
    ledger = MemoryLedger(time_ms=TIME_MS)
    inline, apart = ledger.append(
        [decision({"input": INPUT, "output": OUTPUT}), decision({"output": OUTPUT})]
    )
    assert replay(ledger, inline).verdict is Verdict.SAME
    missing = replay(ledger, apart)
    assert (missing.verdict, missing.result) == (Verdict.UNKNOWN, None)
    ledger.blob_put(canonical(INPUT))
    assert replay(ledger, apart).verdict is Verdict.SAME


def test_what_differs_and_what_cannot_be_said() -> None:
    """Another output, another input, another version, no decision at all."""
    ledger = MemoryLedger(time_ms=TIME_MS)
    entries = ledger.append(
        [
            decision({"input": INPUT, "output": {**OUTPUT, "total_need": 1}}),
            decision({"input": {**INPUT, "capacity_millicores": 999}, "output": OUTPUT}),
            decision({"input": INPUT, "output": OUTPUT}, version=99),
            decision({"input": INPUT, "output": OUTPUT}, kind="cpu.guess"),
            draft(5),
        ]
    )
    assert [replay(ledger, entry).verdict for entry in entries] == [
        Verdict.DIFFERENT,
        Verdict.DIFFERENT,
        Verdict.UNKNOWN,
        Verdict.UNKNOWN,
        Verdict.UNKNOWN,
    ]


def outcome(ledger: MemoryLedger, **bent: Any) -> Entry:
    """A recorded draw of one run out of two; `bent` replaces fields of its body."""
    runs = [
        {"id": f"r-{i}", "owner": f"o-{i}", "malleable": None, "nominated": False} for i in "ab"
    ]
    leases = [
        {
            "id": f"l-{i}",
            "run": f"r-{i}",
            "role": "active",
            "group": 0,
            "gpus": 1,
            "flavor": "H100",
            "location": {},
            "funded": True,
            "budget": "b-1",
            "envelope": "e-1",
        }
        for i in "ab"
    ]
    scope = {"flavor": "H100", "location": {}, "cap": None}
    conflict = {"scope": scope, "deficit_gpus": 1, "runs": runs, "leases": leases}
    entropy, chain = sha256(b"entropy").digest(), "ab" * 32
    (published,) = ledger.append(
        [draft(1, kind="gpu.resolve.scope", body={"next_commitment": entropy_hash(entropy)})]
    )
    promised = Commitment(
        chain=chain,
        k=0,
        previous_seq=published.seq,
        scope=scope,
        deficit_gpus=1,
        conflict_digest=digest(conflict),
        notice_digest=digest({}),
    )
    (commit,) = ledger.append([draft(2, kind="gpu.resolve.commit", body=promised.document())])
    seed = promised.seed(entropy, None)
    assert seed is not None
    result = KINDS["gpu.resolve"].run(canonical({**conflict, "seed": seed.hex()})).result
    shown = reveal(
        promised,
        commit_seq=commit.seq,
        entropy=entropy,
        next_entropy=bytes(32),
        result_digest=digest(result),
    )
    ledger.blob_put(canonical(conflict))
    ledger.blob_put(canonical(result))
    (drawn,) = ledger.append(
        [draft(3, kind="gpu.resolve.draw", body={**shown.document({}), **bent})]
    )
    return drawn


def test_an_outcome_is_replayed_and_a_bent_one_is_found() -> None:
    """Entropy, seed and label follow from what was committed; the result follows from the seed."""
    ledger = MemoryLedger(time_ms=TIME_MS)
    assert replay(ledger, outcome(ledger)).verdict is Verdict.SAME
    for bent in (
        {"seed": "00" * 32},
        {"entropy": "00" * 32},
        {"label": "verifiable"},
        {"k": 1},
        {"result_digest": digest({"resolved": True})},
    ):
        ledger = MemoryLedger(time_ms=TIME_MS)
        ledger.blob_put(canonical({"resolved": True}))
        assert replay(ledger, outcome(ledger, **bent)).verdict is Verdict.DIFFERENT, bent


def test_replay_from_the_command_line(tmp_path: Path) -> None:
    """Exit code 0, 1 or 3, and 2 for an entry that is not there."""
    with open_file(tmp_path / "ledger.db") as ledger:
        ledger.append(
            [
                decision({"input": INPUT, "output": OUTPUT}),
                decision({"input": INPUT, "output": {}}),
                decision({"input": INPUT, "output": OUTPUT}, version=99),
            ]
        )

    def run(*arguments: object) -> subprocess.CompletedProcess[bytes]:
        environment = {**os.environ, "FAIRLEAD_STATE": str(tmp_path)}
        return run_inside("replay", *map(str, arguments), environment=environment)

    assert run(2).stdout == b"entry 2: same cpu.clear v1\n"
    differs = run(3, "-o", "json")
    assert differs.returncode == 1
    assert canonical(json.loads(differs.stdout)["decided"]) == canonical(OUTPUT)
    assert (run(4).returncode, run(9).returncode) == (3, 2)
