"""What every adapter needs of an operating system; below the ports, so it raises OSError alone.

Small processes (the job shim, the dead-man's switch) import single modules of this package, so
nothing is imported here, and `files`, `clock` and `kernel` need little of the standard library.
"""
