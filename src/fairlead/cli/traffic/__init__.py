"""`fairlead traffic`: the governor of a service's connections."""
