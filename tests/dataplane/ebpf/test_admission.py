"""The door: errnos that say what was meant, and a bucket that is exact."""

import errno
import time
from collections import Counter

import msgspec
import pytest

from fairlead.compose.traffic import open_dataplane
from fairlead.core.traffic.model import Admission
from fairlead.core.traffic.state import AdmissionMode
from fairlead.dataplane.ebpf import EbpfDataplane
from fairlead.dataplane.ebpf.kernel import Libbpf
from fairlead.ports.faults import PermanentFault
from fairlead.schema.dataplane import DataplaneDocument
from tests.dataplane.ebpf.places import Place, Talker, group, limited
from tests.dataplane.tables import table

pytestmark = pytest.mark.component("ebpf")
VIP = "127.99.0.1"


@pytest.fixture
def web(plane: EbpfDataplane, place: Place) -> EbpfDataplane:
    plane.configure([group("web", VIP, 80, {"b0": place.ports[0], "b1": place.ports[1]})])
    return plane


def heard(client: Talker, count: int) -> Counter[str]:
    return Counter(client.do("tcp", host=VIP, port=80, count=count))


@pytest.mark.parametrize(
    ("mode", "name"), [(AdmissionMode.SOFT, "EAGAIN"), (AdmissionMode.HARD, "ECONNREFUSED")]
)
def test_a_bucket_lets_exactly_its_burst_through(
    web: EbpfDataplane, client: Talker, mode: AdmissionMode, name: str
) -> None:
    """Without refill: 37 of 50, split by the slots among the admitted, the rest told aloud."""
    web.apply(table("web", 1, {"b0": 3, "b1": 1}, limited(mode, 0, 37)), decision=1)
    assert heard(client, 50) == {"0": 28, "1": 9, name: 13}
    seen = web.read()["web"]
    assert (seen.mode, seen.admitted) == (mode, 37)
    assert seen.refused_soft + seen.refused_hard == 13
    assert (seen.refused_hard == 13) == (mode == AdmissionMode.HARD)


def test_a_bucket_refills_by_the_clock(web: EbpfDataplane, client: Talker) -> None:
    """Over time: at most burst + rate * t, and at least that less the one that is not whole yet."""
    rate, burst, earlier_us = 200, 10, 25_000
    began = time.monotonic()
    web.apply(
        table("web", 1, {"b0": 1, "b1": 0}, limited(AdmissionMode.SOFT, rate, burst)), decision=1
    )
    maps, registry = web._open()
    at, admitted, rounds = registry.placed["web"].index, heard(client, 20)["0"], 10
    for _ in range(rounds):
        bucket = maps.buckets[at]
        bucket.filled_us -= earlier_us  # as if it had been filled for the last time before that
        maps.buckets[at] = bucket
        heard_now = heard(client, 20)["0"]
        assert heard_now >= rate * earlier_us // 1_000_000
        admitted += heard_now
    passed_s = time.monotonic() - began + rounds * earlier_us / 1e6
    assert admitted <= burst + rate * passed_s
    assert web.read()["web"].refused_soft > 0


def test_a_fraction_of_a_token_is_kept(web: EbpfDataplane, client: Talker) -> None:
    """2.5 tokens are two admissions, and the half is there when its other half comes."""
    web.apply(table("web", 1, {"b0": 1, "b1": 0}, limited(AdmissionMode.SOFT, 0, 2.5)), decision=1)
    assert heard(client, 4) == {"0": 2, "EAGAIN": 2}
    maps, registry = web._open()
    bucket = maps.buckets[registry.placed["web"].index]
    assert bucket.level == 500_000_000_000
    web.apply(table("web", 2, {"b0": 1, "b1": 0}, limited(AdmissionMode.SOFT, 5, 2.5)), decision=1)
    while not heard(client, 1)["0"]:  # a fifth of a second for a whole one
        pass


def test_a_smaller_bucket_keeps_no_more_than_it_holds(web: EbpfDataplane, client: Talker) -> None:
    web.apply(table("web", 1, {"b0": 1, "b1": 0}, limited(AdmissionMode.SOFT, 0, 50)), decision=1)
    heard(client, 10)
    web.apply(table("web", 2, {"b0": 1, "b1": 0}, limited(AdmissionMode.HARD, 0, 3)), decision=1)
    assert heard(client, 10) == {"0": 3, "ECONNREFUSED": 7}
    # And it is not full again because the mode has changed.
    web.apply(table("web", 3, {"b0": 1, "b1": 0}, limited(AdmissionMode.SOFT, 0, 50)), decision=1)
    assert heard(client, 2) == {"EAGAIN": 2}


