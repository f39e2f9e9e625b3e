-- Applies one call to the budgets of a check. It does the same as `BudgetCall::apply` in Rust
-- (crates/kernel/src/budget.rs), in microseconds. Functions and blocks have the Rust names.
--
-- KEYS[2i - 1]  budget i, a hash:
--            'h' -> the head, see HEAD and the names of its fields
--            'p' -> the usage of earlier periods in ascending order, 40 bytes each: see USAGE
--            16 bytes, an id -> its entry, see ENTRY
-- KEYS[2i]      the deadlines of its entries, a sorted set: the deadline of an open hold, and that
--            of an ended one minus 2^53. So open holds have scores from 0, ended ones below 0.
-- ARGV[1]       the instant in microseconds since the Unix epoch; '' uses the clock of Redis
-- ARGV[2]       the action, a byte, and the id, 16 bytes
-- ARGV[i + 2]   the terms of budget i, little-endian, packed:
--            double amount      to reserve, to settle, to charge or to add
--            double total       the amount of a period
--            double time_limit  in microseconds, below 2^51
--            double period      in microseconds; 0 for a calendar and a prepaid budget
--            byte   kind        0 periods of equal length, 1 calendar, 2 prepaid
--            byte   enforced    0 in shadow mode
--            byte   charged     1 if an expired hold is charged
--            4 doubles          only for a calendar: the starts of its periods
--
-- Reply: one string of little-endian doubles: the instant, the view of each budget (see VIEW; the
--   end is 0 if there is none), and the outcome:
--   reserve         a code (0 held, 1 repeated, 2 denied, 3 ended), the number of the budget that
--                   denies, and the cause
--   settle, cancel  for each budget: 0 open, 1 expired, 2 ended before, 3 unknown; and the amount
--                   that counted before
--   read            for each budget: the number of periods, and their usage
--   other actions   for each budget: 1 or 0
-- A value of another type or format stays as it is: the reply is an error that begins with
-- WRONGTYPE, and no budget changes.
--
-- Arithmetic is exact: all numbers are integers below 2^53. A sum may exceed 2^53 only before it is
-- reduced to 2^53 - 1.
--
-- Open holds expire at the first call after their deadline. Ids that ended are unknown from their
-- deadline on, but stay stored for up to a sixteenth of the time limit longer: a call removes many
-- at once. If the clock is set back meanwhile, such an id is known again.
--
-- Both keys expire together, at most a minute after `Budget::keep_until`.
--
-- Cost: O(log n) for each hold that is reserved, settled, canceled or expired.
-- Commands: TIME, HMGET, HGET, HLEN, HSET, HDEL, ZADD, ZREM, ZCARD, ZRANGEBYSCORE, PEXPIREAT,
--   PERSIST, DEL.

local KEYS, ARGV = KEYS, ARGV
local call, spread = redis.call, unpack
local pack, unpack, sub, byte = struct.pack, struct.unpack, string.sub, string.byte

local RESERVE, SETTLE, CANCEL, RENEW, CHARGE, TOP_UP = 0, 1, 2, 3, 4, 5
local OPEN, EXPIRED, FINAL = 0, 1, 2
local CALENDAR, PREPAID = 1, 2
local EXACT, FOREVER = 9007199254740992, 2 ^ 60

-- The fields of a head, by position. The current usage is zero until `has_usage` is 1.
--   held, credit     `Budget::held`, `Budget::credit`
--   holds, count     the number of open holds, and of all stored entries
--   open_until       no open hold expires before this instant
--   purge_at         the instant of the next purge of ended ids
--   kept_until       the instant at which the keys expire; FOREVER: never
--   older            the number of earlier periods
local TAG, HAS_USAGE, OLDER, HELD, CREDIT, HOLDS, COUNT, OPEN_UNTIL, PURGE_AT, KEPT_UNTIL, START,
  SETTLED, REQUESTS, EXPIRED_HOLDS, EXCESS = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
