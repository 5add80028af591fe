"""What users do to one object: cancel, pause, nominate, shrink, cordon, drain and so on."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fairlead.engine.gpu.committer import Committer
from fairlead.engine.gpu.config import Config
from fairlead.engine.gpu.effects import Effects
from fairlead.engine.gpu.entries import Document, NewEntry, RunNominated, RunPhase, RunReclaimed
from fairlead.engine.gpu.leases import Ending, end_run, swap
from fairlead.engine.gpu.objects import Objects
from fairlead.engine.gpu.resolver.carry_out import shrink
from fairlead.engine.gpu.resolver.requests import Resolver, cordon
from fairlead.engine.gpu.state import Phase, Stored
from fairlead.engine.gpu.submissions import may_touch
from fairlead.engine.gpu.values import Applied, Author, Refused


@dataclass(frozen=True, slots=True)
class Command:
    """A verb on an object that is there."""

    object: Stored
    author: Author
    now_ms: int
    width: int = 0
    """Of a shrink."""


Decide = Callable[[Command], list[NewEntry]]


class Verbs:
    """Run: cancel, pause, resume, nominate, withdraw, shrink (`width`), resolve. Node: cordon,
    uncordon, drain, fail."""

    def __init__(
        self,
        committer: Committer,
        config: Config,
        effects: Effects,
        objects: Objects,
        resolver: Resolver,
        *,
        enforced: bool,
    ) -> None:
        self._committer, self._config, self._effects = committer, config, effects
        self._objects, self._resolver, self._enforced = objects, resolver, enforced
        self._projection = committer.projection
        self._decide: dict[tuple[str, str], Decide] = {
            ("Run", "cancel"): self._cancel,
            ("Run", "pause"): lambda command: self._pause(command, paused=True),
            ("Run", "resume"): lambda command: self._pause(command, paused=False),
            ("Run", "nominate"): lambda command: self._nominate(command, nominated=True),
            ("Run", "withdraw"): lambda command: self._nominate(command, nominated=False),
            ("Run", "shrink"): self._shrink,
            ("Run", "resolve"): self._may_resolve,
            ("Node", "cordon"): lambda command: _cordon(command, cordoned=True),
            ("Node", "uncordon"): lambda command: _cordon(command, cordoned=False),
            ("Node", "drain"): lambda command: self._vacate(command, "Drained"),
            ("Node", "fail"): lambda command: self._vacate(command, "NodeFailed"),
        }

    def act(
        self,
        kind: str,
        name: str,
        verb: str,
        *,
        author: Author,
        dry_run: bool = False,
        width: int = 0,
    ) -> Applied:
        """One verb on one object, which is returned as it is then; whether anything changed.

        A dry run says which runs it would touch.
        """
        found = self._decide.get((kind, verb))
        if found is None:
            raise Refused("UnknownVerb", f"a {kind} cannot {verb!r}")
        committer = self._committer

        def decide() -> list[NewEntry]:
            stored = committer.stored(kind, name)
            may_touch(self._projection, author, stored)
            return found(Command(stored, author, committer.now(), width))

        with committer.current() as projection:
            if dry_run:
                made = decide()
                changed = bool(made) or verb == "resolve"
                preview = {**_touched(made), **self._preempted(kind, name, verb, author)}
                return self._applied(kind, name, preview, changed=changed)
            before = projection.seq
            if (kind, verb) == ("Run", "resolve"):
                committer.stored(kind, name)
                self._resolver.start_run(name, author)
            elif (kind, verb) == ("Node", "drain") and self._enforced:
                self._resolver.drain(committer.stored(kind, name), author)
            else:
                committer.commit(decide)
            changed = projection.seq > before
            self._effects.carry_out()
            return self._applied(kind, name, changed=changed)

    def _applied(
        self, kind: str, name: str, preview: Document | None = None, *, changed: bool
    ) -> Applied:
        document = self._objects.document(kind, name)
        return Applied(document, "configured" if changed else "unchanged", preview)

    def _preempted(self, kind: str, name: str, verb: str, author: Author) -> Document:
        """What a dry run says of other runs; with a resolver, it decides which a drain hits."""
        if (kind, verb) == ("Run", "resolve"):
            return {"forecast": self._resolver.preview(kind, name)}
        if (kind, verb) == ("Node", "drain") and self._enforced:
            stored = self._committer.stored(kind, name)
            return {"runs": [], "forecast": self._resolver.preview_drain(stored, author)}
        return {}

    # -- runs -------------------------------------------------------------------------------------

    def _may_resolve(self, command: Command) -> list[NewEntry]:
        """Nothing is recorded for it; raises unless the author may."""
        self._resolver.refuse_unless_allowed(command.object.name, command.author)
        return []

    def _nominate(self, command: Command, *, nominated: bool) -> list[NewEntry]:
        run = command.object.name
        if self._projection.runs[run].nominated == nominated:
            return []
        return [self._committer.new(RunNominated(run, nominated), command.author.user)]

    def _shrink(self, command: Command) -> list[NewEntry]:
        entry = shrink(
            self._projection,
            command.object.name,
            command.width,
            default_grace_ms=self._config.grace_ms,
            now_ms=command.now_ms,
            author=command.author.user,
        )
        return [entry]

    def _cancel(self, command: Command) -> list[NewEntry]:
        run, user = command.object.name, command.author.user
        state = self._projection.runs[run]
        if state.phase.ended:
            raise Refused("RunEnded", f"run {run!r} has ended")
        if state.stopping:
            return []
        if state.phase is Phase.RUNNING and self._effects.has_process(run):
            # Its leases go on until the process is gone: grace is charged like the rest.
            return [self._flagged(command, "CancelRequested", stopping=True)]
        ending = Ending(
            phase=Phase.FAILED,
            reason="Cancelled",
            message=f"cancelled by {user}",
            lease_reason="Cancelled",
        )
        now_ms = command.now_ms
        return end_run(self._projection, run, ending, end_ms=now_ms, now_ms=now_ms, author=user)

    def _pause(self, command: Command, *, paused: bool) -> list[NewEntry]:
        run = command.object.name
        state = self._projection.runs[run]
        if state.phase is not Phase.RUNNING or state.stopping:
            raise Refused("NotRunning", f"run {run!r} is not running")
        if state.paused == paused:
            return []
        return [self._flagged(command, "Paused" if paused else "Resumed", paused=paused)]

    def _flagged(
        self,
        command: Command,
        reason: str,
        *,
        paused: bool | None = None,
        stopping: bool | None = None,
    ) -> NewEntry:
        """The same phase with another flag."""
        state = self._projection.runs[command.object.name]
        body = RunPhase(
            run=command.object.name,
            phase=state.phase.value,
            reason=reason,
            message="",
            paused=state.paused if paused is None else paused,
            stopping=state.stopping if stopping is None else stopping,
        )
        return self._committer.new(body, command.author.user)

    # -- nodes ------------------------------------------------------------------------------------

    def _vacate(self, command: Command, reason: str) -> list[NewEntry]:
        """Cordon a node; a gang with a device there goes on with its spares, or waits again."""
        node, user, now_ms = command.object.name, command.author.user, command.now_ms
        made = _cordon(command, cordoned=True)
        ending = Ending(
            phase=Phase.PENDING,
            reason=reason,
            message=f"node {node} is out of service",
            lease_reason="NodeFailed",
        )
        for run in self._projection.runs_on(node):
            made += swap(self._projection, run, node, now_ms, user) or end_run(
                self._projection, run, ending, end_ms=now_ms, now_ms=now_ms, author=user
            )
        return made


def _cordon(command: Command, *, cordoned: bool) -> list[NewEntry]:
    return cordon(command.object, command.now_ms, command.author.user, cordoned=cordoned)


def _touched(made: Iterable[NewEntry]) -> Document:
    """The runs that would be in another phase, paused or stopped; and leases that would end."""
    runs: list[Document] = []
    leases: list[str] = []
    for body in (entry.body for entry in made):
        if isinstance(body, RunPhase):
            runs.append(
                {
                    "run": body.run,
                    "phase": body.phase,
                    "reason": body.reason,
                    "message": body.message,
                }
            )
        elif isinstance(body, RunReclaimed):
            leases += sorted(body.leases)
    return {"runs": runs, "leases": leases}
