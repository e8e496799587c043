"""The settings of job_submit.lua as a Lua table, written by `salus config lua`. Lua does not parse salus.conf."""

from __future__ import annotations

from nodedaemon.config import Config
from nodedaemon.core.types import SECOND_NS
from slurm_plugin.slurm import GPU_APART_RELEASE

FILE_NAME = "salus_admission.lua"


def lua_text(text: str) -> str:
    """A Lua string literal."""
    escaped = (char if char.isprintable() and char not in '"\\' else f"\\{ord(char):03d}" for char in text)
    return f'"{"".join(escaped)}"'


def lua_table(config: Config, shards_max: int, slurm_uid: int, release: tuple[int, int]) -> str:
    """Lua source that returns the table. `shards_max` fills the largest device, for releases before 24.11."""
    admission = config.settings.admission
    whole_device = "gpu:1" if release >= GPU_APART_RELEASE else f"shard:{shards_max}"
    return f"""\
-- Written by `salus config lua` from salus.conf; run it again after each change.
return {{
  socket = {lua_text(admission.socket)},
  timeout_s = {admission.timeout_ns / SECOND_NS:g},
  timeouts_max = {admission.timeouts_max},
  pause_s = {admission.pause_ns / SECOND_NS:g},
  on_loss = {lua_text(admission.on_admission_loss)},
  whole_device = {lua_text(whole_device)},
  slurm_uid = {slurm_uid},
}}
"""
