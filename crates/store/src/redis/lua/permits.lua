-- The common part of the scripts of strict concurrency limits. It does the same as the Rust files
-- crates/kernel/src/concurrency/permit_table.rs and src/store/memory/permits.rs, in microseconds.
--
-- KEYS[1]  the incarnation of the node: 'permits1', packed the instant at which acquires become
--          possible and that of the last report, and the run_id of Redis when it began
-- KEYS[n]  from 2, for one limit each: a sorted set of the permits in use, by deadline
-- ARGV[1]  the instant in microseconds since the Unix epoch; '' uses the clock of Redis
-- ARGV[2]  the run_id of Redis; '' if the caller does not know it
-- ARGV[3]  packed, in microseconds: how long a new incarnation rejects acquires, and the time
--          without a report after which a new incarnation begins
--
-- Arithmetic is exact: all numbers are integers below 2^53. The set of a limit expires with its
-- last deadline, at most 2 ms late. The incarnation expires thirty days after the last report.
--
-- If the value under a limit's key has another type, it stays, and the reply reports it for that
-- limit. If the value under KEYS[1] has another format, the script returns an error and changes
-- nothing.
--
-- Cost: O(log n) for each permit that is acquired, reported, released or expired.
-- Commands: TIME, GET, SET, TYPE, ZADD, ZREM, ZCARD, ZSCORE, ZRANGEBYSCORE, ZREMRANGEBYSCORE,
--   ZREVRANGE, PEXPIREAT.

local KEYS, ARGV, tonumber = KEYS, ARGV, tonumber
local call = redis.call
local pack, unpack, spread = struct.pack, struct.unpack, unpack
local floor, format, sub = math.floor, string.format, string.sub

local TAG = 'permits1'
local INCARNATION_KEPT_MILLIS = 2592000000

local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local real_millis = floor(now / 1000) + 1
if ARGV[1] ~= '' then
  now = tonumber(ARGV[1])
  -- The instant in ARGV may be behind the clock of Redis, which expires keys. One more day keeps
  -- each key until the instant in ARGV reaches its end.
  real_millis = real_millis + 86400000
end
local grace, silence = unpack('<dd', ARGV[3])

local function digits(number) return format('%.0f', number) end

-- `AcquireGate`, crates/kernel/src/concurrency/permit_table.rs.
local opens_at, reported_at, store

local function write_incarnation()
  call('SET', KEYS[1], TAG .. pack('<dd', opens_at, reported_at) .. store)
  call('PEXPIREAT', KEYS[1], digits(real_millis + INCARNATION_KEPT_MILLIS))
end

-- Returns the microseconds until acquires are possible, or nil if the value under KEYS[1] has an
-- unknown format.
local function closed_for()
  local known = call('GET', KEYS[1])
  if known then
    if sub(known, 1, 8) ~= TAG or #known < 24 then return nil end
    opens_at, reported_at = unpack('<dd', known, 9)
    store = sub(known, 25)
  end
  local is_same = store and ARGV[2] == '' or store == ARGV[2]
  if not is_same then store = ARGV[2] end
  local begins = not is_same or reported_at + silence <= now
  if begins then opens_at, reported_at = now + grace, now end
  if begins or now + grace < opens_at then
    opens_at = now + grace
    write_incarnation()
  end
  if opens_at < now then return 0 end
  return opens_at - now
end

-- `record_report`
local function record_report()
  reported_at = now
  write_incarnation()
end

local function is_ours(key)
  local kind = call('TYPE', key).ok
  return kind == 'zset' or kind == 'none'
end

local function expire(key)
  call('ZREMRANGEBYSCORE', key, '-inf', digits(now))
end

-- Sets the expiry of a limit's key to its last deadline.
local function update_expiry(key)
  local last = call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2]
  if not last then return end
  call('PEXPIREAT', key, digits(real_millis + floor((tonumber(last) - now) / 1000) + 1))
end
