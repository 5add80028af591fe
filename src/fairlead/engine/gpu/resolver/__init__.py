"""Somebody has to give way: reservations, conflicts, the protocol of a fair chance, cuts."""
