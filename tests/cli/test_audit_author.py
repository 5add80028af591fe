"""Who an upkeep entry of the ledger names."""

import os

import pytest

from fairlead.cli.audit import commands


def test_a_user_without_a_name_is_named_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container, where the user of the pod is in no list of users."""

    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 65532")

    monkeypatch.setattr(commands.getpass, "getuser", unknown)
    assert commands._author() == f"cli:{os.getuid()}"
