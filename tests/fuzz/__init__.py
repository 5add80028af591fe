"""Rubbish for every border: kept inputs, a sample of changes of them, and a guided search."""
