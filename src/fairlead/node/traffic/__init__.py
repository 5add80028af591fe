"""The traffic agent: keeps time, state and sensors for `fairlead.engine.traffic`.

`agent` is the process; `scrape`, `probes` and `sensors` are what it sees. They talk to the network
in one thread of their own (`poller`), so that no tick waits for a backend. `commands` are the
operator's, `event_log` writes to the ledger, `reports` has status and metrics.
`fairlead.compose.traffic` puts them together.
"""
