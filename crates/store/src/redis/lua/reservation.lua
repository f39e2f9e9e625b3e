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
--            double debt_then   the debt at that tick, in hit-ticks, and
--            double reserved    the part of that debt that is certainly reserved
--            double reserved_hits   the hits of all reservations of a GCRA counter
--            uint32 n, double p, uint32 b, uint32 t   the GCRA limit of the debt; 0 for none
--            the 16 bytes of a reservation -> 20 bytes
--            double expires_at  the microsecond at which the reservation expires
--            double mark        the charge of the reserved hits, as in borrow.lua
--            uint32 hits
-- ARGV[1]       the instant, as in head.lua
-- ARGV[2]       the messages, little-endian, packed, 27 bytes each
--            uint16             the number r of the record with the charge
--            byte   action      0 reserve, 1 commit, 2 cancel
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

local COMMIT, CANCEL = 1, 2
local NOT_RESERVED = 6
local HEAD, RESERVATION = '<dddddI4dI4I4', '<ddI4'
local MAX_RESERVATIONS = 4096

-- Variables of the current message: the id of its reservation, the stored reservation, and the head
-- (field 'h' of the hash).
local id, reservation, head
local earliest, since, debt_then, reserved, reserved_hits, n, p, b, t

local function pack_head()
  return pack(HEAD, earliest, since, debt_then, reserved, reserved_hits, n, p, b, t)
end

-- `debt`, crates/kernel/src/rate/gcra.rs.
local function current_debt()
  local value = call('GET', KEYS[1])
  if not value then return 0 end
  local _, began, its = unpack('<Bdd', value)
  local left = its - (at - began) * limit
  if left < 0 then return 0 end
  return min(left, capacity)
end

-- `ReservedDebt::advance`
local function advance()
  local debt_now = current_debt()
  if n ~= limit or p ~= period or b ~= burst or t ~= tick then
    n, p, b, t, reserved = limit, period, burst, tick, 0
  else
    local left = min(debt_then - (at - since) * limit, capacity)
    if left < 0 then left = 0 end
    reserved = min(reserved, left)
    if debt_now < left then reserved = reserved - (left - debt_now) end
    if reserved < 0 then reserved = 0 end
  end
  since, debt_then = at, debt_now
end

-- `CounterReservations::refund_all` for a debt, and `reduce_debt`, crates/kernel/src/rate/gcra.rs.
local function refund_all(hits)
  advance()
  reserved_hits = reserved_hits - hits
  local back = min(hits * period, reserved - reserved_hits * period)
  if back < 0 then back = 0 end
  reserved, debt_then = reserved - back, debt_then - back
  local left = current_debt() - back
  if left <= 0 then
    call('DEL', KEYS[1])
  else
    local state, ends = pack('<Bddc20', 103, at, left, limit_bytes), at + ceil(left / limit)
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
      local expires_at, mark, its = unpack(RESERVATION, all[i + 1])
      if now < expires_at then
        earliest = min(earliest, expires_at)
      else
        call('HDEL', KEYS[2], all[i])
        if all[i] == id then reservation = nil end
        if strategy == 1 then hits = hits + its else refund(mark, its) end
      end
    end
  end
  if 0 < hits then refund_all(hits) end
  call('HSET', KEYS[2], 'h', pack_head())
end

-- `CounterReservations::keep`
local function keep()
  if not reservation then return NOT_RESERVED, 0, 0, 0 end
  local _, _, hits = unpack(RESERVATION, reservation)
  call('HDEL', KEYS[2], id)
  if head and n ~= 0 then
    reserved, reserved_hits = reserved - hits * p, reserved_hits - hits
    if reserved < 0 then reserved = 0 end
    call('HSET', KEYS[2], 'h', pack_head())
  end
  return ALLOW, 0, 0, 0
end

-- `CounterReservations::cancel`
local function cancel()
  if reservation then
    local _, mark, hits = unpack(RESERVATION, reservation)
    call('HDEL', KEYS[2], id)
    if strategy == 1 then
      refund_all(hits)
      call('HSET', KEYS[2], 'h', pack_head())
    else
      refund(mark, hits)
    end
  end
  return charge_counter(QUERY, 0)
end

-- `CounterReservations::reserve`
local function reserve(term)
  if head then expire() end
  if reservation then
    local _, remaining, _, reset = charge_counter(QUERY, 0)
    return ALLOW, remaining, 0, reset
  end
  local code, remaining, retry, reset = charge_counter(QUERY, its_hits)
  if code ~= ALLOW or its_hits == 0 then return code, remaining, retry, reset end
  if MAX_RESERVATIONS < call('HLEN', KEYS[2]) then return NOT_RESERVED, 0, 0, 0 end
  if strategy == 1 then advance() end
  code, remaining, retry, reset = charge_counter(CHARGE, its_hits)
  if strategy == 1 then
    reserved, debt_then = reserved + its_hits * period, debt_then + its_hits * period
    reserved_hits = reserved_hits + its_hits
  end
  earliest = min(earliest, now + term)
  call('HSET', KEYS[2], 'h', pack_head(), id, pack(RESERVATION, now + term, locate_charge(),
    its_hits))
  call('PEXPIREAT', KEYS[2], expiry(term + reset * tick))
  return code, remaining, retry, reset
end

local function apply(action, term)
  local stored = try('HMGET', KEYS[2], 'h', id)
  if stored.err or stored[1] and #stored[1] ~= 60 or stored[2] and #stored[2] ~= 20 then
    return UNREADABLE, 0, 0, 0
  end
  head, reservation = stored[1], stored[2]
  earliest, since, debt_then, reserved, reserved_hits, n, p, b, t = EXACT, 0, 0, 0, 0, 0, 0, 0, 0
  if head then earliest, since, debt_then, reserved, reserved_hits, n, p, b, t =
    unpack(HEAD, head) end
  if action == COMMIT then return keep() end
  -- Converts a debt that was written under another limit. This happens for any result of the
  -- message.
  local code, _, retry = charge_counter(strategy == 1 and CHARGE or QUERY, 0)
  if code == STALE or code == UNREADABLE then return code, 0, retry, 0 end
  if action == CANCEL then return cancel() end
  return reserve(term)
end

local keys, replies = KEYS, {}
KEYS = {keys[1], keys[2]}
for m = 1, #keys / 2 do
  if 1 < m then
    KEYS[1], KEYS[2] = keys[2 * m - 1], keys[2 * m]
  end
  local its_record, action, term, id_at = unpack('<I2Bd', ARGV[2], 27 * m - 26)
  if its_record ~= current_record then
    current_record = its_record
    strategy, its_act, group, flags, its_hits, limit, period, burst, tick =
      unpack(RECORD, ARGV[current_record + 2])
  end
  id = string.sub(ARGV[2], id_at, id_at + 15)
  replies[4 * m - 3], replies[4 * m - 2], replies[4 * m - 1], replies[4 * m] = apply(action, term)
end
return replies
