"""A compiler that writes a line in place of a program, for tests of the builder.

It is put on PATH as `go`. BUILDS takes a line for each program that is built; PROBLEM is printed
before a failure; HANG names the program at which it sleeps until it is ended.
"""

import os
import sys
from pathlib import Path

SCRIPT = f"""#!{sys.executable}
import os, sys, time
if sys.argv[1:] == ["env", "GOVERSION"]:
    sys.exit(print("go1.26.8"))
output = sys.argv[sys.argv.index("-o") + 1]
name = os.path.basename(output).removesuffix(".draft")
if os.environ.get("HANG") == name:
    with open(os.environ["BUILDS"] + ".hanging", "w") as file:
        file.write(str(os.getpid()))
    time.sleep(600)
if os.environ.get("PROBLEM"):
    sys.exit(os.environ["PROBLEM"])
with open(os.environ["BUILDS"], "a") as file:
    file.write(name + "\\n")
with open(output, "w") as file:
    file.write("#!/bin/sh\\n")
os.chmod(output, 0o755)
"""


def install(folder: Path) -> dict[str, str]:
    """The environment in which `go` is this stub and the cache is empty."""
    (folder / "bin").mkdir()
    go = folder / "bin" / "go"
    go.write_text(SCRIPT)
    go.chmod(0o755)
    environment = {key: value for key, value in os.environ.items() if key != "KUBEBUILDER_ASSETS"}
    return {
        **environment,
        "PATH": f"{go.parent}:{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(folder / "cache"),
        "BUILDS": str(folder / "builds"),
    }
