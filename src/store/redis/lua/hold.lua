-- Reserves the hits of a check that needs several calls, and commits or cancels them, with the
-- arithmetic of crates/kernel/src/lease/reservation.rs. A call has the messages of one check and
-- slot, in order.
--
-- For message m, from 1:
-- KEYS[2m - 1]  the counter
-- KEYS[2m]      a hash in the counter's slot, little-endian, packed
--            'h' -> 60 bytes, once there was a reservation
--            double earliest    no reservation expires before this microsecond
--            double since       of a debt: a tick, and
--            double owed_then   the debt at that tick, in hit-ticks, and
--            double held        the part of that debt that is certainly reserved
--            double waiting     the hits of all reservations of a GCRA counter
--            uint32 n, double p, uint32 b, uint32 t   the GCRA limit of the debt; 0 for none
--            the 16 bytes of a reservation -> 20 bytes
--            double until       the microsecond at which the reservation expires
--            double mark        the charge of the reserved hits, as in borrow.lua
--            uint32 hits
-- ARGV[1]       the instant, as in head.lua
-- ARGV[2]       the messages, little-endian, packed, 27 bytes each
--            uint16             the number r of the record with the charge
--            byte   what        0 reserve, 1 commit, 2 cancel
--            double term        the lifetime in microseconds
--            16 bytes           the id of the reservation
-- ARGV[r + 2]   record r, as in head.lua; its act is not used
--
-- Reply: for each message code, remaining, retry after, reset after, as in head.lua, in ticks of
--   the charge. For codes 3 and 5 all but retry after is 0. Code 6, then zeros: not reserved,
--   because there are too many reservations; or not committed, because it expired.
--
-- Arithmetic is exact: the debt and its reserved part are below 2^53. A product may exceed 2^53
-- only in a comparison with a number below 2^53.
--
-- The hash expires after the lifetime of the last reservation plus the time until its counter is
-- empty. A reservation is deleted before its hits are refunded, so that no failure can refund them
-- twice.
--
-- Commands: those of head.lua, and HMGET, HGETALL, HLEN, HSET, HDEL, LRANGE.

local KEEP, GIVE_BACK = 1, 2
local REFUSED = 6
local HEAD, OPEN = '<dddddI4dI4I4', '<ddI4'
local MOST_HOLDS = 4096

-- Variables of the current message: the id of its reservation, the stored reservation, and the head
-- (field 'h' of the hash).
local id, open, head
local earliest, since, owed_then, held, waiting, n, p, b, t

local function pack_head()
  return pack(HEAD, earliest, since, owed_then, held, waiting, n, p, b, t)
end

-- `debt`, crates/kernel/src/rate/gcra.rs.
local function owed()
  local value = call('GET', KEYS[1])
  if not value then return 0 end
  local _, began, its = unpack('<Bdd', value)
  local left = its - (at - began) * limit
  if left < 0 then return 0 end
  return min(left, capacity)
end

-- `ReservedDebt::advance`
local function turn()
  local owes = owed()
  if n ~= limit or p ~= period or b ~= burst or t ~= tick then
    n, p, b, t, held = limit, period, burst, tick, 0
  else
    local left = min(owed_then - (at - since) * limit, capacity)
    if left < 0 then left = 0 end
    held = min(held, left)
    if owes < left then held = held - (left - owes) end
    if held < 0 then held = 0 end
  end
  since, owed_then = at, owes
end

-- `CounterReservations::refund_all` for a debt, and `reduce_debt`, crates/kernel/src/rate/gcra.rs.
local function undo(hits)
  turn()
  waiting = waiting - hits
  local back = min(hits * period, held - waiting * period)
  if back < 0 then back = 0 end
  held, owed_then = held - back, owed_then - back
  local left = owed() - back
  if left <= 0 then
    call('DEL', KEYS[1])
  else
    local state, ends = pack('<Bddc20', 103, at, left, under), at + ceil(left / limit)
    call('SET', KEYS[1], state, 'PXAT', expiry_at((ends + -ends % tenth) * tick / 1000))
  end
end

