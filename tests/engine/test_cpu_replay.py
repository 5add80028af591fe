"""A governor's life replayed from its record alone: every output, byte for byte.

Cooldown, start-up grace, dead band, steps, several containers, newcomers, a pod that leaves,
missing readings, a failing actuator, misses and a restart all shape these decisions; none of it
may come from anywhere but the recorded input.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.core.canonical import canonical
from fairlead.core.cpu import ContainerSighting, Counters, CpuConfig, PodSighting, Policy
from fairlead.engine.cpu import CpuGovernor, CpuLoop, GovernorState
from fairlead.ports.faults import TemporaryFault
from fairlead.ports.recorder import RecordEntry
from fairlead.recorder import FileRecorder, read, replay
from fairlead.recorder.reader import segments
from fairlead.schema.replay import Replayer

CONFIG = CpuConfig(node_millicores=4000, policy=Policy.NASH)
SECONDS = 240
SEGMENT_BYTES = 20_000  # several decisions each


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

    def keep(self, state: GovernorState) -> None:
        self.state = msgspec.json.encode(state)


def live(folder: Path) -> Node:
    """Four minutes of an agent, restarted in the middle."""
    node = Node()
    with_recorder = FileRecorder(folder, segment_bytes=SEGMENT_BYTES)
    governor = CpuGovernor(CONFIG)
    for second in range(SECONDS):
        if second == 122:
            with_recorder.close()
            with_recorder = FileRecorder(folder, segment_bytes=SEGMENT_BYTES)
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
    """From the recorded counters alone; the life holds every guardrail and every phase."""
    folder, _ = record
    entries = list(read(folder))
    assert len(entries) == SECONDS // 5
    assert {entry.kind for entry in entries} == {"cpu.govern"}
    assert verdicts(entries) == ["same"] * len(entries)
    bounds = [bound for entry in entries for bound in entry.output["bounds"].values()]
    seen = {reason for bound in bounds for reason in bound["reasons"]}
    assert seen == {"cooldown", "dead-band", "step", "grace", "newcomer", "unlimited"}
    writes = [write for entry in entries for write in entry.output["writes"]]
    assert {write["phase"] for write in writes} == {"decrease", "newcomer", "increase"}
    assert {"app", "proxy", "log", ""} == {write["container"] for write in writes}
    assert {entry.output["mode"] for entry in entries} == {"uncongested", "congested"}


def test_each_segment_replays_alone(record: tuple[Path, Node]) -> None:
    """The oldest are dropped whole, so what is left must not need them."""
    paths = segments(record[0])
    assert len(paths) > 3
    for path in paths:
        assert {answer.verdict for answer in replay(read(path))} == {"same"}
    middle = [entry for entry in read(paths[2]) if entry.input["memory"] is None]
    assert "the entry that it follows from" in next(iter(replay(middle))).detail


def verdicts(entries: list[RecordEntry]) -> list[str]:
    return [answer.verdict.value for answer in replay(entries)]


def forged(entry: RecordEntry, change: Callable[[dict[str, Any]], None]) -> RecordEntry:
    """The entry with another input, as a writer of a new chain could have it."""
    input = json.loads(canonical(entry.input))
    change(input)
    return replace(entry, input=input)


COLUMNS = ("time_us", "usage_us", "periods", "throttled_periods", "throttled_us", "limits")


@pytest.mark.parametrize("column", [*COLUMNS, "now_ms"])
def test_a_tampered_reading_is_found(record: tuple[Path, Node], column: str) -> None:
    """One number of one container in the last sample, or its time, changed a little."""
    entries = list(read(record[0]))

    def change(input: dict[str, Any]) -> None:
        sample = input["samples"][-1]
        if column == "now_ms":
            sample[column] += 1
        else:
            sample[column][0] += 50

    entries[9] = forged(entries[9], change)
    assert verdicts(entries)[:9] == ["same"] * 9
    assert verdicts(entries)[9] == "different"


def test_a_tampered_demand_is_found(record: tuple[Path, Node]) -> None:
    """Where a segment holds the memory, it has to be what the entries before it lead to; in the
    first one the digest tells."""
    entries = list(read(record[0]))
    whole = [place for place, entry in enumerate(entries) if entry.input["memory"]]
    assert whole[0] == 0
    assert len(whole) > 3

    def change(input: dict[str, Any]) -> None:
        input["memory"]["pods"]["web"]["demand"][0] = 0.125

    place = whole[2]
    assert entries[place].input["written"] is not None
    answer = list(replay([*entries[:place], forged(entries[place], change)]))[-1]
    assert answer.verdict == "different"
    assert "is not what the entries before it lead to" in answer.detail
    assert verdicts([forged(entries[place], change)]) == ["different"]


def test_a_replay_goes_on_after_what_is_refused(record: tuple[Path, Node]) -> None:
    """One bad reading is found; segments that do not follow from it are the same."""
    entries = list(read(record[0]))
    whole = [place for place, entry in enumerate(entries) if entry.input["memory"]]
    place = whole[1]
    entries[place] = forged(entries[place], lambda input: input["samples"][0]["limits"].pop())
    answers = verdicts(entries)
    assert answers[:place] == ["same"] * place
    assert set(answers[place : whole[2]]) == {"different"}
    assert set(answers[whole[2] :]) == {"same"}


def test_a_tampered_write_is_found(record: tuple[Path, Node]) -> None:
    """A limit that was written starts a cooldown, and makes its pod count."""
    entries = list(read(record[0]))
    place = next(number for number, entry in enumerate(entries) if entry.input["written"])

    def change(input: dict[str, Any]) -> None:
        del input["written"][0]

    assert verdicts([*entries[:place], forged(entries[place], change)])[-1] == "different"


@pytest.mark.parametrize(("version", "name"), [(1, "cpu.govern"), (2, "cpu.govern.2")])
def test_a_stored_life_replays(version: int, name: str) -> None:
    """A change of what is decided raises the version and keeps the old decision for old records."""
    stored = Path(__file__).resolve().parents[1] / "data" / f"{name}.jsonl"
    replayer = Replayer()
    for number, line in enumerate(stored.read_text().splitlines()):
        entry = json.loads(line)
        answer = replayer.run(number, "cpu.govern", version, entry["input"], entry["output"])
        assert answer.verdict == "same", (number, answer.detail)
    assert number == SECONDS // 5 - 1


def test_records_of_former_releases_still_replay() -> None:
    """`cpu.allocate` and `cpu.clear`, in which the demand was given."""
    golden = Path(__file__).resolve().parents[1] / "golden"
    for kind in ("cpu.allocate", "cpu.clear"):
        lines = (golden / f"{kind}.jsonl").read_text().splitlines()
        for number, case in enumerate(map(json.loads, lines)):
            answer = Replayer().run(number, kind, 1, case["input"], case["output"])
            assert answer.verdict == "same", (kind, case["name"])


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

    def change(input: dict[str, Any]) -> None:
        if input["config"]:
            input["config"]["guardrails"][field] = value

    entries = list(read(record[0]))
    assert "different" in verdicts([forged(entry, change) for entry in entries])
    place = [number for number, entry in enumerate(entries) if entry.input["memory"]][2]
    answer = list(replay([*entries[:place], forged(entries[place], change)]))[-1]
    assert "config: is not that of the entry before" in answer.detail


@pytest.mark.parametrize("field", ["started_ms", "changed_ms", "throttling", "misses", "touched"])
def test_what_is_remembered_is_part_of_the_decision(record: tuple[Path, Node], field: str) -> None:
    """Another age, last change, throttling or count of misses is found."""

    def change(input: dict[str, Any]) -> None:
        for pod in input["memory"]["pods"].values():
            pod[field] = not pod[field] if field == "touched" else (pod[field] or 0) + 1

    whole = [entry for entry in read(record[0]) if entry.input["memory"]]
    assert verdicts([whole[1]]) == ["same"]
    assert verdicts([forged(whole[1], change)]) == ["different"]


@pytest.mark.parametrize(
    "change",
    [
        lambda row: row.update(pods=None),
        lambda row: row["limits"].pop(),
        lambda row: [row[name].pop() for name in COLUMNS],
        lambda row: row["usage_us"].__setitem__(0, None),
        lambda row: row["pods"][0].__setitem__(0, ""),
    ],
)
def test_a_sample_that_is_not_ours_is_refused(
    record: tuple[Path, Node], change: Callable[[dict[str, Any]], Any]
) -> None:
    """No pods, a reading too few, half of a container's counters, a pod without a name."""
    first = next(iter(read(record[0])))
    entry = forged(first, lambda input: change(input["samples"][0]))
    assert "is refused now" in next(iter(replay([entry]))).detail


