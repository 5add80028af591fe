"""What every adapter needs of an operating system; below the ports, so it raises OSError alone.

    files      durable replace, JSON documents, file locks
    clock      wall and monotonic time; waiting for a condition
    paths      state and cache directories
    http       one blocking HTTP/1.1 client: TCP, TLS and Unix sockets, under a total deadline
    http_async GET and connect for an event loop that asks many backends at once
    process    children in a session of their own
    kernel     prctl

Small processes (the job shim, the dead-man's switch) import single modules of this package, so
nothing is imported here, and `files`, `clock` and `kernel` need little of the standard library.
"""