-- `CounterReservations::expire`
local function expire()
  if now < earliest then return end
  local all, hits = call('HGETALL', KEYS[2]), 0
  earliest = EXACT
  for i = 1, #all, 2 do
    if #all[i] == 16 and #all[i + 1] == 20 then
      local till, mark, its = unpack(OPEN, all[i + 1])
      if now < till then
        earliest = min(earliest, till)
      else
        call('HDEL', KEYS[2], all[i])
        if all[i] == id then open = nil end
        if strategy == 1 then hits = hits + its else refund(mark, its) end
      end
    end
  end
  if 0 < hits then undo(hits) end
  call('HSET', KEYS[2], 'h', pack_head())
end

-- `CounterReservations::keep`
local function keep()
  if not open then return REFUSED, 0, 0, 0 end
  local _, _, hits = unpack(OPEN, open)
  call('HDEL', KEYS[2], id)
  if head and n ~= 0 then
    held, waiting = held - hits * p, waiting - hits
    if held < 0 then held = 0 end
    call('HSET', KEYS[2], 'h', pack_head())
  end
  return ADMIT, 0, 0, 0
end

-- `CounterReservations::cancel`
local function give_back()
  if open then
    local _, mark, hits = unpack(OPEN, open)
    call('HDEL', KEYS[2], id)
    if strategy == 1 then
      undo(hits)
      call('HSET', KEYS[2], 'h', pack_head())
    else
      refund(mark, hits)
    end
  end
  return step(ASK, 0)
end

-- `CounterReservations::reserve`
local function hold(term)
  if head then expire() end
  if open then
    local _, remaining, _, reset = step(ASK, 0)
    return ADMIT, remaining, 0, reset
  end
  local code, remaining, retry, reset = step(ASK, its_hits)
  if code ~= ADMIT or its_hits == 0 then return code, remaining, retry, reset end
  if MOST_HOLDS < call('HLEN', KEYS[2]) then return REFUSED, 0, 0, 0 end
  if strategy == 1 then turn() end
  code, remaining, retry, reset = step(CHARGE, its_hits)
  if strategy == 1 then
    held, owed_then = held + its_hits * period, owed_then + its_hits * period
    waiting = waiting + its_hits
  end
  earliest = min(earliest, now + term)
  call('HSET', KEYS[2], 'h', pack_head(), id, pack(OPEN, now + term, mark(), its_hits))
  call('PEXPIREAT', KEYS[2], expiry(term + reset * tick))
  return code, remaining, retry, reset
end

local function take(what, term)
  local listed = try('HMGET', KEYS[2], 'h', id)
  if listed.err or listed[1] and #listed[1] ~= 60 or listed[2] and #listed[2] ~= 20 then
    return NOT_UNDERSTOOD, 0, 0, 0
  end
  head, open = listed[1], listed[2]
  earliest, since, owed_then, held, waiting, n, p, b, t = EXACT, 0, 0, 0, 0, 0, 0, 0, 0
  if head then earliest, since, owed_then, held, waiting, n, p, b, t = unpack(HEAD, head) end
  if what == KEEP then return keep() end
  -- Converts a debt that was written under another limit. This happens for any result of the
  -- message.
  local code, _, retry = step(strategy == 1 and CHARGE or ASK, 0)
  if code == STALE or code == NOT_UNDERSTOOD then return code, 0, retry, 0 end
  if what == GIVE_BACK then return give_back() end
  return hold(term)
end

local keys, answers = KEYS, {}
KEYS = {keys[1], keys[2]}
for m = 1, #keys / 2 do
  if 1 < m then
    KEYS[1], KEYS[2] = keys[2 * m - 1], keys[2 * m]
  end
  local its_record, what, term, id_at = unpack('<I2Bd', ARGV[2], 27 * m - 26)
  if its_record ~= in_hand then
    in_hand = its_record
    strategy, its_act, group, shadow, its_hits, limit, period, burst, tick =
      unpack(RECORD, ARGV[in_hand + 2])
  end
  id = string.sub(ARGV[2], id_at, id_at + 15)
  answers[4 * m - 3], answers[4 * m - 2], answers[4 * m - 1], answers[4 * m] = take(what, term)
end
return answers