def test_limits_that_are_left_out_are_recorded_and_checked(record: tuple[Path, Node]) -> None:
    """Each limit of a plan has its result; one that core would have written, or left out, differs.

    In this life the writes of a pod fail now and then, also decreases.
    """
    entries = list(read(record[0]))
    results = {row[3] for entry in entries for row in entry.input["written"] or ()}
    assert results == {"written", "failed", "decrease-failed", "no-room"}
    place = next(
        number
        for number, entry in enumerate(entries)
        if any(row[3] == "decrease-failed" for row in entry.input["written"] or ())
    )

    def answer(change: Callable[[list[Any]], None]) -> str:
        tampered = forged(entries[place], lambda input: change(input["written"]))
        return list(replay([*entries[:place], tampered]))[-1].detail

    def written_after_all(rows: list[Any]) -> None:
        row = next(row for row in rows if row[3] == "decrease-failed")
        row[2:] = [300, "written"]

    def left_out_without_a_reason(rows: list[Any]) -> None:
        next(row for row in rows if row[3] == "failed")[3] = "no-room"

    assert "was to be left out: decrease-failed" in answer(written_after_all)
    assert "was to be written" in answer(left_out_without_a_reason)
    assert "must hold all" in answer(lambda rows: rows.pop())
    assert "is not the limit" in answer(lambda rows: rows[0].__setitem__(0, "other"))