local HEAD, HEAD_BYTES, HEAD_FIELDS, ITS_TAG = '<BBBdddddddddddd', 99, 15, 117
-- A usage: the start of its period, settled, requests, expired, excess.
local USAGE, USAGE_BYTES = '<ddddd', 40
-- An entry: the state, the amount, the start of its period, the deadline.
local ENTRY, ENTRY_BYTES = '<Bddd', 25
-- A view: a usage, held, credit, the number of open holds, the end of the period.
local VIEW = '<ddddddddd'

local MAX_HOLDS, MAX_ENTRIES, KEPT_PERIODS = 65536, 131072, 32
local TOP_UP_KNOWN_FOR = 7776000000000
-- The microseconds that are added to an expiry, which then need not be changed for that long.
local SLACK = 60000000
-- The entries of one command in a loop over many, and the most that a purge removes.
local AT_ONCE, PURGED_AT_ONCE = 1000, 64

local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local real_millis = (now - now % 1000) / 1000 + 1
if ARGV[1] ~= '' then
  now = tonumber(ARGV[1])
  -- The instant in ARGV may be behind the clock of Redis, which expires keys. One more day keeps
  -- each key until the instant in ARGV reaches its end.
  real_millis = real_millis + 86400000
end

local action, id = unpack('<Bc16', ARGV[2])
local has_id = action ~= CHARGE and action <= TOP_UP
local budgets, size = {}, #KEYS / 2
-- True if entries may have to end before the action.
local is_due = false

for i = 1, size do
  local key, set = KEYS[2 * i - 1], KEYS[2 * i]
  local stored = call('HMGET', key, 'h', id)
  local head, entry = stored[1], stored[2]
  local budget
  if head then
    if #head ~= HEAD_BYTES or byte(head) ~= ITS_TAG or entry and #entry ~= ENTRY_BYTES then
      return redis.error_reply('WRONGTYPE the budget has another format')
    end
    budget = {unpack(HEAD, head)}
    is_due = is_due or budget[OPEN_UNTIL] <= now or budget[PURGE_AT] <= now
  else
    if 0 < call('HLEN', key) then
      return redis.error_reply('WRONGTYPE the hash is no budget')
    end
    budget = {ITS_TAG, 0, 0, 0, 0, 0, 0, EXACT, EXACT, 0, 0, 0, 0, 0, 0}
    budget.is_new, budget.has_old_set = true, 0 < call('ZCARD', set)
  end
  budget.key, budget.set, budget.entry = key, set, has_id and entry
  budget.amount, budget.total, budget.time_limit, budget.period, budget.kind, budget.enforced,
    budget.charged = unpack('<ddddBBB', ARGV[i + 2])
  budgets[i] = budget
end
if is_due then
  -- A sorted set of another type must fail the call before the first write.
  for i = 1, size do call('ZCARD', KEYS[2 * i]) end
end

-- Returns the usage of earlier periods, packed.
local function load_older(budget)
  local older = budget.older
  if not older then
    older = 0 < budget[OLDER] and call('HGET', budget.key, 'p') or ''
    budget.older = older
  end
  return older
end

