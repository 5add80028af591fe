"""Users and operators: they send requests, see replies, and ask again where none came."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from fairlead.api.peers import Peer
from fairlead.engine.gpu import ControlPlane
from fairlead.schema.objects import read_manifest
from fairlead.sim.vopr.agents import VoprAgents
from fairlead.sim.vopr.api import OPERATOR, ApiReply, ApiRequest, act, put
from fairlead.sim.vopr.checks import Checker
from fairlead.sim.vopr.disk import Crash
from fairlead.sim.vopr.network import value_of
from fairlead.sim.vopr.replies import Replies
from fairlead.sim.vopr.violation import Violation
from fairlead.sim.vopr.world import VoprWorld

OWNERS = ("a", "b", "c")
USERS = {owner: Peer(4_000_000 + place) for place, owner in enumerate(OWNERS)}
"""Who acts for each owner while an operator has bound them; no user of this machine has the number.
"""
NODES = (("n1", 4, "west"), ("n2", 4, "west"), ("n3", 4, "east"))
NAMES = 12
"""So many names of runs: they are used again."""


class VoprStep(NamedTuple):
    """One thing that happens; numbers are taken modulo what there is."""

    name: str
    a: int = 0
    b: int = 0
    c: int = 0


SHAPES: tuple[dict[str, Any], ...] = (
    {},
    {"duration": "2m"},
    {"env": {"KIND": "deaf"}, "checkpointGrace": "20d"},
    {"env": {"KIND": "fails"}, "restartPolicy": "OnFailure", "backoffLimit": 2},
    {"groupGPUs": 1, "malleable": {"minTotalGPUs": 1, "stepGPUs": 1}},
    {"groupGPUs": 2, "sparesPerGroup": 1},
    {"maxRuntime": "1m"},
    {"funding": {"allowBorrow": True, "allowUnfunded": True}},
    {"location": {"region": "west"}},
    {"location": {"region": "east"}, "duration": "30s"},
    {"env": {"KIND": "broken"}},
    {"command": [], "duration": "45s"},
)


def budget(owner: str, gpus: int, hours: float | None, peer: Peer = OPERATOR) -> ApiRequest:
    envelope: dict[str, Any] = {
        "name": "main",
        "flavor": "H100",
        "concurrency": gpus,
        "recurrence": "daily",
    }
    if hours is not None:
        envelope["maxGPUHours"] = hours
    envelope["lending"] = {"allow": True, "to": ["*"]}
    return put("Budget", owner, {"owner": owner, "envelopes": [envelope]}, peer)


def run_request(
    name: str, owner: str, gpus: int, shape: dict[str, Any], peer: Peer = OPERATOR
) -> ApiRequest:
    asked = {"owner": owner, "flavor": "H100", "totalGPUs": gpus, "command": ["x"]}
    return put("Run", name, {**asked, **shape}, peer)


def judgement(*, accepts: bool, peer: Peer = OPERATOR) -> ApiRequest:
    return ApiRequest("POST", "/v1/clock", {"judgement": "accept" if accepts else "reject"}, peer)


def void(seq: int, reason: str, *, beacon_lost: bool) -> ApiRequest:
    body = {"reason": reason, "beaconLost": beacon_lost}
    return ApiRequest("POST", f"/v1/outcomes/{seq}/void", body)


def bind(owner: str, *, binds: bool) -> ApiRequest:
    """An operator lets a user act for an owner, or no longer."""
    body = {"owners": [owner], "admin": False} if binds else None
    return ApiRequest("PUT" if binds else "DELETE", f"/v1/users/{USERS[owner].uid}", body)


def _bound_by(request: ApiRequest) -> str:
    """The owner whose user a request is about; empty: it is about none."""
    paths = {f"/v1/users/{user.uid}": owner for owner, user in USERS.items()}
    return paths.get(request.path, "")


class Actors:
    """Carries out steps on a world."""

    def __init__(self, world: VoprWorld, checker: Checker) -> None:
        self.world, self.checker = world, checker
        self.agents = VoprAgents(world.entropy.seed)
        self._replies = Replies(checker)
        self.later: list[Sequence[ApiRequest]] = []
        """Requests that are under way: they arrive late, twice, or in another order."""
        self.loses = False
        """Whether the next reply to a change is lost."""
        self.bound: set[str] = set()
        """Owners whose user may act for them, as far as an operator knows."""
        self.unbound = set(OWNERS)
        """Owners whose user may not, for certain."""

    def begin(self) -> None:
        for shape in SHAPES:  # a schedule of refusals would find nothing
            read_manifest(run_request("check", OWNERS[0], 2, shape).body)
        for name, devices, region in NODES:
            spec = {"flavor": "H100", "devices": devices, "location": {"region": region}}
            self.send(put("Node", name, spec))
        for place, owner in enumerate(OWNERS):
            self.send(budget(owner, 4 + 2 * place, (None, 4, 1)[place]))

    def send(self, request: ApiRequest) -> ApiReply:
        """One request and its reply. Where none comes, the client will ask the same again."""
        api = self.world.api()
        self.checker.follow()
        before, changes = len(self.checker.entries), request.method != "GET"
        owner = _bound_by(request)
        self.bound.discard(owner)  # until a reply comes the operator does not know
        self.unbound.discard(owner)
        try:
            reply = api.ask(request, self._replies.held if changes else "")
        except Crash:
            self.later.append([request])
            raise
        if reply.status == 403 and self._is_own(request):
            raise Violation("rights", f"{request}: 403, and it is bound to the owner")
        lost = self.loses and changes
        self._replies.look(request, reply, before, arrives=not lost)
        if lost:
            self.loses = False
            self.later.append([request])
        elif owner and reply.status in (200, 404):
            (self.bound if request.method == "PUT" else self.unbound).add(owner)
        elif reply.done and "/actions/cancel" in request.path:
            metadata = reply.json["object"]["metadata"]
            self.checker.cancelled(metadata["name"], metadata["uid"])
        return reply

    def _is_own(self, request: ApiRequest) -> bool:
        """Whether it is for a run of the owner that its user is bound to, for certain."""
        if request.method != "PUT" or request.body.get("kind") != "Run":
            return False
        owner = str(request.body["spec"]["owner"])
        holder = self.owner_of(request.body["metadata"]["name"])
        bound = owner in self.bound and request.peer == USERS[owner]
        return bound and holder in (None, owner)

    def send_all(self, requests: Sequence[ApiRequest]) -> None:
        """One after the other, until one is refused."""
        for request in requests:
            if not self.send(request).done:
                return

    def of(self, owner: str) -> Peer:
        """Who asks for an owner: its user, or an operator while that is not bound."""
        return USERS[owner] if owner in self.bound else OPERATOR

    def pass_round_on(self, seq: int, *, forged: bool = False) -> bool:
        """The value of the round that an outcome waits for; whether there is one by now."""
        promised = self.plane.committer.projection.resolver.outcomes[seq].beacon
        if promised is None or self.world.time.now_ms < promised.due_ms:
            return False
        value = value_of(promised.round + forged)
        body = {"source": promised.source, "round": promised.round, "value": value}
        reply = self.send(ApiRequest("POST", "/v1/beacons", body))
        if forged and reply.done:
            raise Violation("beacon", f"round {promised.round} has the value of another")
        return True

    def judge_clock(self) -> None:
        """An operator answers what the clock asks, by the seed's number accepting or rejecting."""
        if self.plane.clock.report()["state"] == "held":
            self.send(judgement(accepts=bool(self.world.entropy.seed % 2)))

    def end_waiting(self) -> None:
        """What outcomes wait for comes, or is given up: a clock that was ahead promised a round
        that is years away."""
        for seq in sorted(self.plane.committer.projection.resolver.open_seqs.values()):
            if not self.pass_round_on(seq):
                self.send(void(seq, "its round", beacon_lost=True))

    def release(self) -> None:
        """No run keeps devices for ever: what is paused goes on, what never ends is killed."""
        live = dict(self.plane.committer.projection.live)
        for name, state in live.items():
            if self.plane.committer.projection.run_spec(name).env.get("KIND") == "deaf":
                self.send(act("Run", name, "cancel?force=true"))
            elif state.paused:
                self.send(act("Run", name, "resume"))

    @property
    def plane(self) -> ControlPlane:
        return self.world.up()

    def run_name(self, number: int) -> str:
        return f"r{number % NAMES}"

    def owner_of(self, run: str) -> str | None:
        """As all entries say; None: there is no such run."""
        stored = self.checker.stored("Run", run)
        return None if stored is None else str(stored.document["owner"])
