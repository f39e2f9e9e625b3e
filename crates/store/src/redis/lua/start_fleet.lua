-- Ends the grace period of shared concurrency limits: `Coordinators::start_fleet`,
-- src/store/memory/coordinators.rs. heartbeat.lua documents the fields.
--
-- KEYS[1]  the hash with the coordinator's incarnation
-- KEYS[n]  from 2, further hashes, which a new store does not have
-- ARGV[1]  the run_id of Redis; '' if the caller does not know it
-- ARGV[2]  0 only reads, 1 starts a new store, 2 also ends a grace period
-- Reply: the state before the call: 0 new, 1 settled, 2 unsettled
--
-- Commands: TIME, HLEN, HMGET, HSET, PEXPIREAT.

local NEW, SETTLED, UNSETTLED = 0, 1, 2
local INCARNATION = '<dddd'
local KEPT_MILLIS = 2592000000

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local known, store = unpack(redis.call('HMGET', KEYS[1], 'incarnation', 'store'))
local incarnation, started_at, is_settled, complete_since = -1, now, 0, now
local is_same = false
if known then
  incarnation, started_at, is_settled, complete_since = struct.unpack(INCARNATION, known)
  is_same = ARGV[1] == '' or store == ARGV[1]
end

local state = NEW
for i = 1, #KEYS do
  if 0 < redis.call('HLEN', KEYS[i]) then state = UNSETTLED end
end
if is_same and is_settled == 1 then state = SETTLED end

local mode = tonumber(ARGV[2])
if mode == 1 and state == NEW or mode == 2 and state ~= SETTLED then
  if not is_same then
    incarnation = math.max(incarnation + 1, now)
    started_at, complete_since = now, now
    redis.call('HSET', KEYS[1], 'store', ARGV[1])
  end
  local settled = struct.pack(INCARNATION, incarnation, started_at, 1, complete_since)
  redis.call('HSET', KEYS[1], 'incarnation', settled)
  redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', math.floor(now / 1000) + KEPT_MILLIS))
end
return state
