"""What users do to one object: cancel, pause, nominate, shrink, cordon, drain and so on."""

from collections.abc import Callable, Iterable
from functools import partial

from fairlead.engine.gpu.committer import Committer, Context
from fairlead.engine.gpu.effects import Effects
from fairlead.engine.gpu.entries import Document, NewEntry, RunNominated, RunPhase, RunReclaimed
from fairlead.engine.gpu.hosts import foreign
from fairlead.engine.gpu.leases import DRAINED, displaced, end_run, swap, vacated
from fairlead.engine.gpu.objects import Objects, may_touch
from fairlead.engine.gpu.projection import node_spec
from fairlead.engine.gpu.resolver.carry_out import shrink
from fairlead.engine.gpu.resolver.requests import Resolver, cordon
from fairlead.engine.gpu.state import FORCED, Phase
from fairlead.engine.gpu.values import Applied, Author, Forbidden, Refused

Decide = Callable[..., list[NewEntry]]
"""(context, name of the object, and the width of a shrink) to entries."""
OF_ITSELF = frozenset({"cancel", "nominate", "shrink"})
"""What a process of a run may do to its run: give up what it has."""


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
            ("Run", "pause"): partial(self._pause, paused=True),
            ("Run", "resume"): partial(self._pause, paused=False),
            ("Run", "nominate"): partial(self._nominate, nominated=True),
            ("Run", "withdraw"): partial(self._nominate, nominated=False),
            ("Run", "shrink"): partial(shrink, grace=committer.config.grace),
            ("Run", "resolve"): lambda at, run: [],  # the resolver records what there is
            ("Node", "cordon"): partial(cordon, cordoned=True),
            ("Node", "uncordon"): self._uncordon,
            ("Node", "drain"): partial(self._vacate, reason=DRAINED),
            ("Node", "fail"): partial(self._vacate, reason="NodeFailed"),
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
        force: bool = False,
    ) -> Applied:
        """One verb on one object, which is returned as it is then; whether anything changed.

        A dry run says which runs it would touch.
        """
        found = self._decide.get((kind, verb))
        if found is None:
            raise Refused("UnknownVerb", self._unknown(kind, verb))
        committer, resolves = self._committer, (kind, verb) == ("Run", "resolve")
        more: Document = {"width": width} if verb == "shrink" else {}
        more |= {"force": True} if force and verb == "cancel" else {}

        def decide() -> list[NewEntry]:
            self._refuse_others(author, kind, name, verb)
            if resolves:
                self._resolver.refuse_unless_allowed(name, author)
            return found(committer.at(author.user), name, **more)

        with committer.current() as projection:
            if dry_run:
                made, preempted = decide(), self._preempted(kind, name, verb, author)
                changed = bool(made) or resolves
                return self._applied(kind, name, {**_touched(made), **preempted}, changed=changed)
            before = projection.seq
            if resolves:
                self._resolver.start_run(committer.stored(kind, name).name, author)
            elif (kind, verb) == ("Node", "drain") and self._resolver.enforced:
                self._resolver.drain(committer.stored(kind, name), author)
            else:
                committer.commit(decide)
            changed = projection.seq > before
            self._effects.carry_out()
            return self._applied(kind, name, changed=changed)

    def _refuse_others(self, author: Author, kind: str, name: str, verb: str) -> None:
        stored = self._committer.stored(kind, name)
        itself = (kind, name) == ("Run", author.run)
        if itself and verb not in OF_ITSELF:
            allowed = ", ".join(sorted(OF_ITSELF))
            raise Forbidden(f"a run's process may not {verb} its run: expected {allowed}")
        if not itself:
            may_touch(self._projection, author, stored)

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

    def _nominate(self, at: Context, run: str, *, nominated: bool) -> list[NewEntry]:
        if self._projection.runs[run].nominated == nominated:
            return []
        return [at.entry(RunNominated(run, nominated))]

    def _cancel(self, at: Context, run: str, *, force: bool = False) -> list[NewEntry]:
        state = self._projection.runs[run]
        if state.phase.ended:
            raise Refused("RunEnded", f"run {run!r} has ended")
        if state.stopping and (state.forced or not force):
            return []
        if state.phase is Phase.RUNNING and self._effects.has_process(run):
            # Its leases go on until the process is gone: grace is charged like the rest.
            reason = FORCED if force else "CancelRequested"
            return [self._flagged(at, run, reason, stopping=True)]
        why = ("Cancelled", f"cancelled by {at.author}")
        return end_run(at, RunPhase(run, "Failed", *why), "Cancelled", end_ms=at.now_ms)

    def _pause(self, at: Context, run: str, *, paused: bool) -> list[NewEntry]:
        state = self._projection.runs[run]
        if state.phase is not Phase.RUNNING or state.stopping:
            raise Refused("NotRunning", f"run {run!r} is not running")
        if state.paused == paused:
            return []
        if paused and not self._effects.can_pause:
            message = "pods cannot be paused: cancel the run and submit it again"
            raise Refused("CannotPause", message)
        return [self._flagged(at, run, "Paused" if paused else "Resumed", paused=paused)]

    def _flagged(self, at: Context, run: str, reason: str, **changed: bool) -> NewEntry:
        """A run in the same phase, `paused` or `stopping` from now on."""
        state = self._projection.runs[run]
        flags: Document = {"paused": state.paused, "stopping": state.stopping, **changed}
        return at.entry(RunPhase(run, state.phase.value, reason, "", **flags))

    def _uncordon(self, at: Context, node: str) -> list[NewEntry]:
        spec = node_spec(self._projection.objects["Node"][node])
        why = foreign(self._committer.config.host, node, spec)
        if why is not None:
            raise Refused("NotThisHost", why)
        return cordon(at, node, cordoned=False)

    def _vacate(self, at: Context, node: str, *, reason: str) -> list[NewEntry]:
        """Cordon a node; a gang with a device there goes on with its spares, or waits again: where
        it has a process, when that is gone, because it holds devices of other nodes until then."""
        made = cordon(at, node, cordoned=True)
        for run in self._projection.runs_on(node):
            state, process = self._projection.runs[run], self._effects.has_process(run)
            if process and state.is_ending:
                continue
            swapped, entries = swap(at, run, node)
            made += entries
            if not swapped and process and state.reclaim is None:
                made.append(at.entry(displaced(state, run, reason)))
            elif not swapped:
                body = RunPhase(run, "Pending", reason, vacated(reason=reason, nodes=[node]))
                made += end_run(at, body, "NodeFailed", end_ms=at.now_ms)
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
