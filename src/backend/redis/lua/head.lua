-- Puts the hits of one question to their counters, by the same arithmetic as the kernel.
--
-- KEYS[i]     the counter of charge i; several charges may name one
-- ARGV[1]     the rule: 'e' each, 'n' none, or 'a' all or nothing, then 'q' when every limit is in the
--             quota group, then 'r' when a descriptor without a counter keeps that group from denying
-- ARGV[2]     the instant in microseconds since the Unix epoch; '' takes the store's own
-- ARGV[i + 2] the record of charge i, little-endian, packed:
--               byte   strategy   1 GCRA, 2 fixed window, 3 calendar window, 4 sliding window, 5 log
--               byte   act        0 charge, 1 refund
--               byte   group      0 enforced, 1 quota, 2 aside
--               byte   shadow     1 when a denial is only reported
--               double hits       at most 2^53 - 1
--               uint32 limit      N in lowest terms for GCRA, else the limit
--               double period     P in ticks; 0 for a calendar
--               uint32 burst      B for GCRA, else 0
--               uint32 tick       microseconds in a tick: 1, 1,000 or 1,000,000
--               4 doubles         only a calendar: the starts of its windows, in microseconds
-- Reply: four integers per charge, in order: code, remaining, retry after, reset after. Codes are 0 admit,
--   1 deny, 2 never, 3 stale, 4 refunded, 5 not understood: something else lives under the key, and
--   it stays. Remaining is in hits; times are in ticks of the charge. Beside 3 `remaining` is the
--   instant in microseconds, beside 3 and 5 the rest is 0.
--
-- Exact: every number that decides is an integer below 2^53, which a double holds. Products may pass it only
-- where what is compared with them cannot, and rounding keeps order. For integers a and b below
-- 2^53, floor(a / b) and ceil(a / b) of doubles are exact: no quotient lies nearer to an integer
-- than 1/b, which is more than half a step between the doubles there. Instants end in the year 2255.
--
-- A key exists only while its counter is not rested, and expires when it is: never early, at most 3 ms late.
-- Commands: GET, SET, DEL, INCRBY, DECRBY, PEXPIREAT, TIME, LLEN, LINDEX, LSET, LTRIM, RPUSH. A write that
-- fails fails the whole script. The files of this folder are one script, joined in the order of
-- `mod.rs`. Each strategy is a block of one function: the store makes a script's functions anew at every
-- call, and five of them would cost a lone GCRA a sixth of its time.

local KEYS, ARGV, type, tonumber = KEYS, ARGV, type, tonumber
local call, try = redis.call, redis.pcall
local pack, unpack = struct.pack, struct.unpack
local floor, ceil, format, match = math.floor, math.ceil, string.format, string.match

local time = call('TIME')
local now = time[1] * 1000000 + time[2]
-- Where expiries are counted from, in milliseconds; the one more is for the fraction that is cut off.
local expiry_base = (now - now % 1000) / 1000 + 1
if ARGV[2] ~= '' then
  now = tonumber(ARGV[2])
  -- The clock that expires keys is not the one given, and must not end what that one has not ended.
  expiry_base = expiry_base + 86400000
end

-- The instant at which a key may go that means something for `micros` more. An instant, because the
-- store rewrites a SET with a duration before it hands it to its replicas.
local function expiry(micros)
  local millis = (micros - micros % 1000) / 1000 + 1
  -- 285,000 years, and below what the store takes for an instant.
  if 9000000000000000 < millis then millis = 9000000000000000 end
  return format('%d', expiry_base + millis)
end

-- Puts charge i to its counter, or what `act` and `hits` say instead of it.
local function put(i, act, hits)
  -- The codes of the reply, the acts, and 2^53.
  local ADMIT, DENY, NEVER, STALE, REFUNDED, NOT_UNDERSTOOD = 0, 1, 2, 3, 4, 5
  local CHARGE, REFUND, ASK = 0, 1, 2
  local EXACT = 9007199254740992
  local key, record = KEYS[i], ARGV[i + 2]
  local strategy, its_act, _, _, its_hits, limit, period, burst, tick =
    unpack('<BBBBdI4dI4I4', record)
  act, hits = act or its_act, hits or its_hits

