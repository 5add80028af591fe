"""Recorded decisions: the whole input beside the output, so that `fairlead replay` runs them again.

The bytes whose digest names an input are rendered once. A small input stands in the entry's body; a
large one is kept among the ledger's blobs, so that whoever folds the log need not read it.
"""

from hashlib import sha256
from typing import Any

from fairlead.core.canonical import canonical
from fairlead.engine.gpu.values import SYSTEM
from fairlead.ports.ledger import Draft

INPUT_BYTES_MAX = 64 * 1024


def decided(
    kind: str,
    version: int,
    *,
    input: dict[str, Any],
    output: dict[str, Any],
    now_ms: int,
    about: dict[str, Any],
    plan_id: str | None = None,
    effect: str | None = None,
    reasons: tuple[str, ...] = (),
) -> Draft:
    """One decision; `about` is what else its body says."""
    data = canonical(input)
    large = len(data) > INPUT_BYTES_MAX
    body = {**about, "output": output} if large else {**about, "input": input, "output": output}
    return Draft(
        kind=kind,
        time_ms=now_ms,
        author=SYSTEM,
        body=body,
        plan_id=plan_id,
        effect=effect,
        input_digest=sha256(data).hexdigest(),
        blobs=(data,) if large else (),
        version=version,
        reasons=reasons,
    )
