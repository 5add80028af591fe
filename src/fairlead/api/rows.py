"""Rows of the tables that the API gives: one type for each table."""

from typing import Literal

from fairlead.api.shapes import Shape


class BudgetRow(Shape):
    """One envelope."""

    budget: str
    owner: str
    envelope: str
    flavor: str
    location: dict[str, str]
    limit_gpus: int
    used_gpus: int
    free_gpus: int
    lent_gpus: int
    limit_gpu_hours: float | None
    used_gpu_hours: float
    held_gpu_hours: float
    free_gpu_hours: float | None
    overdraft_gpu_hours: float
    period_end: str | None
    conditions: list[str]


class LeaseRow(Shape):
    """One open lease."""

    lease: str
    run: str
    owner: str
    role: str
    group: int
    slots: list[str]
    gpus: int
    budget: str
    envelope: str
    borrowed: bool
    funded: bool
    start: str
    expected_end: str | None
    gpu_hours: float


class SponsorRow(Shape):
    """One envelope that lends to the owner."""

    owner: str
    budget: str
    envelope: str
    location: dict[str, str]
    free_gpus: int
    lent_gpus: int
    free_gpu_hours: float | None
    open: bool
    family: bool


class OwesRow(Shape):
    """What one owner borrowed of another: GPUs now, GPU-hours ever."""

    borrower: str
    lender: str
    gpus: int
    gpu_hours: float


class ReportRow(Shape):
    """GPU-hours of a period, by what the report was asked for; or the idle devices of a node.

    What a report was not asked to tell apart is null. `idle_gpus` stood idle when the period (or
    the report) ended, the longest of them since `idle_since`; `idle_gpu_hours` is of the whole
    period.
    """

    kind: Literal["usage", "idle"]
    period: str
    start: str
    end: str
    owner: str | None
    run: str | None
    payer: str | None
    budget: str | None
    envelope: str | None
    borrowed: bool | None
    gpu_hours: float
    overdraft_gpu_hours: float
    node: str | None
    idle_gpus: int
    idle_gpu_hours: float
    idle_since: str | None
