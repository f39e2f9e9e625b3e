-- Puts one replica's record among those of its fleet, and answers with all that live.
--
-- KEYS[1]  a hash: a replica's name, and the microsecond of the store's clock at which it last spoke, ':',
--          its record
-- ARGV[1]  the name of the one that speaks
-- ARGV[2]  its record; '' when it leaves
-- ARGV[3]  microseconds after which a silent one is dropped
-- Reply: the record that the name had before, '' where there was none alive; then for each that lives
--   its name, the milliseconds that it has been silent, and its record.
--
-- Exact: instants are below 2^53. A record of the future, left by a clock that stepped back, is moved to
-- now: it must not live until the clock is there again.
-- Its own record is the first write. A store without memory refuses that one alone, and with it the script; what
-- follows a write passes: who deleted first would take out all whose writes were refused.
-- Commands: TIME, HGETALL, HSET, HDEL, PEXPIRE.

local key, name, record, patience = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local stamp = string.format('%.0f:', now)

local reply = {''}
local all = redis.call('HGETALL', key)
if record == '' then
  redis.call('HDEL', key, name)
else
  redis.call('HSET', key, name, stamp .. record)
end
for i = 1, #all, 2 do
  local at, its = string.match(all[i + 1], '^(%d+):(.*)$')
  at = at and tonumber(at)
  local lives = at and now <= at + patience
  if all[i] == name then
    if lives then reply[1] = its end
  elseif not lives then
    redis.call('HDEL', key, all[i])
  else
    if now < at then
      redis.call('HSET', key, all[i], stamp .. its)
      at = now
    end
    local n = #reply
    reply[n + 1], reply[n + 2], reply[n + 3] = all[i], math.floor((now - at) / 1000), its
  end
end
if record ~= '' then
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3] = name, 0, record
end
redis.call('PEXPIRE', key, string.format('%.0f', patience / 1000))
return reply
