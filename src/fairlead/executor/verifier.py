"""What the launcher verifies before it acts: by the ledger that it follows, and the users in it."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

from fairlead.executor import environment
from fairlead.executor.evidence import (
    LedgerFollower,
    NotRecorded,
    check_about,
    check_devices,
    check_start,
)
from fairlead.executor.users import ROOT, UserBindings
from fairlead.ports.executor import Job

FOLLOWED, USERS = "followed.json", "users.json"
"""In the launcher's folder, which the control plane cannot write to."""
SYSTEM_UID_MAX = 999
"""Accounts of services, as Debian and systemd number them."""


class Verifier(Protocol):
    """Decides whether what is asked for is recorded; raises `NotRecorded`."""

    def followed(self) -> dict[str, Any]:
        """Where the launcher before ended: its ledger and size, and the entries whose users are
        known."""

    def open(self, head: Mapping[str, Any], public_key: str, continues: list[str]) -> None:
        """Follow the ledger of this checkpoint."""

    def users(self, state: str | None, upto: int, evidence: Any) -> None:
        """Learn who acts for whom."""

    def start(self, job: Job, evidence: Any) -> None: ...
    def resize(
        self,
        run: str,
        devices: Collection[str],
        decision: str,
        held: Mapping[str, Collection[str]],
        evidence: Any,
    ) -> None:
        """`held`: the jobs of the run, and the devices that they have."""

    def act(self, run: str, decision: str, jobs: Collection[str], evidence: Any) -> None:
        """What takes from a run, or lets it go on: stop, pause, resume, warn."""

    def repeat(self, evidence: Any) -> None:
        """What does nothing: only the checkpoint counts."""

    def size(self) -> int:
        """The entries of the last checkpoint."""


class LedgerVerifier:
    """By the ledger that the launcher follows. Its memory is in `folder`. `group`: only its members
    run commands, by the operator's word; None: any user but system accounts."""

    def __init__(self, folder: Path, control_uid: int, group: int | None = None) -> None:
        self._ledger, self._control_uid = LedgerFollower(folder / FOLLOWED), control_uid
        self._group = group
        self._users = UserBindings(folder / USERS)
        if self._ledger.kept is None:
            self._users.clear()

    def followed(self) -> dict[str, Any]:
        kept = self._ledger.kept
        size = 0 if kept is None else kept.size
        return {"size": size, "users": self._users.upto}

    def open(self, head: Mapping[str, Any], public_key: str, continues: list[str]) -> None:
        self._ledger.pin(head, public_key, continues)

    def users(self, state: str | None, upto: int, evidence: Any) -> None:
        entries = self._ledger.entries(evidence)
        if not 0 <= upto <= self.size():
            raise NotRecorded(f"there is no entry {upto}")
        self._ledger.keep()  # first: no user is known of entries that are not
        self._users.show(entries, upto, state)

    def start(self, job: Job, evidence: Any) -> None:
        submitted = check_start(job, self._ledger.entries(evidence))
        name = job.user or ""
        try:
            user = environment.account(name)
        except environment.BadEnvironment:
            return  # the executor says why, as the end of the run
        self._check_account(job.run, user)
        self._users.check(name, user.uid, job.owner, submitted)

    def _check_account(self, run: str, user: environment.CommandUser) -> None:
        """What no entry can change: the ledger is the control plane's, the options are not."""
        if user.uid == self._control_uid:
            raise NotRecorded(f"{run} would run as the user that holds the ledger's keys")
        if user.uid == ROOT:
            return  # by --allow-root, or not at all
        if self._group is None and user.uid <= SYSTEM_UID_MAX:
            raise NotRecorded(
                f"{user.name!r} is a system account; to run commands as it, start `fairlead up` "
                "with --run-users and a group that it is in"
            )
        if self._group is not None and self._group not in user.groups:
            raise NotRecorded(f"{user.name!r} is not in the group that --run-users names")

    def resize(
        self,
        run: str,
        devices: Collection[str],
        decision: str,
        held: Mapping[str, Collection[str]],
        evidence: Any,
    ) -> None:
        entries = self._ledger.entries(evidence)
        check_about(run, decision, entries, held)
        check_devices(run, devices, entries, {slot for slots in held.values() for slot in slots})

    def act(self, run: str, decision: str, jobs: Collection[str], evidence: Any) -> None:
        check_about(run, decision, self._ledger.entries(evidence), jobs)

    def repeat(self, evidence: Any) -> None:
        self._ledger.entries(evidence)

    def size(self) -> int:
        return 0 if self._ledger.head is None else self._ledger.head.size
