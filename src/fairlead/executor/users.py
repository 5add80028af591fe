"""Who may run for which owner: the launcher's own copy of the bindings, out of proven entries.

The control plane shows each `access.user` entry when it is recorded, and at its start all that are
new. What was shown stays: it is kept in a file of root's, so that a control plane that is taken
over later cannot undo that a right was taken away. It can add a binding, and must record it.

Entries that were moved to an archive cannot be shown. The state that they led to is then taken in
their place, if a `ledger.snapshot` entry has its digest.
"""

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from fairlead.executor.evidence import NotRecorded, expect
from fairlead.host import files

USER, SNAPSHOT, STATE = "access.user", "ledger.snapshot", "api.access"
"""Kinds of entries, and the name of the state that they lead to."""
_BOUND: dict[str, Any] = {"name": str, "owners": [str], "admin": bool}
ROOT = 0


class UserBinding(NamedTuple):
    """From an entry on, a user acts for these owners; an admin for all."""

    seq: int
    owners: tuple[str, ...]
    admin: bool


class UserBindings:
    """All bindings that were shown, in a file; `upto` is the last entry that was looked at."""

    def __init__(self, place: Path) -> None:
        self._place = place
        kept = files.read_json(place) or {"upto": 0, "base": 0, "users": {}}
        self.upto: int = kept["upto"]
        self._base: int = kept["base"]
        self._users: dict[str, list[UserBinding]] = {
            name: [UserBinding(seq, tuple(owners), admin) for seq, owners, admin in rows]
            for name, rows in kept["users"].items()
        }

    def clear(self) -> None:
        """Another ledger is followed."""
        self.upto, self._base, self._users = 0, 0, {}

    def show(self, entries: Iterable[Mapping[str, Any]], upto: int, state: str | None) -> None:
        """Take what proven entries say, in their order; what is known already says nothing new."""
        rows = sorted(entries, key=lambda row: int(row["seq"]))
        if state is not None:
            self._take(state, rows)
        for row in rows:
            if row["kind"] == USER and self.upto < row["seq"] <= upto:
                self._bind(row["seq"], row["body"])
        self.upto = max(self.upto, upto)
        self._keep()

    def check(self, user: str, uid: int, owner: str, seq: int) -> None:
        """Raises `NotRecorded` unless the user acted for the owner when it recorded entry `seq`.
        Root acts for all; whether anything runs as root is not decided here."""
        if uid == ROOT:
            return
        at = max(seq, self._base)  # before that, the bindings are in an archive
        known = [row for row in self._users.get(user, ()) if row.seq <= at]
        if not known or not (known[-1].admin or owner in known[-1].owners):
            raise NotRecorded(f"no entry lets {user!r} act for {owner!r} (fairlead users bind)")

    def _take(self, state: str, rows: list[Mapping[str, Any]]) -> None:
        digest = sha256(state.encode()).hexdigest()
        for row in rows:
            body = row["body"]
            if row["kind"] == SNAPSHOT and (body.get("name"), body.get("digest")) == (
                STATE,
                digest,
            ):
                seq = body.get("after")
                if type(seq) is int and self.upto < seq <= row["seq"]:
                    self._replace(seq, state)
                return
        raise NotRecorded("no entry has the digest of these users")

    def _replace(self, seq: int, state: str) -> None:
        try:
            users = json.loads(state)["users"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise NotRecorded("this is no state of users") from error
        expect(users, {str: _BOUND}, "users")
        for name in self._users.keys() - users.keys():
            self._add(name, UserBinding(seq, (), admin=False))
        for name, row in users.items():
            self._add(name, UserBinding(seq, tuple(row["owners"]), row["admin"]))
        self.upto = self._base = seq

    def _bind(self, seq: int, body: Mapping[str, Any]) -> None:
        expect({name: body.get(name) for name in _BOUND}, _BOUND, f"entry {seq}")
        gone = bool(body.get("gone"))
        owners = () if gone else tuple(body["owners"])
        self._add(body["name"], UserBinding(seq, owners, admin=body["admin"] and not gone))

    def _add(self, user: str, binding: UserBinding) -> None:
        self._users.setdefault(user, []).append(binding)

    def _keep(self) -> None:
        document = {"upto": self.upto, "base": self._base, "users": self._users}
        files.replace_json(self._place, document)
