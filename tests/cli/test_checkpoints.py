"""The head of every reply: signed by a key that is known, and a continuation of the last one seen.

A server that lies is played here by real ledgers: another one, a shorter one, a rewritten one.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.cli.audit.checkpoints import LedgerChanged, check_reply, follow_keys, read_heads
from fairlead.core.audit import SignedHead
from fairlead.ledger.keys import SecretKey, sign_head
from fairlead.ports.faults import PermanentFault
from tests.api.servers import budget
from tests.cli.shells import Shell
from tests.ledger.drafts import drafts
from tests.ledger.memory import MemoryKeys, MemoryLedger

SERVER = "http://127.0.0.1:8470"


class Teller:
    """What a server with that ledger would prove."""

    def __init__(self, ledger: MemoryLedger) -> None:
        self.ledger = ledger

    def consistency(self, old: int, new: int) -> tuple[bytes, ...] | None:
        size = self.ledger.head().head.size
        return tuple(self.ledger.consistency(old, new)) if old <= new <= size else None

    def own_entries(self, size: int) -> list[dict[str, Any]]:
        return [
            {
                "seq": entry.seq,
                "entry": entry.data.decode(),
                "proof": [each.hex() for each in self.ledger.inclusion(entry.seq, size)],
            }
            for entry in self.ledger.entries(0, 1_000)
            if entry.kind in ("ledger.created", "key.rotated", "ledger.epoch") and entry.seq <= size
        ]


@pytest.fixture(autouse=True)
def heads_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "state" / "heads.json"
    monkeypatch.setenv("FAIRLEAD_HEADS", str(path))
    return path


def see(ledger: MemoryLedger, signed: SignedHead | None = None) -> None:
    check_reply(SERVER, signed or ledger.head(), Teller(ledger))


def grown(ledger: MemoryLedger, first: int, count: int = 3) -> MemoryLedger:
    ledger.append(drafts(first, count))
    return ledger


def test_a_ledger_that_only_grows_is_believed(heads_file: Path) -> None:
    """The newest head is kept; an older reply that comes late does not replace it."""
    ledger = MemoryLedger(time_ms=0)
    see(ledger)
    early = grown(ledger, 0).head()
    see(ledger)
    see(grown(ledger, 10))
    see(ledger, early)
    kept = read_heads().seen(SERVER)
    assert kept is not None
    assert kept.size == ledger.head().head.size == 7
    assert kept.signature == ledger.head().signature
    assert heads_file.stat().st_mode & 0o777 <= 0o644
    assert heads_file.parent.stat().st_mode & 0o777 == 0o700


def test_another_a_shorter_and_a_rewritten_ledger_are_noticed(heads_file: Path) -> None:
    """Loudly, with both heads kept as evidence; and the head that was kept stays."""
    keys = OneKey()
    ledger, twin = MemoryLedger(keys, time_ms=0), MemoryLedger(keys, time_ms=0)
    see(grown(ledger, 0))
    before = heads_file.read_bytes()
    # The operator has the key: every signature holds, and still the past is another one.
    rewritten = grown(grown(_copy(ledger, keys), 50, 2), 60, 4)
    shorter = _copy(ledger, keys)
    for lying, what in (
        (twin, "not the ledger that was seen"),
        (rewritten, "does not continue"),
        (shorter, "does not continue"),
    ):
        with pytest.raises(LedgerChanged, match=what) as noticed:
            see(lying)
        text = str(noticed.value)
        assert text.startswith(f"THE LEDGER OF {SERVER} CANNOT BE TRUSTED")
        assert f"fairlead heads forget {SERVER}" in text
        assert heads_file.read_bytes() == before
    evidence = list(heads_file.parent.glob("evidence-*.json"))
    assert evidence
    for path in evidence:
        both = json.loads(path.read_text())
        assert both["before"]["root"] != both["now"]["root"]


class OneKey(MemoryKeys):
    """Always the same key: whoever has it can begin the ledger anew."""

    def create(self) -> SecretKey:
        return next(iter(self._loaded.values()), None) or super().create()


def _copy(ledger: MemoryLedger, keys: OneKey) -> MemoryLedger:
    """A ledger with the same id and key, and none of the entries."""
    return MemoryLedger(keys, time_ms=0, ledger_id=ledger.head().head.ledger)


def test_a_signature_that_does_not_hold_is_noticed() -> None:
    """Of the first head as of any later one; whoever signed it, it was not the ledger's key."""
    ledger, other = MemoryLedger(time_ms=0), MemoryLedger(time_ms=0)
    head = grown(ledger, 0).head()
    forged = SignedHead(head.head, other.head().signature)
    with pytest.raises(LedgerChanged, match="signature"):
        see(ledger, forged)
    see(ledger)
    later = grown(ledger, 10).head()
    with pytest.raises(LedgerChanged, match="signature"):
        see(ledger, SignedHead(later.head, forged.signature))
    with pytest.raises(LedgerChanged, match="no checkpoint"):
        check_reply(SERVER, None, Teller(ledger))
    see(ledger)


