-- What the scripts of strict ceilings have in common: kernel/concurrency/permits.rs and
-- backend/memory/permits.rs, line for line, in microseconds.
--
-- KEYS[1]  the life of the place that the ceilings live in: 'permits1', packed the instant from which somebody
--          is admitted and the one at which it was last told, and the name of the store it began in
-- KEYS[n]  from 2 on: of one ceiling each, a sorted set of the permits that are held, by their deadlines
-- ARGV[1]  the instant in microseconds since the Unix epoch; '' takes the store's own
-- ARGV[2]  the name of the store; '' of who may not know it
-- ARGV[3]  packed: microseconds for which a life that begins admits nobody, and after how many without a telling
--          one begins
--
-- Exact: all numbers are integers below 2^53. A set expires with its last deadline, at most 2 ms late; the life
-- thirty days after it was last told of. What is no sorted set under a ceiling's key stays as it is, and its
-- ceiling is answered so; where the life is not understood the call is an error and nothing is changed.
-- Cost: O(log n) for each permit that is asked for, told, over, or found to have ended.
-- Commands: TIME, GET, SET, TYPE, ZADD, ZREM, ZCARD, ZSCORE, ZRANGEBYSCORE, ZREMRANGEBYSCORE, ZREVRANGE, PEXPIREAT.

local KEYS, ARGV, tonumber = KEYS, ARGV, tonumber
local call = redis.call
local pack, unpack, spread = struct.pack, struct.unpack, unpack
local floor, format, sub = math.floor, string.format, string.sub

local TAG = 'permits1'
local LIFE_KEPT_MILLIS = 2592000000

local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local real_millis = floor(now / 1000) + 1
if ARGV[1] ~= '' then
  now = tonumber(ARGV[1])
  -- The clock that expires keys is not the one given, and must not end what that one has not ended.
  real_millis = real_millis + 86400000
end
local grace, silence = unpack('<dd', ARGV[3])

local function digits(number) return format('%.0f', number) end

-- kernel/concurrency/permits.rs, `Life`.
local opens_at, told_at, store

local function write_life()
  call('SET', KEYS[1], TAG .. pack('<dd', opens_at, told_at) .. store)
  call('PEXPIREAT', KEYS[1], digits(real_millis + LIFE_KEPT_MILLIS))
end

-- Nothing where it is not understood.
local function closed_for()
  local known = call('GET', KEYS[1])
  if known then
    if sub(known, 1, 8) ~= TAG or #known < 24 then return nil end
    opens_at, told_at = unpack('<dd', known, 9)
    store = sub(known, 25)
  end
  local is_same = store and ARGV[2] == '' or store == ARGV[2]
  if not is_same then store = ARGV[2] end
  local begins = not is_same or told_at + silence <= now
  if begins then opens_at, told_at = now + grace, now end
  if begins or now + grace < opens_at then
    opens_at = now + grace
    write_life()
  end
  if opens_at < now then return 0 end
  return opens_at - now
end

local function told()
  told_at = now
  write_life()
end

local function is_ours(key)
  local kind = call('TYPE', key).ok
  return kind == 'zset' or kind == 'none'
end

local function expire(key)
  call('ZREMRANGEBYSCORE', key, '-inf', digits(now))
end

-- The key goes with the last deadline.
local function rest(key)
  local last = call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2]
  if not last then return end
  call('PEXPIREAT', key, digits(real_millis + floor((tonumber(last) - now) / 1000) + 1))
end
