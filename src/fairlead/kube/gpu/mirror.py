"""The mirror: status, conditions, GPULeases, ResolverOutcomes and Events show what the ledger says.

What is shown follows the ledger's entries; nothing reads it back. After a start everything is
compared once with what the cluster shows.
"""

import heapq
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import Future
from functools import partial
from itertools import islice

import msgspec

from fairlead.engine.gpu import Author, ControlPlane
from fairlead.engine.gpu.events import EventTail
from fairlead.engine.gpu.resolver.preview import without_names
from fairlead.engine.gpu.state import Phase
from fairlead.engine.gpu.values import Denied
from fairlead.kube.client import MISREAD, ApiError, Document, KubeClient
from fairlead.kube.conditions import Conditions
from fairlead.kube.gpu.announce import announcements, event_of
from fairlead.kube.gpu.audit import Auditor
from fairlead.kube.gpu.front import FrontEnd
from fairlead.kube.gpu.items import (
    EVENTS,
    TOLD,
    Item,
    ItemPart,
    is_told,
    items_of,
    key_named,
    lease_item,
    outcome_item,
)
from fairlead.kube.gpu.lease_mirror import LeaseMirror, Write, as_leased
from fairlead.kube.kinds import KINDS, as_named_in, engine_name, kube_name
from fairlead.kube.watch import Key, Sources
from fairlead.ports.faults import Fault, TemporaryFault
from fairlead.ports.ledger import Archived
from fairlead.schema.objects import API_VERSION
from fairlead.schema.times import format_time

_PUBLIC = Author("kubernetes-mirror")
"""All readers see outcomes: under pseudonyms."""
SHOWN = 20
"""Outcomes that a new leader shows again: its predecessor may have died before it could."""
PAGE = 100
"""Entries in memory at once: each comes with all that it was decided on."""
RECENT_MS, RECENT_ENTRIES = 300_000, 1_000
"""Entries whose Events a new leader writes again, for the same reason; those that exist stay."""


LAST = -(10**9)
"""Behind every number of GPUs."""
ENDED = frozenset(phase.value for phase in Phase if phase.ended)
AHEAD_S = 5.0
"""Writes for so long are handed over at once, or for half as long again as the last turn took: on a
busy machine a turn is late, and the client's limit is not to be left unused."""
STALE = 100
"""Ranks of the past that are not worth a look."""
OLDEST = 500
"""One in so many writes is of the item that waits longest, whatever it is: nothing waits for ever,
and where the client's limit binds for minutes this costs runs that start a 500th of it."""


Rank = tuple[int, int, int]
"""The smallest is shown first."""


