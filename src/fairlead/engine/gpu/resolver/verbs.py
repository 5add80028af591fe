"""Verbs that have others give way: a run that is to start now, a node that is emptied."""

from typing import Any

from fairlead.core.gpu import Scope
from fairlead.engine.gpu.applying import Step, imagined
from fairlead.engine.gpu.projection import Projection, node_spec
from fairlead.engine.gpu.resolver.freeze import Places, in_scope, spared
from fairlead.engine.gpu.resolver.protocol import Case
from fairlead.engine.gpu.resolver.tightening import Tightening
from fairlead.engine.gpu.resolver.winner import deficit_of, need_of
from fairlead.engine.gpu.state import Phase, Stored
from fairlead.engine.gpu.store import Drafts
from fairlead.engine.gpu.swap import swap
from fairlead.engine.gpu.values import Author, Forbidden, Refused


class ResolverVerbs(Tightening):
    """What `act` asks of the resolver."""

    # -- a run that starts now ------------------------------------------------------------------

    def _may_resolve(self, stored: Stored, author: Author) -> Drafts:
        """Nothing is recorded for it; raises for those who may not ask that of others."""
        owner = self._projection.run_spec(stored.name).owner
        if not (author.admin or (author.may_act_for(owner) and owner in self.config.may_resolve)):
            raise Forbidden(f"{author.user} may not have others give way for runs of {owner!r}")
        return []

    def _start_by_resolving(self, stored: Stored, author: Author) -> None:
        """A waiting run starts now, if need be by others giving way; for those who may ask that."""
        run, now_ms = stored.name, self._now()
        self._catch_up()
        self._may_resolve(stored, author)
        state = self._projection.runs[run]
        if state.phase is not Phase.PENDING or state.stopping:
            raise Refused("NotPending", f"run {run!r} is not waiting")
        need = need_of(self._projection, run, now_ms)
        if need.refusal is not None:
            raise Refused(need.refusal["code"], need.refusal["message"])
        if need.gang is None:
            return  # it fits: the next turn starts it
        deficit = deficit_of(self._projection, run, need.gang)
        why = self._hopeless(deficit)
        if why is not None or deficit is None:
            raise Refused(
                "NoDevices" if why is None else why.reason, "" if why is None else why.message
            )
        self._begin(Case("run", deficit.scope, deficit.gpus, author.user, run=run))

    # -- a node that is emptied -----------------------------------------------------------------

    def _drain(self, stored: Stored, author: Author) -> None:
        """Cordon a node; gangs with spares elsewhere go on, and the others give way in order."""
        if not author.admin:
            raise Forbidden(f"{author.user} may not touch Node {stored.name!r}")
        name = stored.name
        self._refuse_open(node_spec(stored).flavor)
        self._commit(lambda: self._emptied(self._stored("Node", name), author))
        case = _left_on(self._projection, stored, author)
        if case is not None:
            self._begin(case)

    def _drain_preview(self, stored: Stored, author: Author) -> dict[str, Any] | None:
        """Who would give way if it were drained now; None: nobody has to."""
        drafts = self._emptied(stored, author)
        world = imagined(self._projection, [Step("configured", draft) for draft in drafts])
        case = _left_on(world, stored, author)
        return None if case is None else self._forecast(case, world)

    def _emptied(self, stored: Stored, author: Author) -> Drafts:
        """Out of service, and who has spares elsewhere goes on with them."""
        drafts = self._cordon(stored, author, cordoned=True)
        for run in self._runs_on(stored.name):
            drafts += swap(self._projection, run, stored.name, self._now(), author.user)
        return drafts

    def _cordon(self, stored: Stored, author: Author, *, cordoned: bool) -> Drafts:
        """The entries that take a node out of service; the control plane's verbs have it."""
        raise NotImplementedError


def _left_on(world: Projection, stored: Stored, author: Author) -> Case | None:
    """What still has to leave a node; None: nothing."""
    scope = Scope(node_spec(stored).flavor, {"node": stored.name})
    found = in_scope(world, scope, Places(world, stored.name))
    gpus = sum(
        lease.gpus
        for run, leases in found.items()
        if spared(world, run, None) is None
        for lease in leases
    )
    return Case("drain", scope, gpus, author.user, node=stored.name) if gpus else None
