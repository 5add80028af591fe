"""Where a ledger is looked for: the environment, then what is usual for the user."""

import os
from pathlib import Path

import pytest

from fairlead.ledger.place import default_ledger, open_file, open_for_reading


def test_the_environment_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """$FAIRLEAD_STATE first; then /var/lib for root, the XDG state directory for others."""
    monkeypatch.setenv("FAIRLEAD_STATE", str(tmp_path))
    assert default_ledger() == tmp_path / "ledger.db"
    monkeypatch.delenv("FAIRLEAD_STATE")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_ledger() == Path("/var/lib/fairlead/ledger.db")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert default_ledger() == tmp_path / "state" / "fairlead" / "ledger.db"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_ledger() == tmp_path / "home/.local/state/fairlead/ledger.db"


def test_keys_lie_beside_the_file(tmp_path: Path) -> None:
    """In a directory of their own; reading needs none of them."""
    open_file(tmp_path / "ledger.db").close()
    assert len(list((tmp_path / "keys").glob("*.pem"))) == 1
    with open_for_reading(tmp_path / "ledger.db") as reader:
        assert reader.head().head.size == 1
