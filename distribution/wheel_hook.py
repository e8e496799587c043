"""Hatch's build hook: adds the native libraries that `make native` built, and tags the wheel with its platform.

Without them the wheel would install but find no library to load. An editable installation uses the tree as it is.
"""

import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# The files that `make native-libsalus native-spank` builds, and their paths in the wheel.
NATIVE = {
    "nodedaemon/job/libsalus/libsalus.so": "nodedaemon/job/libsalus/libsalus.so",
    "nodedaemon/job/libsalus/libsalus-preload.so": "nodedaemon/job/libsalus/libsalus-preload.so",
    "nodedaemon/job/libsalus/cuda/libcuda.so.1": "nodedaemon/job/libsalus/cuda/libcuda.so.1",
    "build/spank/salus_spank.so": "slurm_plugin/spank/salus_spank.so",
}


class NativeHook(BuildHookInterface[Any]):
    """Registered in pyproject.toml."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        missing = [name for name in NATIVE if not Path(self.root, name).is_file()]
        if missing:
            raise FileNotFoundError(f"wheel not built: {', '.join(missing)}: missing; run make wheel")
        build_data["force_include"].update({str(Path(self.root, name)): place for name, place in NATIVE.items()})
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        # Not tied to a Python version: ctypes loads libsalus into any interpreter.
        build_data["tag"] = f"py3-none-{platform}"
