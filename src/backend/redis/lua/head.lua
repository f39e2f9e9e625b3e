-- Puts the hits of one call's questions to their counters, by the same arithmetic as the kernel.
--
-- ARGV[1]     the instant in microseconds since the Unix epoch; '' takes the store's own
-- ARGV[2]     the plan; '' is one charge to each key, each for itself, and all of record 1
-- ARGV[r + 2] record r, little-endian, packed: what a charge puts to a counter, and its limit
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
--
-- The plan is uint16s, little-endian: how many of the first keys are read together, then parts. A part is
-- rule, count and `count` records. Rule 0: that many charges to the next key, one after the other, each for
-- itself and all by one strategy. Rule 16 has one record: a charge of it to each of the next `count` keys, each
-- for itself. A key of these two is in no other such part, and no such part comes after another. Any
-- other rule: one question of as many charges, to the next `count` keys; all or nothing is 1, plus 2
-- when every limit is in the quota group, plus 4 when a descriptor without a counter keeps that group
-- from denying; none at all is 8.
--
-- Reply: one text of doubles, little-endian, because the store is slower to say as many numbers: for each charge,
-- in the order of the plan, 16 * remaining + code, and reset after; beside 4 then retry after, and beside 5 the instant
-- in microseconds. Codes are 0 admit, 1 never, 2 refunded, 3 not understood (something else lives under the key, and
-- it stays), 4 deny, 5 stale; and 8 more where reset after is that of the charge before, and is not said again.
-- Remaining is in hits; times are in ticks of the charge. Beside 3 and 5 the rest is 0.
--
-- Exact: every number that decides is an integer below 2^53, which a double holds. Products may pass it only
-- where what is compared with them cannot, and rounding keeps order. For integers a and b below
-- 2^53, floor(a / b) and ceil(a / b) of doubles are exact: no quotient lies nearer to an integer
-- than 1/b, which is more than half a step between the doubles there. Instants end in the year 2255.
--
-- A key exists only while its counter is not rested, and expires when it is: never early, at most 3 ms late. A GCRA's
-- does with the tenth of a second in which it rests: a charge that does not move it to another leaves the expiry as
-- it is. Whoever writes a GCRA's state rounds up alike, or it would end early.
-- Commands: GET, MGET, SET, SETRANGE, DEL, INCR, INCRBY, DECRBY, PEXPIREAT, TIME, LLEN, LINDEX, LTRIM, LSET, RPUSH. A write that
-- fails fails the whole script. `mod.rs` says which files are one script, and in which order: each strategy is a block in the one loop over what there is to do. The store makes a script's
-- functions and what they share anew at every call, and five of them would cost a lone GCRA a third
-- of its time.

local KEYS, ARGV, type, tonumber = KEYS, ARGV, type, tonumber
local call, try = redis.call, redis.pcall
local pack, unpack = struct.pack, struct.unpack
local floor, ceil, format, match = math.floor, math.ceil, string.format, string.match

-- The codes of the reply, the acts, 2^53, and how a record is packed.
local ADMIT, NEVER, REFUNDED, NOT_UNDERSTOOD, DENY, STALE = 0, 1, 2, 3, 4, 5
local CHARGE, REFUND, ASK = 0, 1, 2
local EXACT = 9007199254740992
local RECORD = '<BBBBdI4dI4I4'

local time = call('TIME')
local now = time[1] * 1000000 + time[2]
-- By how many milliseconds the clock that expires keys is ahead of the one in use.
local expires_ahead = 0
if ARGV[1] ~= '' then
  local own = now
  now = tonumber(ARGV[1])
  -- It is another than the one given, and must not end what that one has not ended: a day more.
  expires_ahead = (own - own % 1000 - now + now % 1000) / 1000 + 86400000
end

-- The instant, in milliseconds, as the store is told when a key may go. An instant, because the
-- store rewrites a SET with a duration before it hands it to its replicas.
local latest, its_text
local function expiry_at(millis)
  -- Many keys of one call expire at once, and the text costs more than to look.
  if millis == latest then return its_text end
  latest = millis
  local instant = millis + expires_ahead
  -- 285,000 years, and below what the store takes for an instant.
  if 9000000000000000 < instant then instant = 9000000000000000 end
  its_text = format('%d', instant)
  return its_text
end

-- The same for a key that means something for `micros` more; the one more is for the fraction that is cut off.
local function expiry(micros)
  local ends = now + micros
  return expiry_at((ends - ends % 1000) / 1000 + 1)
end

-- The answers so far, how many integers they are, and the latest reset after that was said.
local reply, length, said, its_reset = {}, 0, 0, nil
-- What there is to do by the plan, how it is said, and what becomes of it; a lone record needs none.
local following, say, hear
local plan, keys, held = nil, 0, {}
-- The keys after `keys` up to this one have one charge each, of the record in hand.
local alike = 0

-- The record in hand.
local in_hand = 1
local strategy, its_act, group, shadow, its_hits, limit, period, burst, tick =
  unpack(RECORD, ARGV[3])
