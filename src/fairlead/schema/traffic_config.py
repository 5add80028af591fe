"""Border type of the traffic governor's parameters: every default can be overridden by its name."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from fairlead.core.traffic.config import (
    DEFAULT_CONFIG,
    INTEGER_RANGES,
    NAMES,
    NUMBER_MAX,
    NUMBER_RANGES,
    OPTIONAL,
    Config,
    Theta,
)
from fairlead.core.units import OutOfRange
from fairlead.schema.border import BadInput, check_shape

Number = Annotated[float, Meta(ge=0, le=NUMBER_MAX)]
AGENT_ONLY = ("w_debt", "t_ref_s", "debt_max")
"""Backlog debt: only the agent sees it, and `traffic.tick` as a contract does not have it."""
_THETA = tuple(threshold.name for threshold in fields(Theta))


class ThetaDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Stall thresholds by PSI field, merged over the defaults; `io_some` never stalls anything."""

    cpu_some: Number = DEFAULT_CONFIG.theta.cpu_some
    mem_some: Number = DEFAULT_CONFIG.theta.mem_some
    mem_full: Number = DEFAULT_CONFIG.theta.mem_full
    io_full: Number = DEFAULT_CONFIG.theta.io_full
    io_some: Number = 1.0


def _field(name: str) -> tuple[str, Any, Any]:
    """A parameter's shape in documents, from its range and default in core."""
    if name == "theta":
        return name, ThetaDocument, ThetaDocument()
    number = name in NUMBER_RANGES
    low, high = NUMBER_RANGES[name] if number else INTEGER_RANGES[name]
    unit = "milliseconds" if name.endswith("_ms") and not number else None
    shape: Any = Annotated[float if number else int, Meta(ge=low, le=high, description=unit)]
    return name, shape | None if name in OPTIONAL else shape, getattr(DEFAULT_CONFIG, name)


if TYPE_CHECKING:

    class ConfigDocument(msgspec.Struct, frozen=True):
        """Parameters by name; what is left out keeps its default."""

        theta: ThetaDocument = ThetaDocument()

    class AgentConfigDocument(ConfigDocument, frozen=True):
        """With what only the agent can see: backlog debt."""

else:
    ConfigDocument = msgspec.defstruct(
        "ConfigDocument",
        [_field(name) for name in NAMES if name not in AGENT_ONLY],
        namespace={"__doc__": "Parameters by name; what is left out keeps its default."},
        module=__name__,
        frozen=True,
        forbid_unknown_fields=True,
    )
    AgentConfigDocument = msgspec.defstruct(
        "AgentConfigDocument",
        [_field(name) for name in AGENT_ONLY],
        bases=(ConfigDocument,),
        namespace={"__doc__": "With what only the agent can see: backlog debt."},
        module=__name__,
        frozen=True,
    )


DEFAULT = ConfigDocument()
AGENT_DEFAULTS: Mapping[str, Any] = {"warmup_ms": 15_000, "error_requests_min": 1_000}
"""Where the agent departs from the tick's own defaults, unless the operator sets them. Half the
warm-up, because a backend that comes back has been probed first, and is to be back within 20 s. A
raw rate only where it means something: one error of 200 requests is chance, and weighs 1.5."""


@lru_cache(maxsize=64)
def to_config(document: ConfigDocument) -> Config:
    """Core's value. Kept, because a group's parameters are the same tick after tick."""
    names = [name for name in document.__struct_fields__ if name != "theta"]
    try:
        return Config(
            theta=Theta(**{name: getattr(document.theta, name) for name in _THETA}),
            **{name: getattr(document, name) for name in names},
        )
    except OutOfRange as error:
        raise BadInput(f"config.{error.field}", error.message) from error


def read_config(config: Mapping[str, Any], path: str) -> Config:
    """The parameters that a configuration file sets, over the defaults; `path` is theirs in it."""
    try:
        return to_config(check_shape(dict(config), AgentConfigDocument))
    except BadInput as error:
        raise BadInput(f"{path}.{error.path.removeprefix('config.')}", error.message) from error


def from_config(config: Config) -> dict[str, Any]:
    """The document of the parameters: what differs from the defaults, by name."""
    document = _differing(config, DEFAULT_CONFIG, AgentConfigDocument.__struct_fields__)
    if "theta" in document:
        document["theta"] = _differing(config.theta, DEFAULT_CONFIG.theta, _THETA)
    return document


def _differing(value: Any, default: Any, names: Sequence[str]) -> dict[str, Any]:
    return {
        name: getattr(value, name)
        for name in names
        if getattr(value, name) != getattr(default, name)
    }
