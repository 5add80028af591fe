"""Groups of different users on one agent: one that is refused leaves the others alone."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from fairlead.dataplane.memory import MemoryDataplane
from fairlead.host.clock import steady_now_ms as now_ms
from fairlead.node.traffic.agent import GroupSpec, Reloaded
from fairlead.node.traffic.commands import change_command
from fairlead.ports.dataplane import GroupRefused, RouteGroup
from tests.node.traffic.test_agent import BACKENDS, Folder, spec


class Choosy(MemoryDataplane):
    """A plane that cannot serve some groups."""

    refused: tuple[str, ...] = ("bad", "worse")

    def configure(self, groups: Sequence[RouteGroup]) -> None:
        for group in groups:
            if group.name in self.refused:
                raise GroupRefused(group.name, f"{group.name}: is taken")
        super().configure(groups)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path)
    made.plane = Choosy(now_ms)
    return made


def test_groups_that_the_dataplane_refuses_are_left_out(folder: Folder) -> None:
    """At the start and later; one that can be served after all comes with the next change."""
    names = ("bad", "good", "worse")
    specs = [spec(name=name, port=9000 + number) for number, name in enumerate(names)]
    agent = folder.agent(*specs, reload=lambda: Reloaded(specs, lambda: None), apart=True)
    agent.start()
    try:
        agent.tick()
        assert sorted(agent.loop.groups) == ["good"]
        assert agent.refused == {"bad": "bad: is taken", "worse": "worse: is taken"}
        governor = agent.loop.groups["good"].governor
        folder.plane.refused = ("worse",)  # type: ignore[attr-defined]
        agent.hang_up()
        agent.run(ticks_max=2)
        assert sorted(agent.loop.groups) == ["bad", "good"]
        assert agent.loop.groups["good"].governor is governor
        assert agent.refused == {"worse": "worse: is taken"}
        assert not agent.behind
    finally:
        agent.close()
    assert len(folder.said) == 2, "each is reported once"


def test_groups_of_one_file_stand_and_fall_together(folder: Folder) -> None:
    agent = folder.agent(spec(name="bad"), spec(name="good", port=9001))
    with pytest.raises(GroupRefused):
        agent.start()
    agent.close()


def test_a_change_that_fails_is_known_to_be_behind(folder: Folder) -> None:
    wanted: list[GroupSpec] = [spec()]

    def again() -> Reloaded:
        if not wanted:
            raise ValueError("the disk is full")
        return Reloaded(wanted, lambda: None)

    agent = folder.agent(reload=again, apart=True)
    agent.start()
    wanted.clear()
    agent.hang_up()
    agent.run(ticks_max=1)
    assert agent.behind
    wanted.append(spec(*BACKENDS))
    agent.hang_up()
    agent.run(ticks_max=2)
    agent.close()
    assert not agent.behind


def test_drains_that_come_with_the_groups_are_followed_beside_the_operators(folder: Folder) -> None:
    drains = {"web": {"a": "drain"}}
    agent = folder.agent(drains=lambda: drains)
    agent.start()
    round = agent.tick()
    assert round.groups["web"].plan.slots == {"a": 0, "b": 256}
    assert round.groups["web"].decision.drains == ("a",)
    change_command(agent.directory, "web", "b", "isolate")
    round = agent.tick()
    assert set(round.groups["web"].decision.observed.isolated) == {"a", "b"}
    agent.close()
