"""Tests of the Merkle tree, its proofs and the format of heads."""
