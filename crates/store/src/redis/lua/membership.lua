-- Stores one replica's record in the membership of its fleet, and returns the live replicas.
--
-- KEYS[1]  a hash: for each replica's name, the microsecond of its last heartbeat by the store's
--          clock, ':', and its record
-- ARGV[1]  the name of the replica
-- ARGV[2]  the replica's record; '' if the replica shuts down
-- ARGV[3]  the microseconds after which a replica without heartbeats is dropped
-- Reply: the replica's previous record, '' if there was none or it had expired; then for each live
--   replica its name, the milliseconds since its last heartbeat, and its record
--
-- Instants are below 2^53. If the clock of Redis was set back, the last heartbeats of some records
-- are in the future. The script sets them to now, because these records would expire too late.
--
-- The replica's own record is the first write. A Redis without free memory rejects the first write
-- of a script if it needs memory, and the script ends. If deletions came first, they would succeed,
-- and would remove every replica whose own write was rejected.
--
-- Commands: TIME, HGETALL, HSET, HDEL, PEXPIRE.

local key, name, record, timeout = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local stamp = string.format('%.0f:', now)

local reply = {''}
local fields = redis.call('HGETALL', key)
if record == '' then
  redis.call('HDEL', key, name)
else
  redis.call('HSET', key, name, stamp .. record)
end
for i = 1, #fields, 2 do
  local at, its_record = string.match(fields[i + 1], '^(%d+):(.*)$')
  at = at and tonumber(at)
  local is_live = at and now <= at + timeout
  if fields[i] == name then
    if is_live then reply[1] = its_record end
  elseif not is_live then
    redis.call('HDEL', key, fields[i])
  else
    if now < at then
      redis.call('HSET', key, fields[i], stamp .. its_record)
      at = now
    end
    local n = #reply
    reply[n + 1], reply[n + 2], reply[n + 3] = fields[i], math.floor((now - at) / 1000), its_record
  end
end
if record ~= '' then
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3] = name, 0, record
end
redis.call('PEXPIRE', key, string.format('%.0f', timeout / 1000))
return reply
