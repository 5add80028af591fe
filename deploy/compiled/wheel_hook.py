"""Puts the compiled core into a wheel: `make compiled`.

Off unless HATCH_BUILD_HOOK_ENABLE_CUSTOM=true: `make venv` installs the source as it is, at once.
"""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))
import compile_core


class CompiledCore(BuildHookInterface[Any]):
    """Extension modules beside their sources, which Python reads where the others do not fit."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        missing = compile_core.why_not()
        if missing is not None:
            raise SystemExit(f"the core is not compiled: {missing}")
        folder = compile_core.build()
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for path in compile_core.extensions(folder):
            build_data["force_include"][str(folder / path)] = str(path)
