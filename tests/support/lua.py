"""Lua 5.1 in this process: the library that slurmctld's job_submit plugin loads, through ctypes.

Values cross as JSON, which Lua reads and writes with lua-cjson, the module that job_submit.lua uses.
"""

import ctypes
import json
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parents[2] / "slurm_plugin" / "lua" / "job_submit.lua"
# The table that slurmctld passes to the script. Messages to the user and to the log are recorded.
SLURM = """
SAID = {}
local function keep(...) SAID[#SAID + 1] = string.format(...) end
slurm = { SUCCESS = 0, ERROR = -1, log_user = keep, log_error = keep, log_info = keep }
"""
SUBMIT = """
local code = slurm_job_submit(RECORD, {}, UID)
local said = SAID
SAID = {}
return { code = code, record = RECORD, said = table.concat(said, "\\n") }
"""


class LuaError(Exception):
    """Lua raised an error."""


class Lua:
    def __init__(self) -> None:
        self._library = library = ctypes.CDLL("liblua5.1.so.0", mode=ctypes.RTLD_GLOBAL)
        library.luaL_newstate.restype = ctypes.c_void_p
        library.lua_tolstring.restype = ctypes.c_void_p
        self._state = ctypes.c_void_p(library.luaL_newstate())
        library.luaL_openlibs(self._state)

    def run(self, program: str, **variables: Any) -> Any:
        """What `program` returns. `variables` become globals."""
        values = "".join(f"\\{byte:03d}" for byte in json.dumps(variables).encode())
        text = (
            f'local cjson = require "cjson"\n'
            f'for name, value in pairs(cjson.decode("{values}")) do _G[name] = value end\n'
            f"return cjson.encode({{ result = (function()\n{program}\nend)() }})"
        )
        answer = json.loads(self._evaluate(text.encode()).decode(errors="surrogateescape"))
        return answer["result"] if answer else None

    def _evaluate(self, program: bytes) -> bytes:
        status = self._library.luaL_loadbuffer(self._state, program, ctypes.c_size_t(len(program)), b"=test")
        status = status or self._library.lua_pcall(self._state, 0, 1, 0)
        size = ctypes.c_size_t()
        address = self._library.lua_tolstring(self._state, -1, ctypes.byref(size))
        result = ctypes.string_at(address, size.value) if address else b""
        self._library.lua_settop(self._state, -2)
        if status:
            raise LuaError(result.decode(errors="replace"))
        return result

    def close(self) -> None:
        self._library.lua_close(self._state)


class JobSubmit:
    """job_submit.lua as slurmctld runs it, with the settings table `settings` beside it."""

    def __init__(self, folder: Path, settings: str) -> None:
        (folder / "job_submit.lua").write_text(SCRIPT.read_text())
        (folder / "salus_admission.lua").write_text(settings)
        self._lua = Lua()
        self._lua.run(SLURM)
        self._lua.run("dofile(PATH)", PATH=str(folder / "job_submit.lua"))

    def submit(self, uid: int = 5, **record: Any) -> dict[str, Any]:
        """The return code, the job's record afterwards, and all messages."""
        answer: dict[str, Any] = self._lua.run(SUBMIT, UID=uid, RECORD=record)
        return answer

    def close(self) -> None:
        self._lua.close()