def test_normal_has_no_bucket(web: EbpfDataplane, client: Talker) -> None:
    web.apply(table("web", 1, {"b0": 1, "b1": 0}, limited(AdmissionMode.HARD, 0, 0)), decision=1)
    assert heard(client, 3) == {"ECONNREFUSED": 3}
    web.apply(table("web", 2, {"b0": 1, "b1": 0}), decision=1)
    assert heard(client, 300) == {"0": 300}


def test_buckets_of_groups_are_apart(plane: EbpfDataplane, place: Place, client: Talker) -> None:
    plane.configure(
        [group("a", VIP, 80, {"x": place.ports[0]}), group("b", VIP, 81, {"x": place.ports[1]})]
    )
    for name in "ab":
        plane.apply(table(name, 1, {"x": 1}, limited(AdmissionMode.SOFT, 0, 5)), decision=1)
    assert heard(client, 9) == {"0": 5, "EAGAIN": 4}
    assert Counter(client.do("tcp", host=VIP, port=81, count=5)) == {"1": 5}


def test_another_errno_for_try_again(place: Place, client: Talker) -> None:
    """Where clients take EAGAIN for "in progress", soft can say something else."""
    plane = place.plane(soft_errno=errno.EBUSY)
    plane.configure([group("web", VIP, 80, {"b0": place.ports[0]})])
    plane.apply(table("web", 1, {"b0": 1}, limited(AdmissionMode.SOFT, 0, 0)), decision=1)
    assert heard(client, 2) == {"EBUSY": 2}
    plane.detach()


def test_errno_and_sizes_come_from_the_configuration(place: Place, client: Talker) -> None:
    """As `fairlead traffic run` opens it."""
    document = msgspec.convert(
        {
            "kind": "ebpf",
            "cgroup": str(place.cgroup),
            "pins": str(place.pins),
            "soft_errno": "EBUSY",
            "capacity": {"groups": 1, "connections": 1_000},
        },
        DataplaneDocument,
    )
    plane = open_dataplane(document, place.pins)
    try:
        web = group("web", VIP, 80, {"b0": place.ports[0]})
        with pytest.raises(PermanentFault, match="groups: 2 places are needed"):
            plane.configure([web, group("api", VIP, 81, {"b0": place.ports[0]})])
        plane.configure([web])
        plane.apply(table("web", 1, {"b0": 1}, limited(AdmissionMode.SOFT, 0, 0)), decision=1)
        assert heard(client, 2) == {"EBUSY": 2}
    finally:
        plane.detach()


def test_without_the_helper_refusals_read_eperm(
    place: Place, client: Talker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Linux 6.1 the hooks have no bpf_set_retval: the programs load without calling it."""
    monkeypatch.setattr(Libbpf, "has_helper", lambda *_: False)
    plane = place.plane()
    plane.configure([group("web", VIP, 80, {"b0": place.ports[0]})])
    for epoch, mode in enumerate((AdmissionMode.SOFT, AdmissionMode.HARD), 1):
        plane.apply(table("web", epoch, {"b0": 1}, limited(mode, 0, 0)), decision=1)
        assert heard(client, 2) == {"EPERM": 2}
    seen = plane.read()["web"]
    assert (seen.refused_soft, seen.refused_hard) == (2, 2)
    plane.detach()


def test_clients_at_once_share_one_bucket(place: Place, web: EbpfDataplane) -> None:
    """Two processes against one lock: the sum is the burst, to the token."""
    clients = [place.client() for _ in range(2)]
    web.apply(table("web", 1, {"b0": 1, "b1": 1}, limited(AdmissionMode.SOFT, 0, 1000)), decision=1)
    for each in clients:
        each.tell("tcp", host=VIP, port=80, count=800)
    told = sum((Counter(each.hear()) for each in clients), Counter())
    for each in clients:
        each.kill()
    assert (told["0"], told["1"], told["EAGAIN"]) == (500, 500, 600)


def test_bad_budgets_are_refused(web: EbpfDataplane) -> None:
    for door, path in (
        (Admission(AdmissionMode.SOFT, 1.0, None), "admission.burst"),
        (Admission(AdmissionMode.HARD, float("nan"), 1.0), "admission.rate_per_s"),
    ):
        with pytest.raises(PermanentFault, match=path):
            web.apply(table("web", 1, {"b0": 1, "b1": 1}, door), decision=1)
