"""What really moves connections: planes behind the port `fairlead.ports.dataplane`.

Each plane is a module of its own (`memory`, `haproxy`, `envoy`, `ebpf`) and is imported from there;
`tables` holds what they share: which groups and tables are sound, and what fallback means.
"""