-- `change_usage`. Subtracts `less` from the settled amount, then adds the other numbers.
local function change_usage(budget, period, less, settled, requests, expired, excess)
  budget.changed = true
  local at, its_settled, its_requests, its_expired, its_excess
  if period == budget[START] then
    if budget[HAS_USAGE] == 0 then
      budget[HAS_USAGE] = 1
      if budget[OLDER] == KEPT_PERIODS then
        budget.older, budget.is_older_changed = sub(load_older(budget), USAGE_BYTES + 1), true
        budget[OLDER] = KEPT_PERIODS - 1
      end
    end
    its_settled, its_requests = budget[SETTLED], budget[REQUESTS]
    its_expired, its_excess = budget[EXPIRED_HOLDS], budget[EXCESS]
  else
    local older, start = load_older(budget), nil
    at = USAGE_BYTES * budget[OLDER]
    while 0 < at and period < unpack('<d', older, at - USAGE_BYTES + 1) do at = at - USAGE_BYTES end
    if 0 < at then
      start, its_settled, its_requests, its_expired, its_excess =
        unpack(USAGE, older, at - USAGE_BYTES + 1)
    end
    if start ~= period then
      its_settled, its_requests, its_expired, its_excess = 0, 0, 0, 0
      older = sub(older, 1, at) .. pack(USAGE, period, 0, 0, 0, 0) .. sub(older, at + 1)
      at, budget[OLDER] = at + USAGE_BYTES, budget[OLDER] + 1
    end
    budget.older = older
  end
  its_settled = its_settled - less
  if its_settled < 0 then its_settled = 0 end
  its_settled, its_excess = its_settled + settled, its_excess + excess
  if EXACT <= its_settled then its_settled = EXACT - 1 end
  if EXACT <= its_excess then its_excess = EXACT - 1 end
  its_requests, its_expired = its_requests + requests, its_expired + expired
  if not at then
    budget[SETTLED], budget[REQUESTS] = its_settled, its_requests
    budget[EXPIRED_HOLDS], budget[EXCESS] = its_expired, its_excess
    return
  end
  local usage = pack(USAGE, period, its_settled, its_requests, its_expired, its_excess)
  local older = sub(budget.older, 1, at - USAGE_BYTES) .. usage .. sub(budget.older, at + 1)
  if KEPT_PERIODS < budget[OLDER] + budget[HAS_USAGE] then
    older, budget[OLDER] = sub(older, USAGE_BYTES + 1), budget[OLDER] - 1
  end
  budget.older, budget.is_older_changed = older, true
end

-- Subtracts an open hold from the held amount.
local function release(budget, amount, period)
  budget[HOLDS] = budget[HOLDS] - 1
  if period == budget[START] then
    budget[HELD] = budget[HELD] - amount
    if budget[HELD] < 0 then budget[HELD] = 0 end
  end
end

-- Removes these ids.
local function forget(budget, ids)
  call('HDEL', budget.key, spread(ids))
  call('ZREM', budget.set, spread(ids))
  for j = 1, #ids do
    if ids[j] == id then budget.entry = nil end
  end
  budget[COUNT], budget.changed = budget[COUNT] - #ids, true
end

-- Removes ended ids whose deadline has passed: all, or the first PURGED_AT_ONCE.
local function purge(budget, is_all)
  repeat
    local ids = call('ZRANGEBYSCORE', budget.set, '-inf', now - EXACT, 'LIMIT', 0, PURGED_AT_ONCE)
    if ids[1] then forget(budget, ids) end
    local is_last = #ids < PURGED_AT_ONCE
    budget[PURGE_AT] = is_last and now + budget.time_limit / 16 or now
  until is_last or not is_all
  budget.changed = true
end

-- Writes changed entries: lists of alternating ids and entries, and of scores and ids.
local function write_entries(budget, entries, scores)
  if not entries[1] then return end
  call('HSET', budget.key, spread(entries))
  call('ZADD', budget.set, spread(scores))
end