class Mirror:
    """Shows what changed, beside the turns: what is most important first, and of each object the
    newest state only. `turn` after every turn of the engine."""

    def __init__(
        self,
        client: KubeClient,
        plane: ControlPlane,
        sources: Sources,
        front: FrontEnd,
        *,
        auditor: Auditor,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._say = say
        self._client, self._plane, self._sources = client, plane, sources
        self._front, self._auditor = front, auditor
        self._leases = LeaseMirror(client, plane, sources.leases, auditor)
        self._runs = plane.committer.projection.runs
        self._tail: EventTail[Item] = plane.events.follow(items_of, is_told)
        """What happened since the last turn."""
        self._compared = False
        """Whether all that the cluster shows was compared once."""
        self._due: dict[Item, Rank] = {}
        """What is to be shown, the oldest first; it stays here until it is handed over."""
        self._ranked: list[tuple[Rank, Item]] = []
        """A heap of the same, and of ranks that items had before, up to as many again: thousands
        wait, and a turn hands over a few."""
        self._news: set[Item] = set()
        """What something happened to since the last turn."""
        self._under_way: dict[Item, tuple[Future[bool], Rank]] = {}
        """What is handed over, and by which rank."""
        self._events: dict[Item, tuple[str, bytes]] = {}
        """As text: thousands may wait, and a document takes eight times as much."""
        self._turned_s = time.monotonic()
        self._chosen = 0
        """Writes since the last one of the oldest item, of turns in which not all had room."""
        self._phases: dict[Key, str] = {}
        """Those that are shown of runs that have not ended."""

    def turn(self) -> None:
        """Raises a fault of what could not be written; it is tried again."""
        faults = self._take_done()
        self._look()
        for pair in self._front.take_judged():
            self._news.add(Item(ItemPart.OBJECT, *pair))
            if pair in self._front.unheld and self._holds(*pair):
                self._news.add(Item(ItemPart.FINALIZER, *pair))
        self._take_audited()
        news, self._news = self._news, set()
        for item in sorted(news):
            if self._is_over(item):
                self._due.pop(item, None)
                if item.part is ItemPart.FINALIZER:
                    self._front.unheld.discard((item.kind, item.key))
            else:
                self._want(item)
        if len(self._ranked) > 2 * len(self._due) + STALE:
            self._ranked = [(rank, item) for item, rank in self._due.items()]
            heapq.heapify(self._ranked)
        with self._plane.committer.current():  # which is read once for all of them
            self._hand_over()
        if faults:
            raise faults[0]

    def _take_audited(self) -> None:
        changed, self._auditor.changed = self._auditor.changed, set()
        for run in changed:
            self._news.add(Item(ItemPart.OBJECT, "Run", Key(*kube_name(run))))
            state = self._plane.committer.projection.live.get(run)
            for name in () if state is None else state.leases:
                self._news.add(lease_item(name))

    def wait(self) -> None:
        """Until what was handed over is written, or has failed."""
        futures.wait([future for future, _ in self._under_way.values()])

    def _take_done(self) -> list[Fault]:
        faults: list[Fault] = []
        done = [(item, future) for item, (future, _) in self._under_way.items() if future.done()]
        for item, future in done:
            del self._under_way[item]
            shown = False
            try:
                shown = not future.cancelled() and future.result()
            except Fault as fault:
                faults.append(fault)
            except MISREAD as error:  # one of them must not keep the others waiting
                faults.append(TemporaryFault(f"{item.kind} {item.key}: {error!r}"))
            if not shown:
                self._news.add(item)
                self._phases.pop(item.key, None)
            elif item.part is ItemPart.EVENT:
                del self._events[item]
            elif item.part is ItemPart.FINALIZER:
                self._front.unheld.discard((item.kind, item.key))
        return faults

    def _hand_over(self) -> None:
        """The most important ones, as they are now."""
        now_s = time.monotonic()
        span_s, self._turned_s = now_s - self._turned_s, now_s
        room = self._client.room(max(AHEAD_S, 1.5 * span_s)) - len(self._under_way)
        if room <= 0 or not self._due:
            return
        busy = {(item.kind, item.key): item for item in self._under_way}
        ending, later = self._leases.ending(), list[Item]()
        for item in islice(self._first(room), room + len(busy)):
            other = busy.get((item.kind, item.key))
            if other is not None and not self._take_back(other, item):
                later.append(item)  # one write of each at a time
                continue
            write = self._write_of(item, ending)
            if write is None:
                later.append(item)  # not yet
                continue
            rank = self._due.pop(item)
            if write is not _nothing:
                busy[item.kind, item.key] = item
                self._under_way[item] = self._client.submit(write, rank), rank
                room -= 1
            if not room:
                break
        for item in later:
            heapq.heappush(self._ranked, (self._due[item], item))

    def _take_back(self, other: Item, item: Item) -> bool:
        """Whether a write that was handed over by a lower rank than another one of its object is
        due by now, or than its own newest state, is not begun: then it is due again."""
        future, rank = self._under_way[other]
        if rank <= self._due[item] or not future.cancel():
            return False
        del self._under_way[other]
        self._news.add(other)
        self._phases.pop(other.key, None)
        return True

    def _first(self, room: int) -> Iterator[Item]:
        """Those that wait longest, a few, then by rank; each once."""
        seen: set[Item] = set()
        if len(self._due) > room:
            count, self._chosen = divmod(self._chosen + room, OLDEST)
            seen.update(islice(self._due, count))
            yield from sorted(seen)
        while self._ranked:
            rank, item = heapq.heappop(self._ranked)
            if item not in seen and self._due.get(item) == rank:
                seen.add(item)
                yield item

    def _want(self, item: Item) -> None:
        """An item is to be shown, by its present rank."""
        rank = self._rank(item)
        if self._due.get(item) != rank:
            if item.part in (ItemPart.OBJECT, ItemPart.FINALIZER):
                item = item._replace(key=self._sources.of(item.kind).same(item.key))
            self._due[item] = rank
            heapq.heappush(self._ranked, (rank, item))

    def _rank(self, item: Item) -> Rank:
        """What is shown first: who was preempted, then who may run, of these the widest; how runs
        ended; the finalizers of runs that hold something; leases; who waits; what budgets have
        left."""
        if item.part is ItemPart.OBJECT and item.kind == "Run":
            return self._rank_of_run(item.key)
        return _BUDGET if item.kind == "Budget" else _RANKS.get(item.part, _OTHER)

    def _rank_of_run(self, key: Key) -> Rank:
        state = self._runs.get(engine_name(*key))
        if state is None:
            return (1, 0, 0)
        shown, phase = self._phases.get(key, ""), state.phase.value
        admitted = ("Running", "Completed")
        if phase in admitted and shown not in admitted:
            gpus = self._plane.committer.projection.run_spec(engine_name(*key)).gpus
            return (0, -gpus, state.submitted_seq)
        if phase == "Pending":
            return (5 if shown in ("", phase) else 0, LAST, state.submitted_seq)
        return (1, 0, state.submitted_seq)

    def _write_of(self, item: Item, ending: set[str]) -> Write | None:
        """How to show an item as it is now; None: later."""
        if item.part is ItemPart.OBJECT:
            return self._show(item.kind, item.key)
        if item.part is ItemPart.FINALIZER:
            return self._hold(item.kind, item.key)
        if item.part is ItemPart.OUTCOME:
            return self._show_outcome(int(item.key.name))
        if item.part is ItemPart.EVENT:
            return partial(self._create_event, *self._events[item])
        return self._leases.write_of(item.key, ending)

    def _is_over(self, item: Item) -> bool:
        """Whether there is nothing to show any more: a lease that was never shown is closed, a run
        that is without a finalizer has ended."""
        if item in self._under_way:
            return False
        if item.part is ItemPart.LEASE:
            return self._leases.is_over(item.key)
        if item.part is ItemPart.FINALIZER and item.kind == "Run":
            state = self._runs.get(engine_name(*item.key))
            return state is None or state.phase.ended
        return False

    def _holds(self, kind: str, key: Key) -> bool:
        """Whether there are accounts to settle before an object may go. A run that waits has none:
        deleted, it is gone at once, and is cancelled."""
        state = self._runs.get(engine_name(*key)) if kind == "Run" else None
        return state is None or state.phase is not Phase.PENDING

    def _hold(self, kind: str, key: Key) -> Write:
        """An object stays until its accounts are settled; of a run that has ended they are."""
        state = self._runs.get(engine_name(*key)) if kind == "Run" else None
        if (kind, key) not in self._front.unheld:
            return _nothing
        if state is not None and state.phase.ended:
            self._front.unheld.discard((kind, key))
            return _nothing
        return partial(self._front.hold, kind, key)

    def _look(self) -> None:
        """What entries are about since the last turn; after a start, everything."""
        if not self._compared:
            self._look_at_all()
            self._compared = True
        # One that was made although we were told otherwise is seen after its lease was closed.
        for key in self._sources.leases.take_keys():
            if not self._leases.is_open(key.name):
                self._news.add(lease_item(key.name))
        touched, events = self._tail.take()
        self._news |= touched
        for part, kind, key in touched:
            held = part is not ItemPart.OBJECT or (kind, key) not in self._front.unheld
            if not held and self._holds(kind, key):
                self._news.add(Item(ItemPart.FINALIZER, kind, key))
        for event in events:
            self._tell(event)

    def _look_at_all(self) -> None:
        plane = self._plane
        for kind in ("Budget", "Run", "Reservation"):
            for key in self._sources.of(kind).known():
                self._news.add(Item(ItemPart.OBJECT, kind, key))
        for name in sorted(plane.committer.projection.leases):
            self._news.add(lease_item(name))
        for key in self._sources.leases.known():
            self._news.add(lease_item(key.name))
        for outcome in sorted(plane.committer.projection.resolver.outcomes)[-SHOWN:]:
            self._news.add(outcome_item(outcome))
        last = self._tail.seq
        seq = self._told_to(last)
        while seq < last and (page := plane.events.read(seq, min(PAGE, last - seq))):
            for event in page:
                self._tell(event)
                seq = event["seq"]

    def _told_to(self, last: int) -> int:
        """Up to which entry Events are told for sure."""
        since = format_time(self._plane.committer.now() - RECENT_MS)
        recent = self._plane.events.read(max(0, last - RECENT_ENTRIES), RECENT_ENTRIES)
        return next((event["seq"] - 1 for event in recent if event["time"] >= since), last)

    def _tell(self, event: Document) -> None:
        """The Events by which people are told of an entry."""
        named, kind = event["object"], event["kind"]
        if kind.startswith("gpu.resolve."):
            self._announce(event)
        if named is None or named["kind"] not in KINDS:
            return
        key = key_named(named["kind"], named["name"])
        if kind in EVENTS:
            reason, type = EVENTS[kind]
            self._event(named["kind"], key, event["reason"] or reason, type, event)
        elif kind == "run.phase" and event["reason"] in TOLD:
            self._event("Run", key, event["reason"], "Warning", event)

    def _announce(self, event: Document) -> None:
        try:
            found = announcements(self._plane, event)
        except (Archived, Denied) as error:  # its entries can be read no more
            self._say(f"entry {event['seq']} is not told: {error}")
            return
        for announcement in found:
            told = {**event, "message": announcement.message}
            key = Key(*kube_name(announcement.name))
            self._event(announcement.kind, key, announcement.reason, "Warning", told)

    def _show(self, kind: str, key: Key) -> Write | None:
        """How to make an object show its state; None: what became of it is not known yet."""
        document = self._sources.of(kind).get(key)
        if document is None:
            self._phases.pop(key, None)
            return _nothing
        name = key.name if kind == "Budget" else engine_name(*key)
        # Without its place, which moves with every start: `kubectl fairlead explain` has it.
        stored = self._plane.objects.get(kind, name, queued=False)
        verdict = self._front.verdicts.get((kind, key))
        if verdict is None:
            return None
        made = Conditions(document)
        holds = None if verdict.waits else verdict.accepted
        rows = [made.row("Accepted", verdict.reason, verdict.message, holds=holds)]
        lingers = self._front.lingering.get((kind, key))
        if lingers is not None:
            rows.append(made.row("Terminating", lingers.reason, lingers.message, holds=True))
        status: Document = {}
        expected: Phase | None = None
        if stored is not None:
            status = dict(stored["status"])
            if key.namespace:
                status = as_named_in(key.namespace, status)
            if kind == "Reservation":  # a tenant reads it
                status["message"] = without_names(status["message"] or "")
            rows += status.get("conditions", ())
            if kind == "Run":
                rows += [*made.of_run(status), *as_leased(self._auditor, made, name)]
            elif kind == "Reservation":
                rows.append(made.of_reservation(status))
        elif not verdict.accepted:
            field = "state" if kind == "Reservation" else "phase"
            status = {field: "Pending" if verdict.waits else "Refused"}
            status |= {"reason": verdict.reason, "message": verdict.message}
        status |= {"observedGeneration": document["metadata"]["generation"], "conditions": rows}
        if kind == "Run":
            status["owner"] = self._front.owner_of(key.namespace, stored)
            self._note_shown(key, status.get("phase", ""))
            if stored is not None:
                expected = self._runs[name].phase
        if all(document.get("status", {}).get(field) == value for field, value in status.items()):
            return _nothing
        return partial(self._patch, kind, key, document["metadata"], status, expected)

    def _note_shown(self, key: Key, phase: str) -> None:
        self._phases.pop(key, None)
        if phase not in ENDED:
            self._phases[key] = phase

    def _patch(
        self, kind: str, key: Key, meta: Document, status: Document, expected: Phase | None
    ) -> bool:
        """Of the version that it was made for: one that a deposed leader sends late must not hide
        what its successor has shown, because nothing reads it back."""
        if expected is not None:
            state = self._runs.get(engine_name(*key))
            if state is None or state.phase is not expected:
                return False  # it has changed since: its newest state is written, not this one
        path = KINDS[kind].path(key.namespace, key.name, "status")
        try:
            patch = {"metadata": {"resourceVersion": meta["resourceVersion"]}, "status": status}
            self._sources.of(kind).put(self._client.patch(path, patch))
        except ApiError as error:
            return error.status == 404
        return True

    def _show_outcome(self, seq: int) -> Write:
        try:
            report = self._plane.outcome_reports.get(seq, author=_PUBLIC)
        except (Archived, Denied) as error:  # its entries can be read no more
            self._say(f"outcome {seq} is not shown: {error}")
            return _nothing
        return partial(self._write_outcome, seq, report)

    def _write_outcome(self, seq: int, report: Document) -> bool:
        kind, name = KINDS["ResolverOutcome"], f"outcome-{seq}"
        spec = {"outcome": seq, "chain": report["chain"], "k": report["k"]}
        spec |= {"cause": report["cause"] or "", "deficitGPUs": report["deficitGPUs"]}
        document = {
            "apiVersion": API_VERSION,
            "kind": "ResolverOutcome",
            "metadata": {"name": name},
            "spec": spec,
        }
        try:
            shown = self._client.get(kind.path(name=name))
            if shown is None:
                shown = self._client.create(kind.path(), document)
            stage = report["stage"]
            rows = [Conditions(shown).row("Applied", stage.title(), "", holds=stage == "applied")]
            status = {"stage": stage, "label": report.get("label"), "conditions": rows}
            self._client.patch(kind.path(name=name, sub="status"), {"status": status})
        except ApiError:
            return False
        return True

    def _event(self, kind: str, key: Key, reason: str, type: str, event: Document) -> None:
        document = self._sources.of(kind).get(key)
        if document is None:
            return
        body = event_of(kind, key, document["metadata"]["uid"], event, reason=reason, type=type)
        namespace = body["metadata"]["namespace"]
        item = Item(ItemPart.EVENT, "Event", Key(namespace, body["metadata"]["name"]))
        path = f"/api/v1/namespaces/{namespace}/events"
        self._events[item] = (path, msgspec.json.encode(body))
        self._news.add(item)

    def _create_event(self, path: str, body: bytes) -> bool:
        try:
            self._client.create(path, msgspec.json.decode(body))
        except ApiError as error:
            # It is there, or refused for good (its namespace ends, a policy): what follows in the
            # ledger is shown all the same.
            if error.passes:
                raise
        return True


_OTHER, _BUDGET = (1, 0, 0), (6, 0, 0)
_RANKS = {
    ItemPart.OUTCOME: (1, 0, 0),
    ItemPart.EVENT: (2, 0, 0),
    ItemPart.FINALIZER: (3, 0, 0),
    ItemPart.LEASE: (4, 0, 0),
}


def _nothing() -> bool:
    """What is shown is so already."""
    return True
