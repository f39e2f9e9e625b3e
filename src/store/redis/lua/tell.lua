-- Reports the permits in use and the released permits of some strict concurrency limits, as
-- `PermitTable::apply_report` for each. Appended to permits.lua, which documents the other keys and
-- arguments.
--
-- ARGV[n]  from 4, for the limit KEYS[n - 2], packed: the number of permits in use; each of them,
--          16 bytes, with the microseconds until its deadline; then each released permit, 16 bytes
-- Reply: the microseconds until acquires are possible; then for each limit a code, the permits in
--   use that were not in the set, the released permits that were in it, and the permits in use now.
--   Codes: 0 applied, 1 value under the key is no set of permits (then the rest is 0)

local HEARD, NOT_UNDERSTOOD = 0, 1

local closed = closed_for()
if not closed then return redis.error_reply('WRONGTYPE another thing lives where the permits\' life should') end
told()

local function tell(key, said)
  expire(key)
  local held, over, from = {'ZADD', key}, {'ZREM', key}, 9
  for _ = 1, (unpack('<d', said)) do
    local n = #held
    held[n + 1], held[n + 2] = digits(now + (unpack('<d', said, from + 16))), sub(said, from, from + 15)
    from = from + 24
  end
  for at = from, #said, 16 do over[#over + 1] = sub(said, at, at + 15) end
  local put_back = 2 < #held and call(spread(held)) or 0
  local freed = 2 < #over and call(spread(over)) or 0
  rest(key)
  return put_back, freed, call('ZCARD', key)
end

local reply = {closed}
for i = 2, #KEYS do
  local to = #reply
  reply[to + 1], reply[to + 2], reply[to + 3], reply[to + 4] = NOT_UNDERSTOOD, 0, 0, 0
  if is_ours(KEYS[i]) then
    reply[to + 1] = HEARD
    reply[to + 2], reply[to + 3], reply[to + 4] = tell(KEYS[i], ARGV[i + 2])
  end
end
return reply
