-- Reports the permits in use and the released permits of some strict concurrency limits, as
-- `PermitTable::apply_report` for each. Appended to permits.lua, which documents the other keys and
-- arguments.
--
-- ARGV[n]  from 4, for the limit KEYS[n - 2], packed: the number of permits in use, negative if the
--          report is claimed; each of them, 16 bytes, with the microseconds until its deadline; then
--          each released permit, 16 bytes
-- Reply: the microseconds until acquires are possible; then for each limit a code, the permits in
--   use that were not in the set, the released permits that were in it, and the permits in use now.
--   Codes: 0 applied, 1 value under the key is no set of permits (then the rest is 0)

local APPLIED, UNREADABLE = 0, 1

local closed_for_micros = closed_for()
if not closed_for_micros then
  return redis.error_reply('WRONGTYPE the permits\' incarnation has another format')
end
record_report()

local function apply_report(key, report)
  expire(key)
  local in_use, released, from = {'ZADD', key}, {'ZREM', key}, 9
  local count = unpack('<d', report)
  -- A claimed report renews the permits in the set, and adds none.
  if count < 0 then in_use[3], count = 'XX', -count end
  local empty = #in_use
  for _ = 1, count do
    local n = #in_use
    in_use[n + 1] = digits(now + (unpack('<d', report, from + 16)))
    in_use[n + 2] = sub(report, from, from + 15)
    from = from + 24
  end
  for at = from, #report, 16 do released[#released + 1] = sub(report, at, at + 15) end
  local added = empty < #in_use and call(spread(in_use)) or 0
  local removed = 2 < #released and call(spread(released)) or 0
  update_expiry(key)
  return added, removed, call('ZCARD', key)
end

local reply = {closed_for_micros}
for i = 2, #KEYS do
  local to = #reply
  reply[to + 1], reply[to + 2], reply[to + 3], reply[to + 4] = UNREADABLE, 0, 0, 0
  if is_ours(KEYS[i]) then
    reply[to + 1] = APPLIED
    reply[to + 2], reply[to + 3], reply[to + 4] = apply_report(KEYS[i], ARGV[i + 2])
  end
end
return reply
