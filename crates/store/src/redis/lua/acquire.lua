-- Acquires one permit of the strict concurrency limit KEYS[2], like `PermitTable::acquire` in Rust.
-- It is appended to permits.lua, which documents the other keys and arguments.
--
-- ARGV[4]  the permit's id: 16 bytes
-- ARGV[5]  packed: the limit, and in microseconds the lifetime and the longest lifetime of permits
-- Reply: a code, the permits in use, and for code 2 the microseconds until acquires are possible,
--   else 0. Codes: 0 acquired, 1 full, 2 grace period, 3 value under the key is no set of permits

local ACQUIRED, FULL, GRACE, UNREADABLE = 0, 1, 2, 3

local key, id = KEYS[2], ARGV[4]
local limit, lifetime, longest = unpack('<ddd', ARGV[5])

-- `clamp_deadlines`: moves deadlines beyond the longest lifetime to `latest`. A Redis clock that
-- was set back leaves such deadlines.
local function clamp_deadlines(latest)
  local far = call('ZRANGEBYSCORE', key, '(' .. digits(latest), '+inf')
  for i = 1, #far do call('ZADD', key, digits(latest), far[i]) end
  if 0 < #far then update_expiry(key) end
end

local closed_for_micros = closed_for()
if not closed_for_micros then
  return redis.error_reply('WRONGTYPE the permits\' incarnation has another format')
end
if not is_ours(key) then return {UNREADABLE, 0, 0} end
expire(key)
local count = call('ZCARD', key)
if not call('ZSCORE', key, id) then
  if 0 < closed_for_micros then return {GRACE, count, closed_for_micros} end
  if limit <= count then
    clamp_deadlines(now + longest)
    return {FULL, count, 0}
  end
  count = count + 1
end
call('ZADD', key, digits(now + lifetime), id)
update_expiry(key)
return {ACQUIRED, count, 0}
