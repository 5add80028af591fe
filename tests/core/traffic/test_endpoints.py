"""Which endpoints of a service are backends: ready ones, for us; those that end drain."""

from dataclasses import replace
from itertools import permutations

from fairlead.core.traffic.endpoints import ChosenEndpoints, ServiceEndpoint, choose_endpoints

A, B, C = (ServiceEndpoint(f"10.0.0.{number}", 80) for number in (1, 2, 3))


def ending(endpoint: ServiceEndpoint, *, serving: bool = True) -> ServiceEndpoint:
    return replace(endpoint, ready=False, serving=serving, terminating=True)


def hosts(chosen: ChosenEndpoints) -> list[str]:
    return [backend.host for backend in chosen.backends]


def test_ready_endpoints_are_backends_and_others_leave() -> None:
    """Neither ready nor terminating: it is starting, or ill, and gets nothing."""
    chosen = choose_endpoints([replace(C, ready=False, serving=False), B, A])
    assert hosts(chosen) == ["10.0.0.1", "10.0.0.2"]
    assert chosen.draining == ()


def test_an_endpoint_that_terminates_and_serves_drains() -> None:
    chosen = choose_endpoints([A, ending(B)])
    assert hosts(chosen) == ["10.0.0.1", "10.0.0.2"]
    assert chosen.draining == ("10.0.0.2:80",)


def test_an_endpoint_that_terminates_and_serves_no_more_leaves() -> None:
    assert hosts(choose_endpoints([A, ending(B, serving=False)])) == ["10.0.0.1"]


def test_without_a_ready_endpoint_those_that_still_serve_take_what_comes() -> None:
    """Better than no backend at all: they are not drained then."""
    chosen = choose_endpoints([ending(A), ending(B, serving=False)])
    assert (hosts(chosen), chosen.draining) == (["10.0.0.1"], ())


def test_no_endpoint_is_no_backend() -> None:
    assert choose_endpoints([]) == ChosenEndpoints(())


def test_a_place_that_is_listed_twice_is_one_backend() -> None:
    """While it moves between two slices it is in both: the better report holds, in any order."""
    for rows in permutations([ending(A), A, replace(A, node="n1"), replace(A, ready=False), B]):
        chosen = choose_endpoints(rows)
        assert hosts(chosen) == ["10.0.0.1", "10.0.0.2"]
        assert chosen.draining == ()
        assert chosen.backends[0] == A


def test_of_reports_that_are_as_good_the_one_that_says_less_holds() -> None:
    """In any order."""
    for more in (replace(A, node="1"), replace(A, zone="1"), replace(A, for_zones=("1",))):
        assert choose_endpoints([A, more]).backends == (A,)
        assert choose_endpoints([more, A]).backends == (A,)


def test_endpoints_for_our_zone_are_used_while_there_is_one() -> None:
    ours, theirs = replace(A, for_zones=("a",)), replace(B, for_zones=("b", "c"))
    both = replace(C, for_zones=("a", "b"))
    assert hosts(choose_endpoints([ours, theirs, both], zone="a")) == ["10.0.0.1", "10.0.0.3"]
    assert hosts(choose_endpoints([ours, theirs], zone="c")) == ["10.0.0.2"]
    assert hosts(choose_endpoints([ours, theirs], zone="d")) == ["10.0.0.1", "10.0.0.2"]
    assert hosts(choose_endpoints([ours, theirs])) == ["10.0.0.1", "10.0.0.2"]


def test_hints_that_are_incomplete_are_ignored() -> None:
    """As kube-proxy reads them: they would overload the endpoints that have one."""
    ours = replace(A, for_zones=("a",))
    assert hosts(choose_endpoints([ours, B], zone="a")) == ["10.0.0.1", "10.0.0.2"]


def test_endpoints_for_our_node_come_before_those_for_our_zone() -> None:
    near = replace(A, for_nodes=("n1",), for_zones=("a",))
    far = replace(B, for_nodes=("n2",), for_zones=("a",))
    assert hosts(choose_endpoints([near, far], zone="a", node="n1")) == ["10.0.0.1"]
    assert hosts(choose_endpoints([near, far], zone="a", node="n3")) == ["10.0.0.1", "10.0.0.2"]


def test_what_drains_in_another_zone_was_never_ours() -> None:
    """An endpoint that terminates has no hint: its own zone tells."""
    ours = replace(A, for_zones=("a",))
    here, there = ending(replace(B, zone="a")), ending(replace(C, zone="b"))
    chosen = choose_endpoints([ours, here, there], zone="a")
    assert hosts(chosen) == ["10.0.0.1", "10.0.0.2"]
    assert chosen.draining == ("10.0.0.2:80",)
    assert len(choose_endpoints([A, here, there], zone="a").backends) == 3


def test_ids_are_addresses_of_both_families() -> None:
    assert A.id == "10.0.0.1:80"
    assert ServiceEndpoint("fd00::1", 80).id == "[fd00::1]:80"
