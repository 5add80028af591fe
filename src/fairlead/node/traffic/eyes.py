"""All eyes of the traffic agent behind one thread: scrapes, probes, checks, machines, look-ups."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.node.traffic.exporters import Machines, RemoteNode
from fairlead.node.traffic.outreach import Outreach
from fairlead.node.traffic.probes import CheckRules, KnockRules, NetworkProber
from fairlead.node.traffic.scrape import Scraper, ScrapeRules
from fairlead.node.traffic.services import Service, Services
from fairlead.node.traffic.vitals import Vitals
from fairlead.ports.dataplane import Backend


@dataclass(frozen=True, slots=True)
class EyeRules:
    """Where to look, by group."""

    scrapes: Mapping[str, ScrapeRules] = field(default_factory=dict)
    knocks: Mapping[str, KnockRules] = field(default_factory=dict)
    checks: Mapping[str, CheckRules] = field(default_factory=dict)
    services: Mapping[str, Service] = field(default_factory=dict)
    service_every_ms: int = 5_000
    local: Vitals | None = None
    remote: tuple[RemoteNode, ...] = ()


class NetworkEyes:
    """The agent's `Eyes`."""

    def __init__(self, rules: EyeRules, clock_ms: Callable[[], int]) -> None:
        self.rules = rules
        self.alarm: Callable[[], None] = lambda: None
        self._outreach = Outreach()
        self.signals = Scraper(self._outreach, clock_ms, self._ring)
        self.prober = NetworkProber(self._outreach)
        self.nodes = Machines(rules.local, rules.remote, self._outreach, clock_ms)
        self._services = Services(self._outreach, every_ms=rules.service_every_ms)
        try:
            self.follow(rules)
        except BaseException:
            self.close()
            raise

    def follow(self, rules: EyeRules) -> Callable[[], None]:
        """Look by these rules from the next `watch` on; machines stay as they were at the start.

        Returns what goes back to the rules before.
        """
        before, undo_services = self.rules, self._services.follow(rules.services)
        self.rules = rules

        def undo() -> None:
            self.rules = before
            undo_services()

        return undo

    def watch(self, members: Mapping[str, Sequence[Backend]]) -> None:
        """Look at these backends and no others."""
        here = self.rules
        self.signals.watch({g: here.scrapes[g] for g in here.scrapes if g in members}, members)
        self.prober.watch(here.knocks, here.checks, members)

    def members(self, group: str) -> Sequence[Backend] | None:
        """Backends that were looked up."""
        return self._services.members(group)

    def _ring(self) -> None:
        self.alarm()

    def close(self) -> None:
        """Stop looking."""
        self._outreach.close()
