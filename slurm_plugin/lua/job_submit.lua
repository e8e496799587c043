-- Slurm's job_submit plugin for Salus: sends a job's fields to salus-admitd and applies the answer. It decides nothing.
-- Its settings are in salus_admission.lua beside it, written by `salus config lua`. Lua 5.1.
-- slurmctld waits while this runs, so every path has a deadline.
-- On 22.05 and 24.11 Slurm accepts a job unchanged when the script fails, so each entry point runs under pcall.

local here = debug.getinfo(1, "S").source:match("^@(.*/)") or "/etc/slurm/"
-- An error here would stop slurmctld from starting. Without its settings the script refuses Salus jobs and no others.
local is_loaded, settings = pcall(dofile, here .. "salus_admission.lua")
if not is_loaded then
  slurm.log_error("salus: job_submit.lua: %s", tostring(settings))
  settings = { socket = "/run/salus/admitd.sock", timeout_s = 0.5, timeouts_max = 3, pause_s = 10, on_loss = "refuse" }
end
local cjson = require "cjson"
local socket = require "socket"
local unix = require "socket.unix"
local new_socket = type(unix) == "table" and (unix.stream or unix.tcp) or unix

local SEGMENT_MARK = "salus:1"
local TRES_FIELDS = { "tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task" }
local unpack = table.unpack or unpack
local MODIFY_FIELDS = { "partition", "account", "qos", "features", "req_nodes", unpack(TRES_FIELDS) }
local FIELDS = { "admin_comment", "name", "array_inx", "time_limit", "min_nodes", "max_nodes", "num_tasks", "requeue",
  "shared", "het_job_offset", "reservation", unpack(MODIFY_FIELDS) }

local connection, timeout_count, timeout_at, silent_until = nil, 0, 0, 0

local function fields_of(record, names)
  local fields = {}
  for _, name in ipairs(names) do
    local value = record[name]
    if type(value) == "string" or type(value) == "number" then fields[name] = value end
  end
  return fields
end

-- True for a request that names salus or shard. Other jobs must not cost a round trip.
local function is_ours(fields)
  for _, name in ipairs(TRES_FIELDS) do
    local value = fields[name]
    if type(value) == "string" and (value:find("salus", 1, true) or value:find("shard", 1, true)) then return true end
  end
  return false
end

-- The options that the SPANK plugin left in the job's environment.
local function options_of(record)
  local options = {}
  for index = 0, (tonumber(record.spank_job_env_size) or 0) - 1 do
    local name, value = (record.spank_job_env[index] or ""):match("^([%w_]*SALUS_[%u_]+)=(.*)$")
    if name then options[name:gsub("^SPANK_", "")] = value end
  end
  return options
end

-- Sends a line and returns the line that comes back before the deadline; nil and the reason otherwise.
local function exchange(line, deadline)
  for attempt = 1, 2 do
    local is_reused = connection ~= nil
    local peer = connection or new_socket()
    connection = nil
    local ok, why = true, nil
    peer:settimeout(math.max(0.001, deadline - socket.gettime()))
    if not is_reused then ok, why = peer:connect(settings.socket) end
    peer:settimeout(math.max(0.001, deadline - socket.gettime()), "t")
    if ok then ok, why = peer:send(line .. "\n") end
    if ok then
      local reply
      reply, why = peer:receive("*l")
      if reply then connection = peer return reply end
    end
    peer:close()
    -- A kept connection that the service has closed is opened again, once.
    if not is_reused or why == "timeout" then return nil, why end
  end
  return nil, "closed"
end

-- The envelope is that of nodedaemon/wire/envelope.py; a test compares them.
local function ask(verb, fields)
  if socket.gettime() < silent_until then return nil, "not asked, after repeated time-outs" end
  local started = socket.gettime()
  -- A job that comes right after a time-out has waited behind it: give it a short deadline.
  local is_behind = timeout_count > 0 and started - timeout_at < settings.timeout_s
  fields.verb = verb
  local reply, why = exchange(cjson.encode(fields), started + settings.timeout_s / (is_behind and 20 or 1))
  if not reply then
    timeout_count, timeout_at = why == "timeout" and timeout_count + 1 or 0, socket.gettime()
    if timeout_count >= settings.timeouts_max then timeout_count, silent_until = 0, timeout_at + settings.pause_s end
    return nil, string.format("%s after %.3f s", tostring(why), socket.gettime() - started)
  end
  timeout_count = 0
  local ok, answer = pcall(cjson.decode, reply)
  if ok and type(answer) == "table" and type(answer.ok) == "boolean" then return answer end
  return nil, "unreadable answer"