def test_a_new_key_is_believed_when_the_old_one_introduced_it() -> None:
    """And only then: a key that was replaced, or a log that hides the rotation, is not."""
    keys = MemoryKeys()
    ledger = MemoryLedger(keys, time_ms=0)
    old = keys.load(ledger.head().head.key_id)
    see(grown(ledger, 0))
    ledger.rotate_key(time_ms=1, author="cli:x")
    head = grown(ledger, 10).head()
    hidden = Teller(ledger).own_entries(head.head.size)[:1]
    assert "not signed with the key in force" in str(follow_keys(head, hidden))
    see(ledger)
    kept = read_heads().seen(SERVER)
    assert kept is not None
    assert len(kept.keys) == 2
    later = replace(grown(ledger, 20).head().head, key_id=old.key_id)
    with pytest.raises(LedgerChanged, match="was replaced"):
        see(ledger, sign_head(later, old))
    see(ledger)
    twice = Teller(ledger).own_entries(head.head.size)
    twice[1]["entry"] = twice[1]["entry"].replace("rotated", "rotatad")
    assert "not in the log" in str(follow_keys(head, twice))
    for rubbish in ([{}], [{"seq": 1}], [{"seq": "x", "entry": "", "proof": []}], []):
        assert isinstance(follow_keys(head, rubbish), str)


def test_a_restored_backup_is_said() -> None:
    """It is the one way to become shorter; whoever knows of it says so with `forget`."""
    ledger = MemoryLedger(time_ms=0)
    see(grown(ledger, 0))
    ledger.begin_epoch(time_ms=1, author="cli:x", reason="disk died")
    with pytest.raises(LedgerChanged, match="restored from a backup"):
        see(ledger)


def test_heads_that_cannot_be_read_are_not_passed_over(heads_file: Path) -> None:
    """Who damages the file must not switch the check off."""
    heads_file.parent.mkdir()
    heads_file.write_text("{")
    with pytest.raises(PermanentFault, match="remove the file"):
        see(MemoryLedger(time_ms=0))


def test_a_ledger_is_one_ledger_at_every_address(heads_file: Path) -> None:
    """A rollback that was seen on the socket is noticed over HTTP; and forgotten for both."""
    keys = OneKey()
    ledger = MemoryLedger(keys, time_ms=0)
    check_reply("/run/fairlead.sock", grown(ledger, 0).head(), Teller(ledger))
    shorter = _copy(ledger, keys)
    with pytest.raises(LedgerChanged, match="does not continue"):
        check_reply(SERVER, shorter.head(), Teller(shorter))
    see(ledger)
    assert set(read_heads().servers) == {"/run/fairlead.sock", SERVER}
    assert len(read_heads().ledgers) == 1
    assert read_heads().without(SERVER).servers == {}


def test_checkpoints_of_the_former_format_are_read(heads_file: Path) -> None:
    """One for each address; of two for one ledger the newer counts."""
    ledger = MemoryLedger(time_ms=0)
    see(ledger)
    old = msgspec.to_builtins(read_heads().seen(SERVER))
    see(grown(ledger, 0))
    new = msgspec.to_builtins(read_heads().seen(SERVER))
    heads_file.write_bytes(msgspec.json.encode({"/a.sock": new, SERVER: old}))
    kept = read_heads()
    assert (kept.seen(SERVER), kept.servers.keys()) == (kept.seen("/a.sock"), {"/a.sock", SERVER})
    assert msgspec.to_builtins(kept.seen(SERVER)) == new


def test_a_change_is_refused_before_it_is_done(shell: Shell) -> None:
    """The client holds a checkpoint of another history: the server refuses, and does nothing."""
    shell.ok("budgets")
    kept = msgspec.json.decode(shell.heads.read_bytes())
    (ledger,) = kept["ledgers"]
    for lie in ({"root": "0" * 64}, {"size": 10**6}, {"epoch": 7}):
        lying = {**kept, "ledgers": {ledger: {**kept["ledgers"][ledger], **lie}}}
        shell.heads.write_bytes(msgspec.json.encode(lying))
        refused = shell("submit", "--name", "never", "--", "true")
        assert refused.returncode == 3
        assert shell.server.send("GET", "/v1/objects/Run/never").status == 404
        size = shell.server.ok("GET", "/v1/head")["size"]
        told = shell("apply", "-f", "-", input=json.dumps(budget("team-y")))
        assert told.returncode == 3
        assert "CANNOT BE TRUSTED" in told.stderr
        assert "nothing was changed" in told.stderr
        assert shell.server.ok("GET", "/v1/head")["size"] == size
    shell.heads.unlink()
    for header, status in (("x", 422), (f"{ledger}:0:1:{'0' * 64}", 409), ("a:0:1:00", 409)):
        reply = shell.server.send(
            *("PUT", "/v1/users/eve", {"owners": []}), headers={"Fairlead-Held": header}
        )
        assert reply.status == status, reply


def test_the_command_line_notices_and_forgets(shell: Shell) -> None:
    """Exit code 3 whatever was asked, until the user says that it is meant."""
    shell.ok("budgets")
    kept = msgspec.json.decode(shell.heads.read_bytes())
    ((where, ledger),) = kept["servers"].items()
    shell.server.apply(budget("team-z"))
    shell.ok("budgets")
    now = msgspec.json.decode(shell.heads.read_bytes())["ledgers"][ledger]
    kept = kept["ledgers"][ledger]
    assert now["size"] > kept["size"]
    for lie in (
        {"root": "0" * 64},
        {"size": 10**6},
        {"ledger": "another"},
        {"epoch": 7},
        {"keys": {"0" * 16: "0" * 64}},
    ):
        shell.heads.write_bytes(msgspec.json.encode({where: {**kept, **lie}}))
        for arguments in (("budgets",), ("watch", "--after", "0", "--limit", "1")):
            noticed = shell(*arguments)
            assert noticed.returncode == 3, (lie, noticed)
            assert "CANNOT BE TRUSTED" in noticed.stderr
    assert where in shell.ok("heads", "list")
    assert shell("heads", "forget", "nobody").returncode == 2
    shell.ok("heads", "forget", where, "--dry-run")
    assert shell("budgets").returncode == 3
    shell.ok("heads", "forget", where)
    shell.ok("budgets")
