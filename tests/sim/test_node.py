"""The simulated kernel: quotas, throttling counted as CFS bandwidth counts it, sharing."""

from typing import Any

import pytest

from fairlead.core.cpu.signal import read_signal
from fairlead.schema.scenario import SimPodDocument
from fairlead.sim.clock import Entropy
from fairlead.sim.node import SimNode, SimPod
from tests.sim.scenarios import pod, scenario


def constant(millicores: int) -> dict[str, Any]:
    return {"kind": "constant", "millicores": millicores}


def spec(name: str, want: int, **fields: Any) -> SimPodDocument:
    return scenario(pod(name, constant(want), **fields)).pods[0]


def run_second(node_millicores: int, *specs: SimPodDocument) -> dict[str, SimPod]:
    """Ten periods of a node."""
    node = SimNode(node_millicores)
    for each in specs:
        node.pods[each.name] = SimPod.arriving(each, Entropy(1))
    for period in range(1, 11):
        node.tick(period * 100)
    return node.pods


def test_below_its_quota_a_pod_is_never_throttled() -> None:
    """It uses what it wants; the periods count because it ran in them."""
    meter = run_second(4000, spec("a", 600, limit_millicores=600))["a"].meter
    assert (meter.used_us, meter.periods, meter.throttled_periods) == (600_000, 10, 0)
    assert meter.throttled_us == meter.unserved_us == 0


@pytest.mark.parametrize("want", [1000, 2000, 4000])
@pytest.mark.parametrize("limit", [100, 500, 900])
def test_spinning_threads_show_their_whole_want(want: int, limit: int) -> None:
    """n threads that spin stand n·period − quota: used + held is the want, exactly."""
    pods = run_second(8000, spec("a", want, limit_millicores=limit))
    meter = pods["a"].meter
    assert meter.throttled_periods == meter.periods == 10
    assert meter.used_us == limit * 1000
    assert meter.used_us + meter.throttled_us == want * 1000
    before = SimPod.arriving(pods["a"].spec, Entropy(1)).counters(0)
    reading = read_signal(before, pods["a"].counters(1000))
    assert reading is not None
    assert reading.want_millicores == want
    assert reading.throttled_ratio == 1.0


def test_a_pool_waits_with_all_its_threads() -> None:
    """Eight threads that share 1000m of work and are 10 % short all stand for the last tenth."""
    meter = run_second(8000, spec("a", 1000, limit_millicores=900, threads=8))["a"].meter
    assert meter.throttled_us == 10 * 8 * 10_000


def test_an_idle_pod_has_no_periods() -> None:
    """The bandwidth timer stops when nobody is runnable."""
    meter = run_second(4000, spec("a", 0))["a"].meter
    assert (meter.periods, meter.used_us, meter.lifetime_ms) == (0, 0, 1000)


def test_a_pod_without_a_limit_is_not_throttled_but_shares() -> None:
    """Without a quota there are no periods; the machine is the only limit."""
    meter = run_second(1000, spec("a", 3000, limit_millicores=None))["a"].meter
    assert (meter.used_us, meter.periods, meter.throttled_us) == (1_000_000, 0, 0)
    assert meter.unserved_us == 2_000_000


def test_an_oversubscribed_node_is_shared_by_weight() -> None:
    """3:1 by request, never more than the machine, and what one leaves the other takes."""
    heavy = spec("heavy", 2000, limit_millicores=None, request_millicores=300)
    light = spec("light", 2000, limit_millicores=None, request_millicores=100)
    pods = run_second(1000, heavy, light)
    assert pods["heavy"].meter.used_us == 750_000
    assert pods["light"].meter.used_us == 250_000
    small = spec("light", 100, limit_millicores=None, request_millicores=100)
    pods = run_second(1000, heavy, small)
    assert (pods["heavy"].meter.used_us, pods["light"].meter.used_us) == (900_000, 100_000)


def test_unserved_work_is_lost_or_waits() -> None:
    """Without a queue it is gone; with one it is served when there is room, up to its length."""
    lost = run_second(4000, spec("a", 800, limit_millicores=500))["a"]
    assert (lost.queue_us, lost.meter.unserved_us) == (0, 300_000)
    waits = run_second(4000, spec("a", 800, limit_millicores=500, queue_core_s=1, threads=2))["a"]
    assert (waits.queue_us, waits.meter.unserved_us) == (300_000, 300_000)
    waits.limit_millicores = 2000
    node = SimNode(4000)
    node.pods["a"] = waits
    for period in range(11, 21):
        node.tick(period * 100)
    assert waits.queue_us == 0
    assert waits.meter.used_us == waits.meter.want_us == 1_600_000


def test_reset_counters_start_at_zero_while_the_meter_goes_on() -> None:
    """As a restarted container's do; the figures of the report must not notice."""
    pods = run_second(4000, spec("a", 800, limit_millicores=500))
    seen = pods["a"].counters(1000)
    pods["a"].reset_counters()
    fresh = pods["a"].counters(1000)
    assert (fresh.usage_us, fresh.periods, fresh.throttled_us) == (0, 0, 0)
    assert pods["a"].meter.used_us == seen.usage_us == 500_000
    assert read_signal(seen, fresh) is None
