"""A governor's life replayed from its record alone: every output, byte for byte.

Cooldown, start-up grace, dead band, steps, several containers, newcomers, a pod that leaves,
missing readings, a failing actuator, misses and a restart all shape these decisions; none of it
may come from anywhere but the recorded input.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fairlead.core.canonical import canonical
from fairlead.core.cpu import Counters, Policy
from fairlead.engine.cpu import CpuConfig, CpuGovernor, CpuLoop
from fairlead.ports.cpu import ContainerSighting, PodSighting
from fairlead.ports.faults import TemporaryFault
from fairlead.recorder import FileRecorder, read, replay
from fairlead.schema.kinds import KINDS

CONFIG = CpuConfig(node_millicores=4000, policy=Policy.NASH)
SECONDS = 240


@dataclass
class Node:
    """Pods of several containers whose wants change; kernel and clock moved by hand."""

    limits: dict[tuple[str, str], int | None] = field(default_factory=dict)
    used_us: dict[tuple[str, str], int] = field(default_factory=dict)
    throttled: dict[tuple[str, str], int] = field(default_factory=dict)
    state: bytes = b""
    decisions: list[int] = field(default_factory=list)

    def wants(self, second: int) -> dict[tuple[str, str], int]:
        """In millicores: a burst, a ramp, an idle pod, a newcomer, one that leaves."""
        wants = {
            ("web", "app"): 1800 if second % 60 < 20 else 200,
            ("web", "proxy"): 150,
            ("batch", ""): min(300 + 20 * second, 2500),
            ("idle", ""): 5,
        }
        if second >= 70:
            wants |= {("late", "app"): 900, ("late", "log"): 40}
        if second >= 150:
            del wants["idle", ""]
        return wants

    def sample(self, now_ms: int) -> list[PodSighting]:
        pods: dict[str, list[ContainerSighting]] = {}
        for key, want in self.wants(now_ms // 1000).items():
            limit = self.limits.setdefault(key, None if key[0] == "batch" else 1200)
            used = want if limit is None else min(want, limit)
            self.used_us[key] = self.used_us.get(key, 0) + used * 1000
            self.throttled[key] = self.throttled.get(key, 0) + (10 if used < want else 0)
            counters = Counters(
                now_ms * 1000,
                self.used_us[key],
                now_ms // 100,
                self.throttled[key],
                self.throttled[key] * 50_000,
            )
            blind = key == ("web", "proxy") and 100_000 <= now_ms < 112_000
            seen = ContainerSighting(key[1], limit, None if blind else counters)
            pods.setdefault(key[0], []).append(seen)
        return [
            PodSighting(uid, 100, tuple(containers), identity="1")
            for uid, containers in pods.items()
        ]

    def write(self, decision: int, uid: str, container: str, millicores: int) -> int:
        self.decisions.append(decision)
        if decision % 7 == 0 and uid == "web":
            raise TemporaryFault("busy", retry_after_ms=1)
        self.limits[uid, container] = millicores
        return millicores

    def keep(self, state: dict[str, Any]) -> None:
        self.state = canonical(state)


def live(folder: Path) -> Node:
    """Four minutes of an agent, restarted in the middle."""
    node = Node()
    with_recorder = FileRecorder(folder)
    governor = CpuGovernor(CONFIG)
    for second in range(SECONDS):
        if second == 122:
            with_recorder.close()
            with_recorder = FileRecorder(folder)
            governor = CpuGovernor.restore(CONFIG, json.loads(node.state), now_ms=second * 1000)
        if second in (0, 122):
            loop = CpuLoop(
                governor, sensor=node, actuator=node, recorder=with_recorder, keep=node.keep
            )
        loop.sample(second * 1000)
        if second % 5 == 4:
            loop.clear(second * 1000)
    with_recorder.close()
    return node


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Node]:
    folder = tmp_path_factory.mktemp("life") / "record"
    return folder, live(folder)


def test_every_decision_of_a_life_replays_byte_for_byte(record: tuple[Path, Node]) -> None:
    """From the recorded bytes alone; the life holds every guardrail and every phase."""
    folder, _ = record
    entries = list(read(folder))
    assert len(entries) == SECONDS // 5
    assert {entry.kind for entry in entries} == {"cpu.allocate"}
    for entry in entries:
        assert canonical(KINDS[entry.kind].run(canonical(entry.input)).result) == canonical(
            entry.output
        )
    assert {answer.verdict for answer in replay(read(folder))} == {"same"}
    bounds = [bound for entry in entries for bound in entry.output["bounds"].values()]
    seen = {reason for bound in bounds for reason in bound["reasons"]}
    assert seen == {"cooldown", "dead-band", "step", "grace", "newcomer", "unlimited"}
    writes = [write for entry in entries for write in entry.output["writes"]]
    assert {write["phase"] for write in writes} == {"decrease", "newcomer", "increase"}
    assert {"app", "proxy", "log", ""} == {write["container"] for write in writes}
    assert {entry.output["mode"] for entry in entries} == {"uncongested", "congested"}


def test_every_write_carries_the_id_of_a_recorded_decision(record: tuple[Path, Node]) -> None:
    """What the actuator is told to write was recorded first, under that number."""
    folder, node = record
    assert node.decisions
    assert set(node.decisions) <= {entry.seq for entry in read(folder)}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cooldown_ms", 0),
        ("grace_ms", 0),
        ("step_ratio", 1.2),
        ("step_millicores", 10),
        ("dead_band", 0.9),
        ("split_band", 0.0),
    ],
)
def test_a_tampered_guardrail_changes_the_output(
    record: tuple[Path, Node], field: str, value: float
) -> None:
    """So a replay proves the guardrails, and not only the clearing after them."""
    different = 0
    for entry in read(record[0]):
        forged = {**entry.input, "guardrails": {**entry.input["guardrails"], field: value}}
        result = KINDS[entry.kind].run(canonical(forged)).result
        different += canonical(result) != canonical(entry.output)
    assert different


@pytest.mark.parametrize("field", ["now_ms", "first_seen_ms", "changed_ms", "throttling"])
def test_what_is_remembered_is_part_of_the_decision(record: tuple[Path, Node], field: str) -> None:
    """Another time, age, last change or throttling gives another output somewhere."""
    different = 0
    for entry in read(record[0]):
        forged = json.loads(canonical(entry.input))
        if field == "now_ms":
            forged["now_ms"] += 60_000
        for pod in forged["pods"]:
            if field in pod:
                pod[field] = 1.0 if field == "throttling" else (pod[field] or 0) - 60_000
        result = KINDS[entry.kind].run(canonical(forged)).result
        different += canonical(result) != canonical(entry.output)
    assert different
