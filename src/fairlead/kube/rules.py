"""Rules of the CRDs in CEL: what fields say of each other, and what may not be changed."""

from typing import Any

from fairlead.schema.objects import RUN_MUTABLE
from fairlead.schema.route_group import EVERY_MS_MIN
from fairlead.schema.times import DURATION_MS_MAX, DURATION_PATTERN
from fairlead.schema.traffic_agent import SCRAPED

Document = dict[str, Any]


def rules_of(kind: str, spec: Document) -> list[Document]:
    """What fields say of each other, and what may not be changed."""
    if kind == "Budget":
        return [_fixed("owner", required=True)]
    if kind == "RouteGroup":
        return _ROUTE_GROUP_RULES
    if kind == "PodAllocation":
        once = "self.containers.all(c, self.containers.exists_one(d, d.name == c.name))"
        return [
            *(_fixed(name, required=True) for name in ("pod", "uid", "node")),
            {"rule": once, "message": "containers must have names of their own"},
            {
                "rule": _ONE_RESOURCE,
                "message": "containers must all have limitMillicores, or all requestMillicores",
            },
        ]
    if kind != "Run":
        return [{"rule": "self == oldSelf", "message": f"spec is {_FIXED}"}]
    required = set(spec["required"])
    # A template has no type that a rule could compare; the controller holds runs to its digest.
    fixed = sorted(spec["properties"].keys() - RUN_MUTABLE - {"template", "owner"})
    return [*_RUN_RULES, *(_fixed(name, required=name in required) for name in fixed)]


_ONE_RESOURCE = " || ".join(
    f"self.containers.all(c, has(c.{one}) && !has(c.{other}))"
    for one, other in (
        ("limitMillicores", "requestMillicores"),
        ("requestMillicores", "limitMillicores"),
    )
)
_WITH_SPARES = "has(self.sparesPerGroup) && self.sparesPerGroup > 0 && has(self.groupGPUs)"
_STEP = "(has(self.malleable.stepGPUs) ? self.malleable.stepGPUs : 1)"
_RUN_RULES: list[Document] = [
    {"rule": rule, "message": message}
    for rule, message in (
        (
            "!has(self.groupGPUs) || self.groupGPUs <= self.totalGPUs",
            "groupGPUs must be at most totalGPUs",
        ),
        (
            "!has(self.malleable) || has(self.groupGPUs)",
            "groupGPUs is required for a malleable run, which shrinks and grows by whole groups:"
            " for example malleable.stepGPUs",
        ),
        (
            "!has(self.malleable) || self.malleable.minTotalGPUs <= self.totalGPUs",
            "malleable.minTotalGPUs must be at most totalGPUs",
        ),
        (
            "!has(self.malleable) || (self.totalGPUs - self.malleable.minTotalGPUs)"
            f" % {_STEP} == 0",
            "totalGPUs must be malleable.minTotalGPUs plus a multiple of stepGPUs",
        ),
        *(
            (
                f"!({_WITH_SPARES}{only}) || {width} % self.groupGPUs == 0",
                f"{name} must be whole groups of groupGPUs with spares",
            )
            for name, width, only in (
                ("totalGPUs", "self.totalGPUs", ""),
                (
                    "malleable.minTotalGPUs",
                    "self.malleable.minTotalGPUs",
                    " && has(self.malleable)",
                ),
                ("malleable.stepGPUs", _STEP, " && has(self.malleable)"),
            )
        ),
        ("!has(self.idleAction) || has(self.idleAfter)", "idleAfter is required with idleAction"),
        (
            "!has(self.command) || size(self.command) == 0 || self.command[0] != ''",
            "command[0] must be a program",
        ),
    )
]

_WHOLE_MAX = 15
"""The longest part of a duration that CEL can multiply."""
DURATION_RULE: Document = {
    "rule": f"self.matches('{DURATION_PATTERN}')"
    f" && self.findAll('[0-9]+(ms|[dhms])').all(part, size(part) <= {_WHOLE_MAX})"
    " && [self.findAll('[0-9]+(ms|[dhms])').map(part, int(part.find('[0-9]+'))"
    " * (part.endsWith('d') ? 86400000 : part.endsWith('h') ? 3600000"
    " : part.endsWith('ms') ? 1 : part.endsWith('m') ? 60000 : 1000)).sum()]"
    f".all(total, total > 0 && total <= {DURATION_MS_MAX})",
    "message": "must be a duration like 90m, 2h or 1h30m, more than 0 and at most 366d",
}
OBJECT_RULES: dict[str, list[Document]] = {
    "WindowSpec": [{"rule": "self.start < self.end", "message": "end must be after its start"}],
    "ScrapeDocument": [
        {
            "rule": " || ".join(f"has(self.{name})" for name in SCRAPED),
            "message": f"must name at least one of {', '.join(SCRAPED)}",
        },
        {
            "rule": "!has(self.errors) || has(self.requests)",
            "message": "requests is required where errors are scraped",
        },
        {
            "rule": "!has(self.latency) || !has(self.p95)",
            "message": "p95 must be left out where latency is scraped",
        },
    ],
}
"""Of types that are a part of several objects, by their names."""
_ROUTE_GROUP_RULES: list[Document] = [
    {
        "rule": "(self.dataplane == 'ebpf') != has(self.port)",
        "message": "port is required on a proxy, and must be left out on ebpf",
    },
    {
        "rule": "self.dataplane == 'ebpf' || !has(self.proto) || self.proto == 'tcp'",
        "message": "proto must be tcp on a proxy",
    },
    *(
        {
            "rule": f"!has(self.{part}) || !has(self.{part}.{name})"
            f" || self.{part}.{name} >= {EVERY_MS_MIN}",
            "message": f"{part}.{name} must be at least {EVERY_MS_MIN}",
        }
        for part, name in (
            ("scrape", "every_ms"),
            ("check", "every_ms"),
            ("isolation", "probe_every_ms"),
        )
    ),
]


_FIXED = "immutable: delete the object, create it anew"


def _fixed(name: str, *, required: bool) -> Document:
    rule = f"self.{name} == oldSelf.{name}"
    if not required:
        rule = f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || {rule})"
    return {"rule": rule, "message": f"{name} is {_FIXED}"}
