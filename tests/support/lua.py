"""Lua 5.1 in this process: the library that slurmctld's job_submit plugin loads, through ctypes.

Values cross as JSON, which Lua reads and writes with lua-cjson: the same module that job_submit.lua uses.
"""

import ctypes
import json
from typing import Any

MULTIPLE_RESULTS = -1


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
        """What `program` returns, or None. `variables` are globals of the program."""
        values = _quoted(json.dumps(variables))
        return json.loads(
            self._evaluate(
                f'local cjson = require "cjson"\n'
                f"for name, value in pairs(cjson.decode({values})) do _G[name] = value end\n"
                f"local result = (function()\n{program}\nend)()\n"
                f"return cjson.encode({{result}})"
            )
        )[0:1] or [None]

    def _evaluate(self, program: str) -> bytes:
        text = program.encode()
        status = self._library.luaL_loadbuffer(self._state, text, ctypes.c_size_t(len(text)), b"=test")
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


def _quoted(text: str) -> str:
    return '"' + "".join(f"\\{byte:03d}" for byte in text.encode()) + '"'
