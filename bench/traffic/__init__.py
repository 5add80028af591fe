"""Load balancers and governors side by side: one machine, one seeded load, real proxies."""
