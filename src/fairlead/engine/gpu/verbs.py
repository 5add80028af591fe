"""What users do to one object: cancel, pause, nominate, shrink, cordon, drain and so on."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fairlead.engine.gpu.committer import Committer
from fairlead.engine.gpu.effects import Effects
from fairlead.engine.gpu.entries import Document, NewEntry, RunNominated, RunPhase, RunReclaimed
from fairlead.engine.gpu.leases import Context, Ending, end_run, swap
from fairlead.engine.gpu.objects import Objects, may_touch
from fairlead.engine.gpu.resolver.carry_out import shrink
from fairlead.engine.gpu.resolver.requests import Resolver, cordon
from fairlead.engine.gpu.state import Phase, Stored
from fairlead.engine.gpu.values import Applied, Author, Refused


@dataclass(frozen=True, slots=True)
class ObjectCommand:
    """A verb on an object that is there."""

    object: Stored
    author: Author
    at: Context
    width: int = 0
    """Of a shrink."""


Decide = Callable[[ObjectCommand], list[NewEntry]]


class Verbs:
    """Run: cancel, pause, resume, nominate, withdraw, shrink (`width`), resolve. Node: cordon,
    uncordon, drain, fail."""

    def __init__(
        self, committer: Committer, effects: Effects, objects: Objects, resolver: Resolver
    ) -> None:
        self._committer, self._effects = committer, effects
        self._objects, self._resolver = objects, resolver
        self._projection = committer.projection
        self._decide: dict[tuple[str, str], Decide] = {
            ("Run", "cancel"): self._cancel,
            ("Run", "pause"): lambda command: self._pause(command, paused=True),
            ("Run", "resume"): lambda command: self._pause(command, paused=False),
            ("Run", "nominate"): lambda command: self._nominate(command, nominated=True),
            ("Run", "withdraw"): lambda command: self._nominate(command, nominated=False),
            ("Run", "shrink"): self._shrink,
            ("Run", "resolve"): self._may_resolve,
            ("Node", "cordon"): lambda command: cordon(command.at, command.object, cordoned=True),
            ("Node", "uncordon"): lambda command: cordon(
                command.at, command.object, cordoned=False
            ),
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
            raise Refused("UnknownVerb", self._unknown(kind, verb))
        committer = self._committer

        def decide() -> list[NewEntry]:
            stored = committer.stored(kind, name)
            may_touch(self._projection, author, stored)
            at = Context(self._projection, committer.now(), author.user)
            return found(ObjectCommand(stored, author, at, width))

        with committer.current() as projection:
            if dry_run:
                made, preempted = decide(), self._preempted(kind, name, verb, author)
                changed = bool(made) or verb == "resolve"
                return self._applied(kind, name, {**_touched(made), **preempted}, changed=changed)
            before = projection.seq
            if (kind, verb) == ("Run", "resolve"):
                self._resolver.start_run(committer.stored(kind, name).name, author)
            elif (kind, verb) == ("Node", "drain") and self._resolver.enforced:
                self._resolver.drain(committer.stored(kind, name), author)
            else:
                committer.commit(decide)
            changed = projection.seq > before
            self._effects.carry_out()
            return self._applied(kind, name, changed=changed)

    def _unknown(self, kind: str, verb: str) -> str:
        known = sorted(verb for of, verb in self._decide if of == kind)
        expected = f"{', '.join(known[:-1])} or {known[-1]}" if known else "none"
        return f"unknown action {verb!r} for {kind}: expected {expected}"

    def _applied(
        self, kind: str, name: str, preview: Document | None = None, *, changed: bool
    ) -> Applied:
        document = self._objects.document(kind, name)
        return Applied(document, "configured" if changed else "unchanged", preview)

    def _preempted(self, kind: str, name: str, verb: str, author: Author) -> Document:
        """What a dry run says of other runs; with a resolver, it decides which a drain hits."""
        if (kind, verb) == ("Run", "resolve"):
            return {"forecast": self._resolver.preview(kind, name)}
        if (kind, verb) == ("Node", "drain") and self._resolver.enforced:
            stored = self._committer.stored(kind, name)
            return {"runs": [], "forecast": self._resolver.preview_drain(stored, author)}
        return {}

    # -- runs -------------------------------------------------------------------------------------

    def _may_resolve(self, command: ObjectCommand) -> list[NewEntry]:
        """Nothing is recorded for it; raises unless the author may."""
        self._resolver.refuse_unless_allowed(command.object.name, command.author)
        return []

    def _nominate(self, command: ObjectCommand, *, nominated: bool) -> list[NewEntry]:
        run = command.object.name
        if self._projection.runs[run].nominated == nominated:
            return []
        return [command.at.entry(RunNominated(run, nominated))]

    def _shrink(self, command: ObjectCommand) -> list[NewEntry]:
        run, grace_ms = command.object.name, self._committer.config.grace_ms
        return shrink(command.at, run, command.width, default_grace_ms=grace_ms)

    def _cancel(self, command: ObjectCommand) -> list[NewEntry]:
        run, at = command.object.name, command.at
        state = self._projection.runs[run]
        if state.phase.ended:
            raise Refused("RunEnded", f"run {run!r} has ended")
        if state.stopping:
            return []
        if state.phase is Phase.RUNNING and self._effects.has_process(run):
            # Its leases go on until the process is gone: grace is charged like the rest.
            return [self._flagged(command, "CancelRequested", stopping=True)]
        ending = Ending(Phase.FAILED, "Cancelled", f"cancelled by {at.author}", "Cancelled")
        return end_run(at, run, ending, end_ms=at.now_ms)

    def _pause(self, command: ObjectCommand, *, paused: bool) -> list[NewEntry]:
        run = command.object.name
        state = self._projection.runs[run]
        if state.phase is not Phase.RUNNING or state.stopping:
            raise Refused("NotRunning", f"run {run!r} is not running")
        if state.paused == paused:
            return []
        return [self._flagged(command, "Paused" if paused else "Resumed", paused=paused)]

    def _flagged(self, command: ObjectCommand, reason: str, **changed: bool) -> NewEntry:
        """A run in the same phase, `paused` or `stopping` from now on."""
        run = command.object.name
        state = self._projection.runs[run]
        flags: Document = {"paused": state.paused, "stopping": state.stopping, **changed}
        return command.at.entry(RunPhase(run, state.phase.value, reason, "", **flags))

    # -- nodes ------------------------------------------------------------------------------------

    def _vacate(self, command: ObjectCommand, reason: str) -> list[NewEntry]:
        """Cordon a node; a gang with a device there goes on with its spares, or waits again."""
        node, at = command.object.name, command.at
        made = cordon(at, command.object, cordoned=True)
        message = f"node {node} is out of service"
        ending = Ending(Phase.PENDING, reason, message, "NodeFailed")
        for run in self._projection.runs_on(node):
            swapped, entries = swap(at, run, node)
            made += entries if swapped else [*entries, *end_run(at, run, ending, end_ms=at.now_ms)]
        return made


_SHOWN = ("run", "phase", "reason", "message")


def _touched(made: Iterable[NewEntry]) -> Document:
    """The runs that would be in another phase, paused or stopped; and leases that would end."""
    runs: list[Document] = []
    leases: list[str] = []
    for body in (entry.body for entry in made):
        if isinstance(body, RunPhase):
            runs.append({name: getattr(body, name) for name in _SHOWN})
        elif isinstance(body, RunReclaimed):
            leases += sorted(body.leases)
    return {"runs": runs, "leases": leases}
