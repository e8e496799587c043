"""Hatch's hook for the wheel: what `make native` built goes in, and the wheel says for which platform it is.

Without it a wheel would install and then find no library to load. An editable installation uses the tree as it is.
"""

import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Where `make native-libsalus native-spank` leaves a file, and where the installed packages look for it.
NATIVE = {
    "nodedaemon/job/libsalus/libsalus.so": "nodedaemon/job/libsalus/libsalus.so",
    "nodedaemon/job/libsalus/libsalus-preload.so": "nodedaemon/job/libsalus/libsalus-preload.so",
    "nodedaemon/job/libsalus/cuda/libcuda.so.1": "nodedaemon/job/libsalus/cuda/libcuda.so.1",
    "build/spank/salus_spank.so": "slurm_plugin/spank/salus_spank.so",
}


class NativeHook(BuildHookInterface[Any]):
    """Named by pyproject.toml."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        missing = [name for name in NATIVE if not Path(self.root, name).is_file()]
        if missing:
            raise FileNotFoundError(f"wheel not built: {', '.join(missing)}: not there; run make wheel")
        build_data["force_include"].update({str(Path(self.root, name)): place for name, place in NATIVE.items()})
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        # No extension module: libsalus is loaded by ctypes into whatever interpreter the job has.
        build_data["tag"] = f"py3-none-{platform}"
