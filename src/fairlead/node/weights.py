"""Guarantees as the kernel keeps them: cpu.shares (v1) and cpu.weight (v2).

A core is worth the kernel's own default weight, 1024 shares or a weight of 100, so that a guarantee
means the same beside cgroups whose weight was never set. Weights only count among siblings.
"""

from typing import NamedTuple

from fairlead.node.kernel_files import counter


class WeightFile(NamedTuple):
    """A version's file, its weight of one core, and the kernel's bounds."""

    name: str
    per_core: int
    least: int
    most: int

    def weight(self, millicores: int) -> int:
        """Rounded up, so that reading it back gives the same guarantee where a weight is that fine;
        v2 knows steps of 10 millicores only."""
        return min(max(-(-millicores * self.per_core // 1000), self.least), self.most)

    def millicores(self, weight: int) -> int:
        return weight * 1000 // self.per_core

    def read(self, data: bytes) -> int | None:
        """The weight in a file; None where it is none of the kernel's."""
        weight = counter(data)
        return weight if weight is not None and self.least <= weight <= self.most else None


WEIGHTS = {
    1: WeightFile("cpu.shares", 1024, 2, 262_144),
    2: WeightFile("cpu.weight", 100, 1, 10_000),
}
