"""The same seed gives the same run: across processes, hash seeds and orders of the pods."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from fairlead.sim import play
from fairlead.sim.clock import Entropy
from tests.sim.scenarios import BUSY, pod, scenario

FIRST_DRAWS = [391, 145, 212, 930, 26, 531]
PROGRAM = """
from fairlead.sim import play
from tests.sim.scenarios import BUSY, scenario
faults = [{"point": "sensor.missing", "probability": 0.1},
          {"point": "actuator.slow", "probability": 0.2, "delay_ms": 300},
          {"point": "agent.crash", "at_s": [20], "duration_s": 6}]
print(play(scenario(*BUSY, faults=faults, policies=["demand-capped", "nash", "market"])).digest)
"""


def digest_in_a_process(hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=60)
    return done.stdout.decode().strip()


def test_the_digest_is_the_same_in_every_process() -> None:
    """Faults, crashes and three policies included, under three hash seeds."""
    with ThreadPoolExecutor() as pool:
        digests = set(pool.map(digest_in_a_process, ("0", "1", "4242")))
    assert len(digests) == 1
    assert len(digests.pop()) == 64


def test_the_order_of_the_pods_does_not_matter() -> None:
    """Chance belongs to names, and everything iterates in the order of names."""
    forth, back = play(scenario(*BUSY)), play(scenario(*reversed(BUSY)))
    assert forth.digest == back.digest
    assert forth.runs[0].pods == back.runs[0].pods


def test_another_seed_is_another_world() -> None:
    """Or the seed would not be used."""
    assert play(scenario(*BUSY), seed=1).digest != play(scenario(*BUSY), seed=2).digest


def test_a_pod_more_leaves_the_luck_of_the_others_alone() -> None:
    """Streams are independent: the wants of the old pods are the same, second by second."""
    alone = play(scenario(*BUSY)).runs[0]
    joined = play(scenario(*BUSY, pod("more"))).runs[0]
    for before, after in zip(alone.frames, joined.frames, strict=True):
        kept = [each for each in after.pods if each.uid != "more"]
        assert [each.want for each in before.pods] == [each.want for each in kept]


def test_policies_are_compared_in_the_same_world() -> None:
    """Only the grants differ: what the pods want does not."""
    played = play(scenario(*BUSY, policies=["demand-capped", "nash", "market"]))
    wants = [[[each.want for each in f.pods] for f in run.frames] for run in played.runs]
    assert wants[0] == wants[1] == wants[2]
    assert len({run.digest for run in played.runs}) == 3


def test_streams_are_fixed_for_good() -> None:
    """A change here changes every recorded digest: the numbers are part of the contract."""
    stream = Entropy(7).stream("trace", "web", "0")
    assert [stream.below(1000) for _ in range(6)] == FIRST_DRAWS
    # The names are separated: ("a", "bc") is not ("ab", "c").
    assert Entropy(7).stream("a", "bc").word() != Entropy(7).stream("ab", "c").word()


def test_chance_comes_out_as_often_as_it_should() -> None:
    """10 000 draws at 0.3 lie within four standard deviations."""
    stream = Entropy(1).stream("chance")
    hits = sum(stream.chance(0.3) for _ in range(10_000))
    assert abs(hits - 3_000) < 4 * (10_000 * 0.3 * 0.7) ** 0.5
    assert not any(stream.chance(0.0) for _ in range(100))
    assert all(stream.chance(1.0) for _ in range(100))
    assert {stream.below(3) for _ in range(100)} == {0, 1, 2}
