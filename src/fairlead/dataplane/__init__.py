"""What routes connections: adapters of the port `fairlead.ports.dataplane`, each in its own module.

They translate tables; `core.traffic.limits` decides.
"""
