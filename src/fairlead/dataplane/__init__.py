"""What routes connections: adapters of the port `fairlead.ports.dataplane`.

Each is imported from its own module (`memory`, `haproxy`, `envoy`, `ebpf`); `tables` holds what all
share, `proxy` what the two proxies share. They translate tables; `core.traffic.limits` decides.
"""
