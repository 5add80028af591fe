"""What those kinds hold that only Kubernetes has; the others have the manifests' own types."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field

from fairlead.core.units import SIZE_MAX
from fairlead.schema.objects import Label, Name, Time

PodName = Annotated[str, Meta(min_length=1, max_length=253)]
QUERY_BYTES_MAX = 400_000
"""Of a Query's body, and of what is answered: an object of etcd is at most 1.5 MiB."""


class OwnerBindingSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Whose the runs of a namespace are. Only an admin may write it."""

    namespace: Name
    owner: Label


class PayerSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The envelope that a lease is charged to."""

    budget: str
    envelope: str


class GPULeaseSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True, rename="camel"):
    """Devices that a run holds, as the ledger's entry `lease.open` says."""

    run: str
    owner: str
    role: str
    group: int
    slots: list[str]
    payer: PayerSpec
    borrowed: bool
    start: Time
    reason: str
    expected_end: Time | None = None


class ResolverOutcomeSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One resolve, as the ledger's commitment says; names are pseudonyms."""

    outcome: int
    chain: str
    k: int
    cause: str | None = None
    deficit_gpus: int = field(name="deficitGPUs", default=0)


class ContainerCpu(msgspec.Struct, forbid_unknown_fields=True, frozen=True, rename="camel"):
    """The CPU limit of one container; its request where weights are governed."""

    name: Name
    limit_millicores: Annotated[int, Meta(ge=1, le=SIZE_MAX)] | None = None
    request_millicores: Annotated[int, Meta(ge=1, le=SIZE_MAX)] | None = None


class PodAllocationSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True, rename="camel"):
    """The CPU limits of one pod, or its requests, as the node agent's recorded decision says."""

    pod: PodName
    uid: Annotated[str, Meta(min_length=1, max_length=63)]
    node: PodName
    decision: Annotated[int, Meta(ge=0, description="the entry of the node agent's record")]
    capacity_millicores: Annotated[
        int, Meta(ge=0, le=SIZE_MAX, description="what the decision divided among the node's pods")
    ]
    containers: Annotated[list[ContainerCpu], Meta(min_length=1, max_length=64)]


class QuerySpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One request of the HTTP API, asked through Kubernetes for the owner of the namespace.

    The controller answers in the status, and deletes it after a minute. Who may create a Query acts
    for the namespace's owner.
    """

    method: Literal["GET", "POST", "PUT"]
    path: Annotated[str, Meta(min_length=1, max_length=1024, pattern="^/")]
    query: dict[str, str] = field(default_factory=dict)
    body: Annotated[str, Meta(max_length=QUERY_BYTES_MAX)] = ""
    """JSON; empty: none."""
