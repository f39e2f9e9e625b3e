-- Hears which permits of some ceilings are held still, and which are over: `Permits::tell` for each.
--
-- ARGV[n]  from 4 on, for the ceiling KEYS[n - 2], packed: how many are held; each, 16 bytes, with the
--          microseconds for which it still is; then each that is over, 16 bytes
-- Reply: for how many microseconds nobody is admitted; then for each ceiling a code, how many held ones were not
--   known, how many over were, and how many are held now. Codes: 0 heard, 1 not understood (something else lives
--   under the key), and the rest is 0.

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
