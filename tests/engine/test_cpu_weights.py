"""A governor that guarantees instead of limiting: its life, recorded and replayed."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.core.canonical import canonical
from fairlead.core.cpu import (
    Actuation,
    ContainerSighting,
    Counters,
    CpuConfig,
    PodSighting,
    Policy,
    WriteResult,
)
from fairlead.engine.cpu import CpuGovernor, CpuLoop, GovernorState
from fairlead.ports.cpu import Gone
from fairlead.ports.faults import TemporaryFault
from fairlead.ports.recorder import RecordEntry
from fairlead.recorder import FileRecorder, read, replay

CONFIG = CpuConfig(node_millicores=4000, policy=Policy.NASH, actuate=Actuation.BOTH)
SECONDS = 200


@dataclass
class Node:
    """Pods that wait where their guarantees are short; one of many threads, one with a limit."""

    guarantees: dict[tuple[str, str], int] = field(default_factory=dict)
    limits: dict[tuple[str, str], int | None] = field(default_factory=dict)
    totals: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    state: bytes = b""
    contained: list[tuple[str, int | None]] = field(default_factory=list)

    def wants(self, second: int) -> dict[tuple[str, str], int]:
        return {
            ("web", "app"): 1500 if second % 60 < 20 else 200,
            ("web", "log"): 50,
            ("batch", ""): 1000,
            ("limited", ""): 300,
            ("swarm", ""): 20_000 if second < 60 else 10,
        }

    def sample(self, now_ms: int) -> list[PodSighting]:
        wants = self.wants(now_ms // 1000)
        scale = min(1.0, 4000 / sum(min(want, 4000) for want in wants.values()))
        pods: dict[str, list[ContainerSighting]] = {}
        for key, want in wants.items():
            used = int(min(want, 4000) * scale)
            total = self.totals.setdefault(key, [0, 0])
            total[0] += used * 1000
            total[1] += (want - used) * 1000
            blind = key == ("batch", "") and 100_000 <= now_ms < 110_000
            counters = Counters(now_ms * 1000, total[0], 0, 0, 0, None if blind else total[1])
            limit = self.limits.setdefault(key, 500 if key[0] == "limited" else None)
            guarantee = self.guarantees.setdefault(key, 1000)
            seen = ContainerSighting(key[1], limit, counters, guarantee)
            pods.setdefault(key[0], []).append(seen)
        return [
            PodSighting(uid, 200, tuple(seen), identity="1", started_ms=-3_600_000)
            for uid, seen in pods.items()
        ]

    def write(self, decision: int, uid: str, container: str, millicores: int) -> int:
        self.guarantees[uid, container] = millicores
        return millicores

    def contain(
        self, decision: int, uid: str, container: str, limit_millicores: int | None
    ) -> None:
        if decision <= 1:
            raise TemporaryFault("busy", retry_after_ms=1)
        if decision == 3 and uid == "limited":
            raise Gone("it left")
        self.contained.append((uid, limit_millicores))
        self.limits[uid, container] = limit_millicores

    def keep(self, state: GovernorState) -> None:
        self.state = msgspec.json.encode(state)


def live(folder: Path, node: Node | None = None) -> Node:
    node, governor = node or Node(), CpuGovernor(CONFIG)
    recorder = FileRecorder(folder, segment_bytes=20_000)
    for second in range(SECONDS):
        if second == 122:
            governor = CpuGovernor.restore(CONFIG, json.loads(node.state), now_ms=second * 1000)
        if second in (0, 122):
            loop = CpuLoop(
                governor, sensor=node, actuator=node, limits=node, recorder=recorder, keep=node.keep
            )
        loop.sample(second * 1000)
        if second % 5 == 4:
            turn = loop.clear(second * 1000)
            total = governor.adopted_millicores
            assert total <= turn.plan.capacity_millicores, "Σ guarantees fits, at every clearing"
    recorder.close()
    return node


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Node]:
    folder = tmp_path_factory.mktemp("life") / "record"
    return folder, live(folder)


def test_a_life_of_guarantees_replays_byte_for_byte(record: tuple[Path, Node]) -> None:
    """With pods that are contained and let go, a limit that fails, and waits that are missing."""
    folder, node = record
    entries = list(read(folder))
    assert {(entry.kind, entry.version) for entry in entries} == {("cpu.govern", 3)}
    assert {answer.verdict for answer in replay(entries)} == {"same"}
    swarm = [limit for uid, limit in node.contained if uid == "swarm"]
    assert swarm[0] is not None
    assert swarm[-1] is None, "it is let go"
    assert ("limited", 500) in node.contained
    assert not [uid for uid, _ in node.contained if uid in ("web", "batch")]
    results = {row[3] for entry in entries for row in entry.input.get("contained", ())}
    assert results == {"written", "failed", "gone"}
    reasons = {reason for entry in entries for reason in entry.output["reasons"]["batch"]}
    assert reasons == {"demand-driven", "signal-missing.usage"}


def forged(entry: RecordEntry, change: Callable[[dict[str, Any]], Any]) -> RecordEntry:
    input = json.loads(canonical(entry.input))
    change(input)
    return replace(entry, input=input)


@pytest.mark.parametrize("column", ["waited_us", "guarantees"])
def test_a_tampered_reading_is_found(record: tuple[Path, Node], column: str) -> None:
    """How long threads waited, and the guarantee in force."""
    entries = list(read(record[0]))

    def change(input: dict[str, Any]) -> None:
        input["samples"][-1][column][0] += 50_000

    entries[9] = forged(entries[9], change)
    assert [answer.verdict for answer in replay(entries)][9] == "different"


def test_a_limit_that_was_left_out_is_found(record: tuple[Path, Node]) -> None:
    """Each limit beside the guarantees has its result."""
    entries = list(read(record[0]))
    place = next(n for n, entry in enumerate(entries) if len(entry.input.get("contained", ())) > 1)
    tampered = forged(entries[place], lambda input: input["contained"].pop())
    answer = list(replay([*entries[:place], tampered]))[-1]
    assert "contained: must hold all" in answer.detail


def test_counters_are_whole_where_a_wait_is_known(record: tuple[Path, Node]) -> None:
    first = next(iter(read(record[0])))

    def change(input: dict[str, Any]) -> None:
        row = input["samples"][0]
        for name in ("time_us", "usage_us", "periods", "throttled_periods", "throttled_us"):
            row[name][0] = None

    answer = next(iter(replay([forged(first, change)])))
    assert "must hold all counters of a container, or none" in answer.detail


def test_a_state_of_other_means_makes_newcomers() -> None:
    """What a governor of limits wrote is put back: none of it is a guarantee."""
    node, governor = Node(), CpuGovernor(CONFIG)
    for second in range(5):
        governor.observe(second * 1000, node.sample(second * 1000))
    _, plan, limits = governor.decide(5000)
    governor.settle(5000, plan)
    for write in plan.writes:
        governor.applied(write, write.after)
    for limit in limits:
        governor.contained(limit, WriteResult.FAILED if limit.uid == "limited" else None)
    state = json.loads(msgspec.json.encode(governor.export()))
    same = CpuGovernor.restore(CONFIG, state, now_ms=5000)
    assert same.adopted_millicores == governor.adopted_millicores > 0
    limiting = replace(CONFIG, actuate=Actuation.LIMITS)
    other = CpuGovernor.restore(limiting, state, now_ms=5000)
    assert other.adopted_millicores == 0
    assert other.pods["swarm"].limit_beside_guarantees is None
    assert same.pods["swarm"].limit_beside_guarantees is not None
