-- Runs every Redis command of Sluicegate's scripts, reports the refused commands, and deletes the
-- keys that it wrote.
--
-- KEYS     a string, a list, a hash and a sorted set in one slot.
--          If DEL is refused, the string expires after one second.
-- ARGV[1]  1 if envoyproxy/ratelimit's keys are used
-- Reply: one text `name: reason` for each refused command

local refused = {}

local function try(name, ...)
  local answer = redis.pcall(name, ...)
  if type(answer) == 'table' and answer.err then
    refused[#refused + 1] = string.lower(name) .. ': ' .. answer.err
  end
end

local text, list, hash, sorted = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

-- SET must be the first write: a Redis at `maxmemory` refuses only the first write of a script.
try('SET', text, '1', 'PX', '1000')
-- Create no other keys if they cannot be deleted.
local before = #refused
try('DEL', text, list, hash, sorted)
if before < #refused then return refused end

struct.unpack('<d', struct.pack('<d', 1))
try('TIME')
try('GET', text)
try('MGET', text)
try('TYPE', text)
try('INCR', text)
try('INCRBY', text, '1')
try('DECRBY', text, '1')
try('SETRANGE', text, '0', '1')
try('PEXPIRE', text, '1000')
try('PERSIST', text)
try('PEXPIREAT', text, '1')
if ARGV[1] == '1' then
  try('EXISTS', text)
  try('EXPIRE', text, '1')
end

try('RPUSH', list, '1')
try('LLEN', list)
try('LINDEX', list, '0')
try('LRANGE', list, '0', '0')
try('LSET', list, '0', '1')
try('LTRIM', list, '0', '0')

try('HSET', hash, '1', '1')
try('HGET', hash, '1')
try('HMGET', hash, '1')
try('HGETALL', hash)
try('HLEN', hash)
try('HVALS', hash)
try('HDEL', hash, '1')

try('ZADD', sorted, '1', '1')
try('ZCARD', sorted)
try('ZSCORE', sorted, '1')
try('ZRANGEBYSCORE', sorted, '1', '1')
try('ZREVRANGE', sorted, '0', '0')
try('ZREMRANGEBYSCORE', sorted, '1', '1')
try('ZREM', sorted, '1')

redis.call('DEL', text, list, hash, sorted)
return refused