-- `expire`, for all open holds whose deadline has passed.
local function expire(budget)
  repeat
    local ids = call('ZRANGEBYSCORE', budget.set, 0, now, 'LIMIT', 0, AT_ONCE)
    local held = ids[1] and call('HMGET', budget.key, spread(ids))
    local entries, scores, past = {}, {}, {}
    for j = 1, #ids do
      local entry, deadline = held[j], 0
      if entry then
        local _, amount, period
        _, amount, period, deadline = unpack(ENTRY, entry)
        release(budget, amount, period)
        local charged = budget.charged * amount
        change_usage(budget, period, 0, charged, 0, 1, 0)
        deadline = deadline + budget.time_limit
        entry = pack(ENTRY, EXPIRED, charged, period, deadline)
      end
      if now < deadline then
        entries[#entries + 1], entries[#entries + 2] = ids[j], entry
        scores[#scores + 1], scores[#scores + 2] = deadline - EXACT, ids[j]
        if ids[j] == id and budget.entry then budget.entry = entry end
        if budget.ends < deadline then budget.ends = deadline end
      else
        past[#past + 1] = ids[j]
      end
    end
    write_entries(budget, entries, scores)
    if past[1] then forget(budget, past) end
  until #ids < AT_ONCE
  local first = call('ZRANGEBYSCORE', budget.set, 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  budget[OPEN_UNTIL], budget.changed = first[2] and tonumber(first[2]) or EXACT, true
end

-- `clamp_deadlines`
local function clamp_deadlines(budget)
  if budget.is_new then return end
  local lasts = 2 * budget.time_limit
  if budget.kind == PREPAID and lasts < TOP_UP_KNOWN_FOR then lasts = TOP_UP_KNOWN_FOR end
  local latest = now + lasts
  for shift = 0, EXACT, EXACT do
    local from, to = '(' .. string.format('%.0f', latest - shift), shift == 0 and '+inf' or '(0'
    repeat
      local ids = call('ZRANGEBYSCORE', budget.set, from, to, 'LIMIT', 0, AT_ONCE)
      local stored = ids[1] and call('HMGET', budget.key, spread(ids))
      local entries, scores = {}, {}
      for j = 1, #ids do
        local state, amount, period = unpack(ENTRY, stored[j])
        entries[2 * j - 1], entries[2 * j] = ids[j], pack(ENTRY, state, amount, period, latest)
        scores[2 * j - 1], scores[2 * j] = latest - shift, ids[j]
        budget.changed = true
      end
      write_entries(budget, entries, scores)
    until #ids < AT_ONCE
  end
  if latest < budget[OPEN_UNTIL] then budget[OPEN_UNTIL] = latest end
end

-- `is_full`
local function is_full(budget)
  if MAX_HOLDS <= budget[HOLDS] then return true end
  if MAX_ENTRIES <= budget[COUNT] then purge(budget, true) end
  return MAX_ENTRIES <= budget[COUNT]
end

-- `insert`, for the id of this call
local function insert(budget, state, amount, period, deadline)
  if not budget.entry then budget[COUNT] = budget[COUNT] + 1 end
  budget.entry = pack(ENTRY, state, amount, period, deadline)
  budget.score = state == OPEN and deadline or deadline - EXACT
  if state == OPEN and deadline < budget[OPEN_UNTIL] then budget[OPEN_UNTIL] = deadline end
  if deadline < budget[PURGE_AT] and budget[PURGE_AT] == EXACT then budget[PURGE_AT] = deadline end
  if budget.ends < deadline then budget.ends = deadline end
  budget.changed = true
end

-- `advance`, and the current period: `from` and `to`, nil if none is known
for i = 1, size do
  local budget = budgets[i]
  budget.ends = 0
  if budget[OPEN_UNTIL] <= now then expire(budget) end
  if budget[PURGE_AT] <= now then purge(budget, false) end
  if budget.entry then
    local state, _, _, deadline = unpack(ENTRY, budget.entry)
    if deadline <= now then forget(budget, {id}) end
    budget.state = budget.entry and state
  end
  local start, kind, period = budget[START], budget.kind, budget.period
  local instant, from, to = now, nil, nil
  if now < start then instant = start end
  if kind == PREPAID then
    from, to = 0, FOREVER
  elseif kind == CALENDAR then
    local first, second, third, last = unpack('<dddd', ARGV[i + 2], 36)
    if first <= now and now < last then
      from, to = third, last
      if instant < second then
        from, to = first, second
      elseif instant < third then
        from, to = second, third
      end
    end
  elseif 0 < period then
    from = instant - instant % period
    to = from + period
  end
  if from and start < from then
    if budget[HAS_USAGE] == 1 then
      budget.older = load_older(budget) .. pack(USAGE, spread(budget, START, EXCESS))
      budget[OLDER], budget.is_older_changed = budget[OLDER] + 1, true
      budget[HAS_USAGE], budget[SETTLED], budget[REQUESTS] = 0, 0, 0
      budget[EXPIRED_HOLDS], budget[EXCESS] = 0, 0
    end
    budget[START], budget[HELD] = from, 0
    budget.changed = budget.changed or not budget.is_new
  end
  budget.from, budget.to = from, to
  local total = kind == PREPAID and budget[CREDIT] or budget.total
  budget.total, budget.free = total, total - budget[SETTLED] - budget[HELD]
end

local HELD_ALL, REPEATED, DENIED, ENDED = 0, 1, 2, 3
local EXCEEDS_AMOUNT, SPENT, IN_FLIGHT, FULL, OUTSIDE_PERIODS = 0, 1, 2, 3, 4

-- `denial`
local function denial(budget)
  local amount = budget.amount
  if budget.entry then return nil end
  if not budget.from then return OUTSIDE_PERIODS end
  if budget.enforced == 0 then return nil end
  if is_full(budget) then return FULL end
  if amount <= budget.free or amount == 0 then return nil end
  local sum = budget[SETTLED] + amount
  if sum <= budget.total or EXACT <= sum and budget.total == EXACT - 1 then return IN_FLIGHT end
  if budget.total < amount then return EXCEEDS_AMOUNT end
  return SPENT
end

-- `reserve_all`: returns a code, the number of the budget that denies, and the cause.
local function reserve()
  local open = 0
  for i = 1, size do
    local state = budgets[i].entry and budgets[i].state
    if state == OPEN then
      open = open + 1
    elseif state then
      return ENDED, 0, 0
    end
  end
  if open == size then return REPEATED, 0, 0 end
  for i = 1, size do
    local cause = denial(budgets[i])
    if cause then
      clamp_deadlines(budgets[i])
      return DENIED, i - 1, cause
    end
  end
  for i = 1, size do
    local budget = budgets[i]
    -- In shadow mode, a full budget allows the request without a hold.
    if not budget.entry and not is_full(budget) then
      budget[HELD], budget[HOLDS] = budget[HELD] + budget.amount, budget[HOLDS] + 1
      if EXACT <= budget[HELD] then budget[HELD] = EXACT - 1 end
      insert(budget, OPEN, budget.amount, budget[START], now + budget.time_limit)
    end
  end
  return HELD_ALL, 0, 0
end

local NOW, AFTER_EXPIRY, BEFORE, UNKNOWN = 0, 1, 2, 3

-- `end`: returns the hold that ended, and the amount that counted before.
local function end_hold(budget)
  local ended, before, charged, period = UNKNOWN, 0, 0, budget[START]
  if budget.entry then
    local state
    state, before, period = unpack(ENTRY, budget.entry)
    if state == FINAL then return BEFORE, before end
    ended = NOW
    if state == OPEN then
      release(budget, before, period)
    else
      ended, charged = AFTER_EXPIRY, before
    end
  end
  local after, requests = 0, 0
  if action == SETTLE then after, requests = budget.amount, 1 end
  if charged ~= after or action == SETTLE then
    local excess = before < after and after - before or 0
    change_usage(budget, period, charged, after, requests, 0, excess)
  end
  budget.changed = true
  if not budget.entry and MAX_ENTRIES <= budget[COUNT] then purge(budget, true) end
  if budget.entry or budget[COUNT] < MAX_ENTRIES then
    insert(budget, FINAL, after, period, now + budget.time_limit)
  end
  return ended, before
end

-- `renew`, `charge` and `top_up`: returns 1 or 0.
local function change(budget)
  if action == RENEW then
    if not budget.entry or budget.state ~= OPEN then return 0 end
    local _, amount, period = unpack(ENTRY, budget.entry)
    insert(budget, OPEN, amount, period, now + budget.time_limit)
    return 1
  elseif action == CHARGE then
    local amount = budget.amount
    if 0 < amount then change_usage(budget, budget[START], 0, amount, 1, 0, amount) end
    return (budget.enforced == 0 or 0 < budget.free) and 1 or 0
  end
  if budget.entry then return 0 end
  budget[CREDIT] = budget[CREDIT] + budget.amount
  if EXACT <= budget[CREDIT] then budget[CREDIT] = EXACT - 1 end
  insert(budget, FINAL, budget.amount, budget[START], now + TOP_UP_KNOWN_FOR)
  return 1
end

-- Returns the usage of all periods, packed after their number.
local function read(budget)
  local older = load_older(budget)
  if budget[HAS_USAGE] == 1 then older = older .. pack(USAGE, spread(budget, START, EXCESS)) end
  return pack('<d', #older / USAGE_BYTES) .. older
end

local outcome = ''
if action == RESERVE then
  outcome = pack('<ddd', reserve())
else
  for i = 1, size do
    local budget = budgets[i]
    if action <= CANCEL then
      outcome = outcome .. pack('<dd', end_hold(budget))
    elseif action <= TOP_UP then
      outcome = outcome .. pack('<d', change(budget))
    else
      outcome = outcome .. read(budget)
    end
  end
end

-- `keep_until`: returns the instant until which the keys are needed; 0 if that is unchanged.
local function keep_until(budget)
  local ends = budget.ends
  if budget[HAS_USAGE] == 0 and budget[OLDER] == 0 and budget[CREDIT] == 0 then return ends end
  if budget.kind == PREPAID or not budget.from then return FOREVER end
  local kept = budget.to + (KEPT_PERIODS - 1) * (budget.to - budget.from)
  return ends < kept and kept or ends
end

-- A sorted set of another type must fail the call before a hash changes.
for i = 1, size do
  local budget = budgets[i]
  if budget.changed and budget.has_old_set then call('DEL', budget.set) end
  if budget.score then call('ZADD', budget.set, budget.score, id) end
end
local reply = pack('<d', now)
for i = 1, size do
  local budget = budgets[i]
  if budget.changed then
    local key, kept, known = budget.key, keep_until(budget), budget[KEPT_UNTIL]
    if kept == FOREVER then
      budget[KEPT_UNTIL] = FOREVER
    elseif known < kept or known == FOREVER and 0 < kept then
      budget[KEPT_UNTIL] = kept + SLACK
    end
    local head = pack(HEAD, spread(budget, 1, HEAD_FIELDS))
    if budget.score then
      call('HSET', key, 'h', head, id, budget.entry)
    else
      call('HSET', key, 'h', head)
    end
    if budget.is_older_changed then call('HSET', key, 'p', budget.older) end
    kept = budget[KEPT_UNTIL]
    -- The first entry creates the sorted set, without an expiry.
    if kept ~= FOREVER and (kept ~= known or budget[COUNT] == 1) then
      local ends = kept - now
      ends = string.format('%.0f', real_millis + (ends - ends % 1000) / 1000 + 1)
      call('PEXPIREAT', key, ends)
      call('PEXPIREAT', budget.set, ends)
    elseif kept ~= known and 0 < known then
      call('PERSIST', key)
      call('PERSIST', budget.set)
    end
  end
  local start, settled, requests, expired, excess = spread(budget, START, EXCESS)
  local to = budget.kind ~= PREPAID and budget.to or 0
  reply = reply .. pack(VIEW, start, settled, requests, expired, excess, budget[HELD],
    budget[CREDIT], budget[HOLDS], to)
end
return reply .. outcome
