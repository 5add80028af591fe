"""Kueue's minimal controller without its client limit: the same source, one number changed.

Its QPS is written into the program (50, burst 100), so it is built again, once, from the pinned
source that the other programs are built from.
"""

import shutil
import tempfile
from pathlib import Path

from fairlead.host import files
from fairlead.kube.dev import assets, toolchain
from fairlead.kube.dev.assets import Programs
from fairlead.kube.dev.pins import SOURCES

LIMITED, UNLIMITED = "kubeConfig.QPS = 50", "kubeConfig.QPS = -1"
NAME = "minimalkueue-unlimited"


def without_limit(programs: Programs) -> Path:
    """The program; built where it is missing."""
    (source,) = (each for each in SOURCES if each.name == "kueue")
    target = assets.home() / "bench" / f"{NAME}-{source.digest()}"
    if target.exists():
        return target
    text = (programs.data("kueue") / source.programs["minimalkueue"] / "main.go").read_text()
    if text.count(LIMITED) != 1:
        raise RuntimeError(f"{LIMITED!r} is not in Kueue's minimal controller any more")
    target.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as folder:
        module = Path(folder) / "kueue"
        shutil.copytree(source.folder, module)
        (module / NAME).mkdir()
        (module / NAME / "main.go").write_text(text.replace(LIMITED, UNLIMITED))
        go = toolchain.find_go(assets.cache(), print)
        command = [str(go), "build", "-ldflags", source.linker_flags(), "-o"]
        with files.draft(target, mode=0o755) as output:
            toolchain.run(
                [*command, output, f"./{NAME}"],
                doing=f"build {NAME}",
                log=Path(folder) / "log",
                env=toolchain.environment(),
                cwd=module,
            )
    return target