end

local function apply(record, answer)
  local text = answer.ok and answer.say or answer.why
  if type(text) == "string" and text ~= "" then slurm.log_user("%s", text) end
  if not answer.ok then return slurm.ERROR end
  for name, value in pairs(answer.set or {}) do record[name] = value end
  return slurm.SUCCESS
end

-- The comment without words that look like ours. A user's own program can write admin_comment when it submits a job.
local function without_our_words(comment)
  return (comment:gsub("%S+", function(word)
    return (word:find("^salus:") or word:find("^salus%-sum:")) and "" or nil
  end))
end

-- A copy of merge_word in nodedaemon/wire/segment.py; a test compares them.
local function merge_segment(comment, segment)
  local is_found = false
  local merged = comment:gsub("%S+", function(word)
    if is_found or word:sub(1, #SEGMENT_MARK + 1) ~= SEGMENT_MARK .. ";" then return nil end
    is_found = true
    return segment
  end)
  if is_found then return merged end
  return comment .. ((comment == "" or comment:find("%s$")) and "" or " ") .. segment
end

-- salus-admitd does not answer. A plain salus:1 may get a whole device, which needs no charge. Anything else is refused.
local function without_answer(record, why)
  slurm.log_error("salus: submit: salus-admitd: %s", why)
  local wanted = record.tres_per_node or ""
  local mark = wanted:match("^gres([:/])salus$") or wanted:match("^gres([:/])salus[:=]1$")
  if settings.on_loss ~= "exclusive" or not mark or record.tres_per_job or record.tres_per_task
      or record.tres_per_socket then
    slurm.log_user("salus: submit: admission service unavailable (%s); try again later", why)
    return slurm.ERROR
  end
  record.tres_per_node = wanted .. ",gres" .. mark .. settings.whole_device
  record.admin_comment = merge_segment(record.admin_comment or "", SEGMENT_MARK .. ";K=lost")
  slurm.log_user("salus: submit: admission service unavailable (%s); the job gets a device of its own", why)
  return slurm.SUCCESS
end

local function submit(record, uid)
  local comment = record.admin_comment
  if type(comment) == "string" and comment ~= "" then record.admin_comment = without_our_words(comment) end
  local fields = fields_of(record, FIELDS)
  if not is_ours(fields) then return slurm.SUCCESS end
  local answer, why = ask("submit", { uid = uid, job = fields, options = options_of(record),
    batch = record.script ~= nil })
  if not answer then return without_answer(record, why) end
  return apply(record, answer)
end

local function modify(record, old, uid)
  if uid == 0 or uid == settings.slurm_uid then return slurm.SUCCESS end
  local fields, before = fields_of(record, MODIFY_FIELDS), fields_of(old, FIELDS)
  if next(fields) == nil or not (is_ours(fields) or is_ours(before)) then return slurm.SUCCESS end
  local answer, why = ask("modify", { uid = uid, job = fields, old = before, id = old.job_id })
  if answer then return apply(record, answer) end
  slurm.log_error("salus: modify: salus-admitd: %s", why)
  slurm.log_user("salus: modify: admission service unavailable (%s); try again later", why)
  return slurm.ERROR
end

local function guarded(...)
  local ok, code = pcall(...)
  if ok and type(code) == "number" then return code end
  slurm.log_error("salus: job_submit.lua: %s", tostring(code))
  slurm.log_user("salus: internal error at submit; ask your administrator")
  return slurm.ERROR
end

function slurm_job_submit(record, _, uid) return guarded(submit, record, uid) end
function slurm_job_modify(record, old, _, uid) return guarded(modify, record, old, uid) end

return slurm.SUCCESS
