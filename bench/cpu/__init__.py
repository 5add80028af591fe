"""CPU policies side by side on real cgroups: `python -m bench.cpu`. See README.md beside this."""
