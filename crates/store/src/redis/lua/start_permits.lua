-- Ends the grace period of strict concurrency limits: `StrictLimits::start_fleet`,
-- src/store/memory/permits.rs. permits.lua documents the value.
--
-- KEYS[1]  the incarnation of the node
-- ARGV[1]  the run_id of Redis; '' if the caller does not know it
-- ARGV[2]  0 only reads, 1 starts a new store, 2 also ends a grace period
-- Reply: the state before the call: 0 new, 1 settled, 2 unsettled
--
-- Commands: TIME, GET, SET, PEXPIREAT.

local NEW, SETTLED, UNSETTLED = 0, 1, 2
local TAG = 'permits1'
local KEPT_MILLIS = 2592000000
-- `AcquireGate::open`: no silence before the first report closes the gate.
local OPENS_AT, REPORTED_AT = 0, 2 ^ 52

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local known = redis.call('GET', KEYS[1])
local state = NEW
if known then
  state = UNSETTLED
  if string.sub(known, 1, 8) == TAG and 24 <= #known then
    local opens_at = struct.unpack('<d', known, 9)
    local is_same = ARGV[1] == '' or string.sub(known, 25) == ARGV[1]
    if is_same and opens_at <= now then state = SETTLED end
  end
end

local mode = tonumber(ARGV[2])
if mode == 1 and state == NEW or mode == 2 and state ~= SETTLED then
  redis.call('SET', KEYS[1], TAG .. struct.pack('<dd', OPENS_AT, REPORTED_AT) .. ARGV[1])
  redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', math.floor(now / 1000) + KEPT_MILLIS))
end
return state
