-- Asks for one permit of the ceiling KEYS[2]: `Permits::acquire`.
--
-- ARGV[4]  which: 16 bytes
-- ARGV[5]  packed: how many may be held, microseconds for which this one is, and the longest for which one is told
-- Reply: a code, how many are held, and beside 2 (closed) for how many microseconds still, else 0. Codes: 0 held,
--   1 full, 2 closed, 3 not understood (something else lives under the key).

local HELD, FULL, CLOSED, NOT_UNDERSTOOD = 0, 1, 2, 3

local key, id = KEYS[2], ARGV[4]
local limit, keep, longest = unpack('<ddd', ARGV[5])

-- A clock that was set back left deadlines that nobody told: none is after `latest`.
local function mend(latest)
  local far = call('ZRANGEBYSCORE', key, '(' .. digits(latest), '+inf')
  for i = 1, #far do call('ZADD', key, digits(latest), far[i]) end
  if 0 < #far then rest(key) end
end

local closed = closed_for()
if not closed then return redis.error_reply('WRONGTYPE another thing lives where the permits\' life should') end
if not is_ours(key) then return {NOT_UNDERSTOOD, 0, 0} end
expire(key)
local count = call('ZCARD', key)
if not call('ZSCORE', key, id) then
  if 0 < closed then return {CLOSED, count, closed} end
  if limit <= count then
    mend(now + longest)
    return {FULL, count, 0}
  end
  count = count + 1
end
call('ZADD', key, digits(now + keep), id)
rest(key)
return {HELD, count, 0}
