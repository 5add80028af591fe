"""A pod in one sample: what is in force of it, and what its user gave."""

from fairlead.core.cpu import Actuation, ContainerSighting, PodSighting

APP = ContainerSighting("app", 700, None, 300)
LOG = ContainerSighting("log", 100, None, 50)


def test_what_is_in_force_is_what_the_governor_moves() -> None:
    """Limits where limits are governed, else guarantees; of all containers together."""
    pod = PodSighting("web", 200, (APP, LOG))
    assert pod.in_force(Actuation.LIMITS) == 800
    assert pod.in_force(Actuation.WEIGHTS) == pod.in_force(Actuation.BOTH) == 350
    open_ended = PodSighting("web", 200, (APP, LOG._replace(limit_millicores=None)))
    assert open_ended.in_force(Actuation.LIMITS) is None
    assert open_ended.in_force(Actuation.WEIGHTS) == 350


def test_a_users_own_limit_is_the_one_known_from_before() -> None:
    """By the container's name; one that is not known has the limit in force as its own."""
    pod = PodSighting("web", 200, (APP, LOG), originals={"app": 900})
    assert (pod.original_of(APP), pod.original_of(LOG)) == (900, 100)
    assert pod.original_limit_millicores == 1000
