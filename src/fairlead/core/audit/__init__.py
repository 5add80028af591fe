"""What makes a log auditable: Merkle tree, proofs, the format of heads. See README.md."""

from fairlead.core.audit.head import Head, SignedHead, key_id, statement_to_sign
from fairlead.core.audit.proofs import (
    Proof,
    check_consistency,
    check_inclusion,
    consistency_proof,
    inclusion_proof,
)
from fairlead.core.audit.tree import (
    EMPTY_ROOT,
    Frontier,
    Growth,
    Stored,
    TreeNode,
    leaf_hash,
    node_hash,
)

__all__ = [
    "EMPTY_ROOT",
    "Frontier",
    "Growth",
    "Head",
    "Proof",
    "SignedHead",
    "Stored",
    "TreeNode",
    "check_consistency",
    "check_inclusion",
    "consistency_proof",
    "inclusion_proof",
    "key_id",
    "leaf_hash",
    "node_hash",
    "statement_to_sign",
]
