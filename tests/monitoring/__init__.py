"""Alert rules and dashboards, checked with promtool and against a real Prometheus."""
