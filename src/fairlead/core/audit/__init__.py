"""What makes a log auditable: Merkle tree, proofs, the format of heads. See README.md."""

from fairlead.core.audit.head import Head as Head
from fairlead.core.audit.head import SignedHead as SignedHead
from fairlead.core.audit.head import key_id as key_id
from fairlead.core.audit.head import statement_to_sign as statement_to_sign
from fairlead.core.audit.tree import EMPTY_ROOT as EMPTY_ROOT
from fairlead.core.audit.tree import Frontier as Frontier
from fairlead.core.audit.tree import Proof as Proof
from fairlead.core.audit.tree import TreeNode as TreeNode
from fairlead.core.audit.tree import check_consistency as check_consistency
from fairlead.core.audit.tree import check_inclusion as check_inclusion
from fairlead.core.audit.tree import consistency_proof as consistency_proof
from fairlead.core.audit.tree import inclusion_proof as inclusion_proof
from fairlead.core.audit.tree import leaf_hash as leaf_hash
from fairlead.core.audit.tree import node_hash as node_hash
