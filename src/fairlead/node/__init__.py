"""A node: where its CPU controller lives, what its containers use, the limits they are given."""
