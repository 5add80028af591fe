"""Runs as pods: the executor of a cluster.

A pod is made after its lease stands in the ledger, and names it: the annotation `fairlead.dev/job`
is the plan's id. Pods of a gang are held back by a scheduling gate until all of them exist. A pod
may run on the leased node only (required affinity), and its name is its rank's, so that a rank
never runs twice. Its devices are free when it has ended or is gone, and not while it terminates.
"""

import contextlib
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from fairlead.kube.client import MISREAD, ApiError, KubeClient
from fairlead.kube.gpu.build import RunObject
from fairlead.kube.gpu.gangs import GangWriter, Target
from fairlead.kube.gpu.ranks import RankPod, ended_ms, exit_code, pod_name, ranks_of, read_pod
from fairlead.kube.kinds import kube_name
from fairlead.kube.watch import Sources
from fairlead.ports.executor import Exit, Job
from fairlead.ports.faults import Fault, PermanentFault, TemporaryFault

PODS = "/api/v1/pods"


class PodExecutor:
    """Starts, stops and watches the pods of runs (port: `fairlead.ports.executor.Executor`)."""

    pauses = False

    def __init__(
        self,
        client: KubeClient,
        sources: Sources,
        find: Callable[[str], RunObject | None],
        now_ms: Callable[[], int],
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """`wake` is called when the pods of a job are made."""
        self._client, self._pods = client, sources.pods
        self.gangs = self._gangs = GangWriter(client, sources)
        self._find, self._now_ms, self._wake = find, now_ms, wake
        self._lock = threading.Lock()
        self._last: dict[str, dict[int, RankPod]] = {}
        """Pods that are gone, as they were last, by job and rank, until their exit is recorded."""
        self._stopping: set[str] = set()
        """Runs that we asked to end: their pods go without a status of their own."""
        self._known: set[str] = set()
        """Jobs whose exit is recorded, and whose pods are still there."""
        self._current: dict[str, str] = {}
        """The newest job of each run."""
        self._targets: dict[str, Target] = {}
        """Jobs as they are wanted, by id, until their exit is recorded."""
        self._making: dict[str, Target] = {}
        """Those that are being brought to their target, beside the turn."""
        self._late: dict[str, str] = {}
        """Those that could not be, and why: tried again."""
        self._doubtful: set[str] = set()
        """Jobs of which a pod may be there that no answer and no watch has told us of."""
        self._notices: dict[str, str] = {}
        """What the pods of a job are to be told of what may happen to it, by job."""
        self._untold: set[str] = set()
        """Jobs of which some pods could not be told."""
        self._troubles: dict[str, str] = {}
        self._refused: dict[str, Exit] = {}
        """Jobs whose pods the API server refuses for good."""

    # -- acts -------------------------------------------------------------------------------------

    def start(self, job: Job) -> None:
        """Make the pods, beside the turn; one that is refused is an exit with a reason."""
        with self._lock:
            if job.id in self._targets or job.id in self._refused:
                return
            self._stopping.discard(job.run)
            self._drop(job.run)
            self._current[job.run] = job.id
            self._submit(Target(job, job.id))

    def _drop(self, run: str) -> None:
        """A run's job is not brought to a target any more."""
        id = self._current.pop(run, "")
        self._targets.pop(id, None)
        self._late.pop(id, None)
        self._troubles.pop(id, None)
        self._notices.pop(id, None)
        self._untold.discard(id)

    def _target_of(self, run: str) -> Target | None:
        return self._targets.get(self._current.get(run, ""))

    def warn(
        self, run: str, notice: Mapping[str, object], *, signal: str | None, decision: str
    ) -> None:
        """Beside the turn, by an annotation of its pods, which is a file in them. A signal would
        need the right to run programs in pods of tenants, and is not sent."""
        with self._lock:
            id = self._current.get(run, "")
            if id in self._targets:
                self._notices[id] = json.dumps(notice, separators=(",", ":"))
                self._client.later(self._notify, id)

    def _notify(self, id: str) -> None:
        """Never raises: pods that could not be told are told by the next `poll`."""
        with self._lock:
            notice, target = self._notices.get(id), self._targets.get(id)
        if notice is None or target is None:
            return
        try:
            for pod in self._gangs.of_run(target.job.run):
                if pod.job == id and not pod.ended:
                    self._gangs.notify(pod, notice)
        except Fault:
            with self._lock:
                self._untold.add(id)

    def resize(self, run: str, devices: tuple[str, ...], *, grace_ms: int, decision: str) -> None:
        """Bring the pods to these devices, beside the turn: new ranks are made, those that are
        given up are evicted, and the others are told."""
        with self._lock:
            target = self._target_of(run)
            if target is None:
                return
            if devices == target.job.devices and (target.resized or target.job.widths is None):
                return  # only spares are taken from it, which have no pods
            if target.job.widths is None:
                raise PermanentFault("a pod keeps its devices until it ends")
            job, until_ms = replace(target.job, devices=devices), self._now_ms() + grace_ms
            self._submit(Target(job, decision, until_ms, resized=True))

    def ended(self, job: str, run: str) -> Exit | None:
        return None  # a pod that is gone is reported as an exit

    def held(self, run: str, devices: tuple[str, ...]) -> bool | None:
        """As long as any pod is there that the run gives up: which devices it has is written on
        it, where its owner may write, too."""
        wanted = set(devices)
        with self._lock:
            target, making = self._target_of(run), self._making.get(self._current.get(run, ""))
        if making is not None and wanted & set(making.job.devices):
            return True
        pods = self._gangs.of_run(run)
        ranks = [] if target is None else ranks_of(target.job, pods)
        kept = {(self._current.get(run), rank.number) for rank in ranks}
        return any(not pod.ended and (pod.job, pod.rank) not in kept for pod in pods)

    def devices_of(self, run: str) -> dict[str, list[str]]:
        """None is named: which devices a pod has its owner may write, too, and no kubelet gives a
        device to a second pod."""
        return {}

    def _submit(self, target: Target) -> None:
        id = target.job.id
        self._targets[id] = target
        self._late.pop(id, None)
        if id not in self._making:  # else it is submitted when that is done
            self._making[id] = target
            self._client.later(self._make, target)

    def _make(self, target: Target) -> None:
        """Never raises: what may succeed later is tried again by `poll`."""
        why: str | None = None
        doubtful = False
        try:
            self._bring(target)
        except ApiError as error:
            # 422: the template is no pod's. 403 may be a quota that has room again later.
            why = error.message
            if error.status in (400, 413, 422):
                self._refuse(target, f"the pod is refused: {why}")
            doubtful = error.status >= 500
        except PermanentFault as fault:
            self._refuse(target, str(fault))
        except Fault as fault:
            why, doubtful = str(fault), True
        except MISREAD as error:
            self._refuse(target, f"the template makes no pod: {error!r}")
        with self._lock:
            id = target.job.id
            del self._making[id]
            if doubtful:
                self._doubtful.add(id)
            self._troubles.pop(id, None)
            if why is not None and id in self._targets:
                self._troubles[id] = why
            wanted = self._targets.get(id)
            if wanted is not None and wanted is not target:
                self._submit(wanted)
            elif wanted is not None and why is not None:
                self._late[id] = why
            if id in self._notices:
                self._untold.add(id)  # ranks that were made meanwhile
        self._wake()

    def _bring(self, target: Target) -> None:
        job = target.job
        with self._lock:
            self._take_gone()
            if self._has_lost(job):
                return  # it is not begun again, and `poll` ends it
        run = self._find(job.run)
        if run is None:
            raise TemporaryFault(f"run {job.run} is not in the cluster")
        # A rank that was made again would wait for ever for the others, which are past their
        # beginning: it has failed, and `poll` ends the others. The first is enough: how many there
        # are is what their annotations say, which their user can write.
        lost = sorted(self._gangs.bring(target, run, self._now_ms()))
        if not lost:
            with self._lock:
                self._doubtful.discard(job.id)
        for rank in lost[:1]:
            namespace, name = kube_name(job.run)
            meta = {"name": pod_name(name, rank), "namespace": namespace}
            gone = RankPod(job.id, job.run, rank, 0, {"metadata": meta, "spec": {}})
            with self._lock:
                self._last.setdefault(job.id, {}).setdefault(rank, gone)

    def _refuse(self, target: Target, why: str) -> None:
        """A job that has not begun ends with the reason; one that has goes on as it is."""
        job = target.job
        if target.resized:
            return
        with self._lock:
            self._refused[job.id] = Exit(job.id, job.run, self._now_ms(), lost=True, reason=why)
            self._targets.pop(job.id, None)
        with contextlib.suppress(Fault):  # pods behind their gate hold nothing
            self._gangs.remove(job)

    def _try_again(self) -> None:
        """A run that is to end is not started any more: no exit would ever come of it."""
        with self._lock:
            untold, self._untold = self._untold, set()
            for id in sorted(untold):
                self._client.later(self._notify, id)
            late, self._late = self._late, {}
            for target in [self._targets[id] for id in late if id in self._targets]:
                if target.job.run in self._stopping:
                    self._drop(target.job.run)
                else:
                    self._submit(target)

    def stop(self, run: str, grace_ms: int, *, decision: str) -> None:
        with self._lock:
            self._stopping.add(run)
        for pod in self._gangs.of_run(run):
            if not pod.ended and not self._gangs.is_leaving(pod, grace_ms):
                self._gangs.evict(pod.document, grace_ms, decision)

    def pause(self, run: str, *, decision: str) -> None:
        raise PermanentFault("pods cannot be paused: cancel the run and submit it again")

    def resume(self, run: str, *, decision: str) -> None:
        """Nothing was paused."""

    # -- what became of them ----------------------------------------------------------------------

    def wants(self, job: str) -> bool:
        """Whether the pods of a job are to be there."""
        with self._lock:
            return job in self._targets

    def troubles(self) -> dict[str, str]:
        """Why pods of a job could not be made when that was last tried, by job."""
        with self._lock:
            return dict(self._troubles)

    def running(self) -> set[str]:
        living = self._gangs.index.living()
        with self._lock:
            return living | self._making.keys() | self._late.keys() | self._doubtful

    def poll(self) -> list[Exit]:
        self._try_again()
        self._settle()
        with self._lock:
            jobs = self._jobs()
            found = [
                self._exit(job, pods)
                for job, pods in jobs.items()
                if job not in self._known and not self._is_beginning(job, pods)
            ]
            exits = [*self._refused.values(), *(exit for exit in found if exit is not None)]
            exits = [exit for exit in exits if exit.job not in self._doubtful]
        return sorted(exits, key=lambda exit: (exit.time_ms, exit.run))

    def _settle(self) -> None:
        """A request that failed may have made a pod, whose devices must not be another's while it
        lives: before anything is told of its job, the server is asked for all pods."""
        with self._lock:
            jobs = self._doubtful - self._making.keys()
        if jobs:
            with contextlib.suppress(Fault):  # the next turn asks again
                self._pods.refresh()
                with self._lock:
                    self._doubtful -= jobs - self._making.keys()

    def acknowledge(self, exits: Iterable[Exit]) -> None:
        with self._lock:
            for exit in exits:
                self._known.add(exit.job)
                self._last.pop(exit.job, None)
                self._refused.pop(exit.job, None)
                self._doubtful.discard(exit.job)
                if self._current.get(exit.run) == exit.job:
                    self._drop(exit.run)
                self._stopping.discard(exit.run)

    def log_parts(self, run: str, jobs: str = "") -> list[Path]:
        """None: `kubectl logs` has them."""
        return []

    # -- one job ----------------------------------------------------------------------------------

    def _jobs(self) -> dict[str, dict[int, RankPod]]:
        """The pods of jobs that may have ended, or have to be brought to their end, by rank, those
        that are gone included. Where all pods of a job live and none is given up, it goes on."""
        self._take_gone()
        index = self._gangs.index
        self._known &= index.jobs() | self._last.keys()
        resized = {id for id, target in self._targets.items() if target.job.widths is not None}
        looked_at = sorted(index.stirring() | self._last.keys() | resized)
        jobs = {job: self._last.get(job, {}) | index.of_job(job) for job in looked_at}
        return {job: pods for job, pods in jobs.items() if pods}

    def _take_gone(self) -> None:
        for pod in filter(None, map(read_pod, self._pods.take_gone().values())):
            if pod.job not in self._known:
                self._last.setdefault(pod.job, {})[pod.rank] = pod

    def _has_lost(self, job: Job) -> bool:
        """Whether a rank of it has begun, is gone, and was not made again."""
        gone = [pod for pod in self._last.get(job.id, {}).values() if pod.begun]
        there = (
            {pod.rank for pod in self._gangs.of_run(job.run) if pod.job == job.id} if gone else ()
        )
        return any(pod.rank not in there and not self._is_given_up(pod) for pod in gone)

    def _is_beginning(self, job: str, pods: Mapping[int, RankPod]) -> bool:
        """Whether some of its ranks are being made, or still to be made and none can have begun."""
        if job in self._making:
            return True  # one that is there when this is done holds its devices
        return job in self._late and not any(pod.begun for pod in pods.values())

    def _exit(self, job: str, pods: Mapping[int, RankPod]) -> Exit | None:
        """How a job ended, when all of its pods have ended or are gone."""
        last = self._last.get(job, {})
        living = [pod for pod in pods.values() if not pod.ended and last.get(pod.rank) is not pod]
        kept = [pod for pod in pods.values() if not self._is_given_up(pod)]
        fallen = [pod for pod in kept if pod not in living]
        failed = [pod for pod in fallen if pod.phase != "Succeeded"]
        if living:
            # A gang without one of its ranks waits for ever.
            settled = job not in self._making and job not in self._late
            unwanted = [pod for pod in living if failed or (settled and pod not in kept)]
            for pod in unwanted:
                if not pod.leaving:
                    with contextlib.suppress(Fault):  # the next turn asks again
                        self._gangs.evict(pod.document, None, job)
            return None
        if not failed and len(kept) < max((pod.ranks for pod in kept), default=1):
            return None  # some are still to be made
        run = next(iter(pods.values())).run
        when = max((ended_ms(pod.document) or self._now_ms() for pod in fallen), default=0)
        if not failed:
            return Exit(job, run, when, code=0, stopped=any(pod.stopped for pod in fallen))
        first = min(failed, key=_order)
        code, stopped = exit_code(first.document), first.stopped
        if code is not None:
            return Exit(job, run, when, code=code, reason=f"rank {first.rank}", stopped=stopped)
        if run in self._stopping:
            return Exit(job, run, when, signal=15, stopped=stopped)
        status = first.document.get("status", {})
        why = status.get("message") or status.get("reason")
        name = first.document["metadata"]["name"]
        reason = why or f"pod {name} was deleted"
        return Exit(job, run, when, lost=True, reason=reason, stopped=stopped)

    def _is_given_up(self, pod: RankPod) -> bool:
        """Whether the run goes on without it: how it ends is no failure."""
        target = self._targets.get(pod.job)
        if target is None or target.job.widths is None or not pod.slots:
            return pod.released
        return pod.released or not set(pod.slots) <= set(target.job.devices)


def _order(pod: RankPod) -> tuple[bool, bool, int, int]:
    """The rank that failed first: before those that were evicted because of it."""
    when = ended_ms(pod.document)
    return when is None, pod.leaving, when or 0, pod.rank
