"""The configuration of webhooks: receivers, what they are sent, and the file of the shared secret.

receivers:
  - name: ops
    url: https://hooks.example.org/fairlead
    secretFile: /etc/fairlead/ops.secret
    kinds: [gpu.resolve., run.phase]     # all kinds when left out; a beginning is enough
    owners: [team-a]                     # all owners when left out; commits and draws come anyway
"""

from typing import Annotated

import msgspec
from msgspec import Meta, field

from fairlead.schema.border import BadInput, check_shape
from fairlead.schema.objects import Label, Name
from fairlead.schema.yaml import parse_yaml

Text = Annotated[str, Meta(min_length=1, max_length=2_000)]


class ReceiverDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True, rename="camel"):
    """One receiver."""

    name: Name
    url: Text
    secret_file: Text
    allow_private: bool = False
    kinds: list[Text] = field(default_factory=list)
    owners: list[Label] = field(default_factory=list)


class WebhooksDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """All of them."""

    receivers: list[ReceiverDocument]


def read_webhooks(data: bytes) -> list[ReceiverDocument]:
    document = check_shape(parse_yaml(data), WebhooksDocument)
    seen: set[str] = set()
    for i, receiver in enumerate(document.receivers):
        if receiver.name in seen:
            raise BadInput(f"receivers[{i}].name", f"repeats another receiver's, {receiver.name!r}")
        seen.add(receiver.name)
    return document.receivers
