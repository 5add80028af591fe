"""The traffic agent: keeps time, state and eyes for `fairlead.engine.traffic_loop`.

`agent` is the process; `scrape`, `probes`, `vitals`, `exporters` and `services` are its eyes, all
of which talk to the network in one thread of their own (`outreach`), so that no tick waits for a
backend. `fairlead.compose.traffic` puts them together.
"""
