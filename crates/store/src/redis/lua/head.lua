-- Charges the hits of one call's checks to their counters, with the arithmetic of crates/kernel.
--
-- ARGV[1]     the instant in microseconds since the Unix epoch; '' uses the clock of Redis
-- ARGV[2]     the plan, see below; '' charges record 1 to each key, independently
-- ARGV[r + 2] record r, little-endian, packed: a charge and its limit
--               byte   strategy   1 GCRA, 2 fixed window, 3 calendar, 4 sliding window, 5 log
--               byte   act        0 charge, 1 refund
--               byte   group      0 enforced, 1 quota group, 2 ignored (`unlimited`)
--               byte   flags      1 if a denial is only reported, plus 2 if excess hits are charged
--               double hits       at most 2^53 - 1
--               uint32 limit      N in lowest terms for GCRA, else the limit
--               double period     P in ticks; 0 for a calendar
--               uint32 burst      B for GCRA, else 0
--               uint32 tick       microseconds in a tick: 1, 1,000 or 1,000,000
--               4 doubles         only for a calendar: the starts of its windows, in microseconds
--
-- The plan is a list of uint16, little-endian. The first is the number of leading keys that
-- are read in one call. Then follow parts: a mode, a count and `count` record numbers.
--
-- - Mode 0: `count` independent charges to the next key, in order, all of one strategy.
-- - Mode 16: one record number, for one independent charge to each of the next `count` keys.
-- - Other modes: one check with `count` charges, one to each of the next `count` keys.
--
-- All parts of modes 0 and 16 come first, and each of their keys is in one such part only.
-- The other modes are 1 for all-or-nothing, plus 2 if every limit is in the quota group, plus
-- 4 if a descriptor without a counter keeps that group from denying. Mode 8 charges nothing.
--
-- Reply: one string of little-endian doubles, which Redis returns faster than integers. For each
--   charge in the order of the plan: 16 * remaining + code, and reset after. Code 4 adds retry
--   after, code 5 the instant in microseconds. Remaining is in hits; times are in ticks of the
--   charge. Codes: 0 allow, 1 never (hits above the limit), 2 refunded, 3 unknown format (the value
--   stays), 4 deny, 5 stale. Plus 8 if reset after equals that of the previous charge, and is
--   left out. For codes 3 and 5 the rest is 0.
--
-- Arithmetic is exact: all numbers in a decision are integers below 2^53, which a double
-- represents. A product may exceed 2^53 only in a comparison with a number below 2^53, because
-- rounding keeps the order. For integers a and b below 2^53, floor(a / b) and ceil(a / b) of
-- doubles are exact. A quotient that is no integer differs from every integer by at least 1/b,
-- which is more than the rounding error of a double. Instants end in the year 2255.
--
-- A key exists only while its counter is not empty. It expires when the counter is empty: never
-- early, at most 3 ms late. The key of a GCRA counter expires at the end of the tenth of a second
-- in which the counter becomes empty. A charge within the same tenth leaves the expiry unchanged.
-- So all scripts that write GCRA counters must round the expiry up in the same way.
--
-- Commands: GET, MGET, SET, SETRANGE, DEL, INCR, INCRBY, DECRBY, PEXPIREAT, TIME, LLEN, LINDEX,
--   LTRIM, LSET, RPUSH. A failed write fails the whole script.
--
-- `mod.rs` lists the files of each script in order. Each strategy is a block in one
-- loop, because Redis creates a script's functions and their shared variables anew
-- at every call. Five functions would cost a single GCRA charge a third of its time.

local KEYS, ARGV, type, tonumber = KEYS, ARGV, type, tonumber
local call, try = redis.call, redis.pcall
local pack, unpack = struct.pack, struct.unpack
local floor, ceil, format, match = math.floor, math.ceil, string.format, string.match

-- The codes of the reply, the acts of a charge (QUERY does not charge), 2^53, and the format of a
-- record.
local ALLOW, NEVER, REFUNDED, UNREADABLE, DENY, STALE = 0, 1, 2, 3, 4, 5
local CHARGE, REFUND, QUERY = 0, 1, 2
local EXACT = 9007199254740992
local RECORD = '<BBBBdI4dI4I4'

local time = call('TIME')
local now = time[1] * 1000000 + time[2]
-- The milliseconds by which the clock of Redis, which expires keys, is ahead of `now`.
local expires_ahead = 0
if ARGV[1] ~= '' then
  local own = now
  now = tonumber(ARGV[1])
  -- The instant in ARGV may be behind the clock of Redis, which expires keys. One more day keeps
  -- each key until the instant in ARGV reaches its end.
  expires_ahead = (own - own % 1000 - now + now % 1000) / 1000 + 86400000
end

-- Returns an expiry, in milliseconds since 1970, as text. It is an instant and not a duration:
-- Redis would rewrite a SET with a duration before it replicates the command, which costs time.
local latest, its_text
local function expiry_at(millis)
  -- Reuse the last text: many keys of one call have the same expiry.
  if millis == latest then return its_text end
  latest = millis
  local instant = millis + expires_ahead
  -- The bound is 285,000 years, below the largest instant that Redis accepts.
  if 9000000000000000 < instant then instant = 9000000000000000 end
  its_text = format('%d', instant)
  return its_text
end

-- Returns the expiry of a key that is needed for another `micros` microseconds. Rounds up to whole
-- milliseconds.
local function expiry(micros)
  local ends = now + micros
  return expiry_at((ends - ends % 1000) / 1000 + 1)
end

-- The reply so far, the number of its integers and of its charges, and the reset after of the last
-- charge.
local reply, length, reply_count, its_reset = {}, 0, 0, nil
-- Functions for a call with a plan: `next_charge` returns the next key to charge, `add_reply` adds
-- to the reply, `add_result` takes the result of a key.
local next_charge, add_reply, add_result
local plan, keys, values = nil, 0, {}
-- The index of the last key that has one charge by the current record. The keys after index `keys`
-- up to it share that record.
local alike = 0

-- The number of the current record, and its fields.
local current_record = 1
local strategy, its_act, group, flags, its_hits, limit, period, burst, tick =
  unpack(RECORD, ARGV[3])
