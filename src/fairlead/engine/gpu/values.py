"""Settings, authors of commands, what became of them, and the refusals that a command can raise."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from fairlead.core.gpu import (
    HEADS_MAX,
    BackfillPolicy,
    GracePolicy,
    PreemptionPolicy,
    QueuePolicy,
    QuotaPolicy,
    RestartBackoff,
)
from fairlead.core.gpu.clock import ClockPolicy
from fairlead.core.lottery import BeaconNetwork, OwnerWeighting
from fairlead.core.units import HOUR_MS
from fairlead.engine.gpu.entries import Document


@dataclass(frozen=True, slots=True)
class HostNodes:
    """The nodes that this machine's devices make, and how many each has; a note why none do."""

    devices: Mapping[str, int]
    note: str | None = None
    isolation: str = ""
    """What holds a run to its devices, CPUs and memory here, or why nothing does."""


BACKFILL = BackfillPolicy(halving_ms=4 * HOUR_MS, heads_max=HEADS_MAX)
"""Twice or half as long makes little difference (decision 0099)."""


@dataclass(frozen=True, slots=True)
class Config:
    """Settings with their defaults."""

    grace_ms: int = 30_000
    max_grace_ms: int = 600_000
    """What runs may ask for at most; more is cut."""
    near_limit_percent: int = 90
    checkpoint_every: int = 20_000
    """Entries between checkpoints: a start folds at most about as many."""
    resolver: Literal["off", "dry-run", "enforce"] = "dry-run"
    """Preemption: never; previewed only; carried out."""
    may_resolve: frozenset[str] = frozenset()
    """Owners whose runs may preempt others at once, besides by reservation."""
    owner_weighting: OwnerWeighting = OwnerWeighting.OWNERS
    """Between whom the lottery is fair; an outcome keeps what its commitment says."""
    beacon: BeaconNetwork | None = None
    """Public entropy that the operator cannot know in advance; None: outcomes do not wait."""
    hold_ms: int = 120_000
    """How long a commitment that waits for its beacon keeps other runs of the flavor waiting."""
    idle_after_ms: int | None = None
    """After so long without work a run is warned; with `idle_release` it is asked to end."""
    idle_release: bool = False
    preemption: PreemptionPolicy = field(default_factory=PreemptionPolicy)
    """Notice and quota of reservations; which runs are no candidates yet."""
    host: HostNodes | None = None
    """What nodes there can be, besides virtual ones; None: they come from a cluster."""
    restart_backoff: RestartBackoff = field(default_factory=RestartBackoff)
    """How long a run waits before it restarts on its devices."""
    queue: QueuePolicy = field(default_factory=QueuePolicy)
    backfill: BackfillPolicy = BACKFILL
    clock: ClockPolicy = field(default_factory=ClockPolicy)
    """From when on a difference of the clocks stops admission."""
    single_owner: bool = False
    """Whether a second owner is refused: its runs could read and change what others have."""
    quota: QuotaPolicy | None = None
    """What one owner may submit; None: Kubernetes has quotas of its own."""

    @property
    def grace(self) -> GracePolicy:
        return GracePolicy(self.grace_ms, self.max_grace_ms)


@dataclass(frozen=True, slots=True)
class Author:
    """A user, and the owners that the user may act for. An admin may act for all.

    A process of a run is an author of its own: it reads, and acts on that run alone.
    """

    user: str
    owners: frozenset[str] = field(default_factory=frozenset)
    admin: bool = False
    token: str | None = None
    """The id of the token that it came with."""
    in_run: bool = False
    """Whether it is a process of a run, and not the user that the run belongs to."""
    run: str | None = None
    """The name of that run; None where it is over or is not known here."""
    agent: str | None = None
    """The name of a node or traffic agent: it reports, and reads."""
    reports: frozenset[str] = field(default_factory=frozenset)
    """What that agent may report: `node/NAME`, `group/NAME`."""
    session: str | None = None
    """The id of the browser's session that it came with."""

    def may_act_for(self, owner: str) -> bool:
        return self.admin or owner in self.owners

    def may_see(self, run: str, owner: str) -> bool:
        """Whether the command, the variables and the output of a run are shown."""
        return self.may_act_for(owner) or (self.run is not None and self.run == run)


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of a manifest. `preview` says what a dry run would have led to."""

    object: Document
    change: Literal["created", "configured", "unchanged"]
    preview: Document | None = None
    warnings: tuple[str, ...] = ()
    """What is allowed, and almost surely not meant."""


class View(msgspec.Struct, forbid_unknown_fields=True):
    """What users are shown of the control plane, as the API answers it."""


class Denied(Exception):
    """A command is refused: a machine-readable reason and a sentence."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message
        self.path: str | None = None
        """Which manifest of a batch it is about."""


class Forbidden(Denied):
    """The author may not do this (HTTP 403)."""

    def __init__(self, message: str) -> None:
        super().__init__("Forbidden", message)


class NotFound(Denied):
    """There is no such object (HTTP 404)."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__("NotFound", f"there is no {kind} {name!r}")


class EditConflict(Denied):
    """The object is not in the version that was expected (HTTP 409)."""

    def __init__(self, message: str) -> None:
        super().__init__("Conflict", message)


class Refused(Denied):
    """It cannot be done in the present state: in use, ended, not running (HTTP 409)."""
