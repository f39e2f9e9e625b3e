-- Applies one call to the budgets of a check. It does the same as `BudgetCall::apply` in Rust
-- (crates/kernel/src/budget.rs), in microseconds. Functions and blocks have the Rust names.
--
-- KEYS[2i - 1]  budget i, a hash:
--            'h' -> the head, see the formats below
--            'p' -> the usage of earlier periods in ascending order, 40 bytes each
--            16 bytes, an id -> its entry
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
-- Reply: one string of little-endian doubles: the instant, the view of each budget (its end is
--   0 if there is none), and the outcome:
--   reserve         a code (0 held, 1 repeated, 2 denied, 3 ended), the number of the budget that
--                   denies, and the cause
--   settle, cancel  for each budget: 0 open, 1 corrected, 2 ended before, 3 unknown; and the amount
--                   that counted before
--   read            for each budget: the number of periods, and their usage
--   top up          for each budget: 1 if the id is new, else 0; and the amount of the first top-up
--   other actions   for each budget: 1 or 0
-- A value of another type or format stays as it is: the reply is an error that begins with
-- WRONGTYPE, and no budget changes.
--
-- Arithmetic is exact: all numbers are integers below 2^53. A sum may exceed 2^53 only before it is
-- reduced to 2^53 - 1.
--
-- Open holds expire at the first call after their deadline. Ids that ended are unknown from their
-- deadline on, but stay stored for up to a sixteenth of the time limit longer, fewer than 16 of them
-- until the keys expire: a call removes many at once. If the clock is set back meanwhile, such an id
-- is known again.
--
-- Both keys expire together, at most a minute after `Budget::keep_until`.
--
-- Cost: O(log n) for each hold that is reserved, settled, canceled or expired.
-- All holds that are due expire in one call: 65,536 of them block Redis for 0.2 s.
-- Commands: TIME, HMGET, HGET, HLEN, HSET, HDEL, ZADD, ZREM, ZCARD, ZRANGEBYSCORE, PEXPIREAT,
--   PERSIST, DEL.
--
-- Formats, little-endian, packed. Functions use few variables of the script, because Redis creates
-- both anew at every call.
--   head   '<BBBdddddddddddd': the tag 117, and the fields from `has_usage` to `excess`
--   usage  '<ddddd', 40 bytes: the start of its period, settled, requests, expired, excess
--   entry  '<Bddd', 25 bytes: the state (0 open, 1 correctable, 2 final), the amount, the start of its
--          period, the deadline
--   view   '<ddddddddd': a usage, held, credit, the number of open holds, the end of the period

local KEYS, ARGV = KEYS, ARGV
local call, pack, unpack = redis.call, struct.pack, struct.unpack

local RESERVE, SETTLE, SETTLE_HELD, CANCEL, RENEW, CHARGE, TOP_UP = 0, 1, 2, 3, 4, 5, 6
local OPEN, CORRECTABLE, FINAL = 0, 1, 2
local CALENDAR, PREPAID = 1, 2
local EXACT, FOREVER = 2 ^ 53, 2 ^ 60
local MAX_HOLDS, KEPT_PERIODS = 65536, 32
local TOP_UP_KNOWN_FOR = 7776000000000
-- Fewer ended ids are not purged: one purge for each call would cost more than the call.
local PURGED_FROM = 16

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
  local budget = {
    key = key, set = set, entry = has_id and entry or nil, state = nil,
    -- The fields of the head.
    has_usage = 0,           -- 1 if the current period has a usage, which is zero until then
    older_count = 0,         -- the number of earlier periods
    held = 0, credit = 0,    -- `Budget::held`, `Budget::credit`
    holds = 0, count = 0,    -- the number of open holds, and of all stored entries
    open_until = EXACT,      -- no open hold expires before this instant
    purge_at = EXACT,        -- the instant of the next purge of ended ids
    kept_until = 0,          -- the instant at which the keys expire; FOREVER: never
    start = 0, settled = 0, requests = 0, expired = 0, excess = 0,
    -- Not stored: if the head changed, the latest deadline that was written, the new deadline of
    -- the id, and the current period.
    changed = false, ends = 0, score = nil, from = nil, to = nil, total = 0, free = 0,
    amount = 0, time_limit = 0, kind = 0, enforced = 0, charged = 0,
  }
  if head then
    if #head ~= 99 or string.byte(head) ~= 117 or entry and #entry ~= 25 then
      return redis.error_reply('WRONGTYPE the budget has another format')
    end
    local _
    _, budget.has_usage, budget.older_count, budget.held, budget.credit, budget.holds, budget.count,
      budget.open_until, budget.purge_at, budget.kept_until, budget.start, budget.settled,
      budget.requests, budget.expired, budget.excess = unpack('<BBBdddddddddddd', head)
    is_due = is_due or budget.open_until <= now
      or budget.purge_at <= now and PURGED_FROM <= budget.count - budget.holds
  else
    if 0 < call('HLEN', key) then
      return redis.error_reply('WRONGTYPE the hash is no budget')
    end
    budget.is_new, budget.has_old_set = true, 0 < call('ZCARD', set)
  end
  budgets[i] = budget
end
-- A sorted set of another type must fail the call before the first write.
if is_due then
  for i = 1, size do call('ZCARD', KEYS[2 * i]) end
end

-- Returns the usage of earlier periods, packed.
local function load_older(budget)
  if not budget.older then
    budget.older = 0 < budget.older_count and redis.call('HGET', budget.key, 'p') or ''
  end
  return budget.older
end

-- `change_usage`. Subtracts `less` from the settled amount, then adds the other numbers.
local function change_usage(budget, period, less, settled, requests, expired, excess)
  budget.changed = true
  local usage, at = budget, nil
  if period == budget.start then
    if budget.has_usage == 0 then
      budget.has_usage = 1
      if budget.older_count == 32 then
        budget.older, budget.is_older_changed = string.sub(load_older(budget), 41), true
        budget.older_count = 31
      end
    end
  else
    local older, start = load_older(budget), nil
    usage, at = {settled = 0, requests = 0, expired = 0, excess = 0}, 40 * budget.older_count
    while 0 < at and period < struct.unpack('<d', older, at - 39) do at = at - 40 end
    if 0 < at then start = struct.unpack('<d', older, at - 39) end
    if start == period then
      start, usage.settled, usage.requests, usage.expired, usage.excess =
        struct.unpack('<ddddd', older, at - 39)
      older = string.sub(older, 1, at - 40) .. string.sub(older, at + 1)
      at, budget.older_count = at - 40, budget.older_count - 1
    end
    budget.older = older
  end
  local sum = usage.settled - less
  if sum < 0 then sum = 0 end
  sum = sum + settled
  if 2 ^ 53 <= sum then sum = 2 ^ 53 - 1 end
  usage.settled, sum = sum, usage.excess + excess
  if 2 ^ 53 <= sum then sum = 2 ^ 53 - 1 end
  usage.excess = sum
  usage.requests, usage.expired = usage.requests + requests, usage.expired + expired
  if at then
    local packed = struct.pack('<ddddd', period, usage.settled, usage.requests, usage.expired,
      usage.excess)
    local older = budget.older
    older = string.sub(older, 1, at) .. packed .. string.sub(older, at + 1)
    budget.older_count, budget.is_older_changed = budget.older_count + 1, true
    if 32 < budget.older_count + budget.has_usage then
      older, budget.older_count = string.sub(older, 41), budget.older_count - 1
    end
    budget.older = older
  end
end

-- Subtracts an open hold from the held amount.
local function release(budget, amount, period)
  budget.holds = budget.holds - 1
  if period == budget.start then
    budget.held = budget.held - amount
    if budget.held < 0 then budget.held = 0 end
  end
end

-- Removes these ids.
local function forget(budget, ids)
  redis.call('HDEL', budget.key, _G.unpack(ids))
  redis.call('ZREM', budget.set, _G.unpack(ids))
  budget.count, budget.changed = budget.count - #ids, true
end

-- Writes changed entries: lists of alternating ids and entries, and of scores and ids.
local function write_entries(budget, entries, scores)
  if not entries[1] then return end
  redis.call('HSET', budget.key, _G.unpack(entries))
  redis.call('ZADD', budget.set, _G.unpack(scores))
end

-- `insert`, for the id of this call
local function insert(budget, state, amount, period, deadline)
  if not budget.entry then
    -- `MAX_ENTRIES`. The lowest score is that of the ended id with the first deadline.
    if 131072 <= budget.count then
      forget(budget, redis.call('ZRANGEBYSCORE', budget.set, '-inf', '+inf', 'LIMIT', 0, 1))
    end
    budget.count = budget.count + 1
  end
  budget.entry = struct.pack('<Bddd', state, amount, period, deadline)
  budget.score = deadline
  if state ~= 0 then
    budget.score = deadline - 2 ^ 53
    if budget.purge_at == 2 ^ 53 then budget.purge_at = deadline end
  else
    if deadline < budget.open_until then budget.open_until = deadline end
    -- An expiry charges the hold, and a settle may correct it for another time limit.
    deadline = deadline + budget.time_limit
  end
  if budget.ends < deadline then budget.ends = deadline end
  budget.changed = true
end

-- `advance`, and the current period: `from` and `to`, nil if none is known
for i = 1, size do
  local budget, terms, period = budgets[i], ARGV[i + 2], nil
  budget.amount, budget.total, budget.time_limit, period, budget.kind, budget.enforced,
    budget.charged = unpack('<ddddBBB', terms)
  if is_due then
    -- `expire`, for all holds whose deadline has passed
    while budget.open_until <= now do
      local ids = call('ZRANGEBYSCORE', budget.set, 0, now, 'LIMIT', 0, 1000)
      local held = ids[1] and call('HMGET', budget.key, _G.unpack(ids))
      local entries, scores, past = {}, {}, {}
      for j = 1, #ids do
        local entry, deadline = held[j], 0
        if entry then
          local _, amount, period
          _, amount, period, deadline = unpack('<Bddd', entry)
          release(budget, amount, period)
          local charged = budget.charged * amount
          change_usage(budget, period, 0, charged, 0, 1, 0)
          deadline = deadline + budget.time_limit
          entry = pack('<Bddd', CORRECTABLE, charged, period, deadline)
        end
        if now < deadline then
          entries[#entries + 1], entries[#entries + 2] = ids[j], entry
          scores[#scores + 1], scores[#scores + 2] = deadline - EXACT, ids[j]
          if budget.ends < deadline then budget.ends = deadline end
        else
          past[#past + 1] = ids[j]
        end
      end
      write_entries(budget, entries, scores)
      if past[1] then forget(budget, past) end
      local first = call('ZRANGEBYSCORE', budget.set, 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
      budget.open_until, budget.changed = first[2] and tonumber(first[2]) or EXACT, true
    end
    if budget.purge_at <= now and PURGED_FROM <= budget.count - budget.holds then
      local ids = call('ZRANGEBYSCORE', budget.set, '-inf', now - EXACT, 'LIMIT', 0, 64)
      if ids[1] then forget(budget, ids) end
      budget.purge_at = #ids < 64 and now + budget.time_limit / 16 or now
      budget.changed = true
    end
    budget.entry = has_id and call('HGET', budget.key, id) or nil
  end
  if budget.entry then
    local state, _, _, deadline = unpack('<Bddd', budget.entry)
    budget.state = state
    if deadline <= now then
      forget(budget, {id})
      budget.entry, budget.state = nil, nil
    end
  end
  local start, kind, from, to = budget.start, budget.kind, nil, nil
  local instant = start < now and now or start
  if kind == PREPAID then
    from, to = 0, FOREVER
  elseif kind == CALENDAR then
    local first, second, third, last = unpack('<dddd', terms, 36)
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
    if budget.has_usage == 1 then
      local usage = pack('<ddddd', start, budget.settled, budget.requests, budget.expired,
        budget.excess)
      budget.older = load_older(budget) .. usage
      budget.older_count, budget.is_older_changed = budget.older_count + 1, true
      budget.has_usage, budget.settled, budget.requests = 0, 0, 0
      budget.expired, budget.excess = 0, 0
    end
    budget.start, budget.held = from, 0
    budget.changed = budget.changed or not budget.is_new
  end
  budget.from, budget.to = from, to
  if kind == PREPAID then budget.total = budget.credit end
  budget.free = budget.total - budget.settled - budget.held
end

local outcome = ''
if action == RESERVE then
  -- `reserve_all`
  local code, place, its_cause, open = nil, 0, 0, 0
  for i = 1, size do
    local state = budgets[i].state
    if state == OPEN then
      open = open + 1
    elseif state then
      code = 3
    end
  end
  if not code and open == size then code = 1 end
  for i = 1, code and 0 or size do
    -- `denial`: the codes are 0 exceeds the amount, 1 spent, 2 in flight, 3 full, 4 outside of
    -- periods.
    local budget = budgets[i]
    local amount, total, cause = budget.amount, budget.total, nil
    if budget.entry then
      cause = nil
    elseif not budget.from then
      cause = 4
    elseif budget.enforced == 1 then
      if MAX_HOLDS <= budget.holds then
        cause = 3
      elseif budget.free < amount and 0 < amount then
        local sum = budget.settled + amount
        if EXACT <= sum then sum = EXACT - 1 end
        cause = sum <= total and 2 or total < amount and 0 or 1
      end
    end
    if cause then
      code, place, its_cause = 2, i - 1, cause
      -- `clamp_deadlines`
      local lasts = 2 * budget.time_limit
      if budget.kind == PREPAID and lasts < TOP_UP_KNOWN_FOR then lasts = TOP_UP_KNOWN_FOR end
      local latest = now + lasts
      for shift = budget.is_new and FOREVER or 0, EXACT, EXACT do
        local from, to = '(' .. string.format('%.0f', latest - shift), shift == 0 and '+inf' or '(0'
        repeat
          local ids = call('ZRANGEBYSCORE', budget.set, from, to, 'LIMIT', 0, 1000)
          local stored = ids[1] and call('HMGET', budget.key, _G.unpack(ids))
          local entries, scores = {}, {}
          for j = 1, #ids do
            local state, amount, period = unpack('<Bddd', stored[j])
            entries[2 * j - 1], entries[2 * j] = ids[j], pack('<Bddd', state, amount, period, latest)
            scores[2 * j - 1], scores[2 * j] = latest - shift, ids[j]
            budget.changed = true
          end
          write_entries(budget, entries, scores)
        until #ids < 1000
      end
      if latest < budget.open_until then budget.open_until = latest end
      break
    end
  end
  for i = 1, code and 0 or size do
    local budget = budgets[i]
    -- In shadow mode, a full budget allows the request without a hold.
    if not budget.entry and budget.holds < MAX_HOLDS then
      budget.held, budget.holds = budget.held + budget.amount, budget.holds + 1
      if EXACT <= budget.held then budget.held = EXACT - 1 end
      insert(budget, OPEN, budget.amount, budget.start, now + budget.time_limit)
    end
  end
  outcome = pack('<ddd', code or 0, place, its_cause)
elseif action <= CANCEL then
  -- `end`: the codes are 0 open, 1 corrected, 2 ended before, 3 unknown.
  for i = 1, size do
    local budget = budgets[i]
    local state, ended, before, charged, period = budget.state, 3, 0, 0, budget.start
    local after, requests = 0, 0
    if state then
      local _
      _, before, period = unpack('<Bddd', budget.entry)
      ended = state
    end
    if action == SETTLE then
      after, requests = budget.amount, 1
    elseif action == SETTLE_HELD and state == OPEN then
      after, requests = before, 1
    elseif action == SETTLE_HELD and state == CORRECTABLE then
      ended = 2
    end
    if ended ~= 2 then
      if state == OPEN then release(budget, before, period) end
      if state == CORRECTABLE then charged = before end
      if charged ~= after or requests == 1 then
        local excess = before < after and after - before or 0
        change_usage(budget, period, charged, after, requests, 0, excess)
      end
      budget.changed = true
      local its_state = requests == 1 and FINAL or CORRECTABLE
      insert(budget, its_state, after, period, now + budget.time_limit)
    end
    outcome = outcome .. pack('<dd', ended, before)
  end
else
  for i = 1, size do
    local budget = budgets[i]
    local amount, is_done = budget.amount, 0
    if action == RENEW then
      if budget.state == OPEN then
        local _, held, period = unpack('<Bddd', budget.entry)
        insert(budget, OPEN, held, period, now + budget.time_limit)
        is_done = 1
      end
    elseif action == CHARGE then
      if 0 < amount then change_usage(budget, budget.start, 0, amount, 1, 0, amount) end
      if budget.enforced == 0 or 0 < budget.free then is_done = 1 end
    elseif action == TOP_UP then
      local known = 0
      if budget.state then
        local _
        _, known = unpack('<Bd', budget.entry)
      else
        budget.credit = budget.credit + amount
        if EXACT <= budget.credit then budget.credit = EXACT - 1 end
        insert(budget, FINAL, amount, budget.start, now + TOP_UP_KNOWN_FOR)
        is_done = 1
      end
      outcome, is_done = outcome .. pack('<dd', is_done, known), nil
    else
      -- Reads the usage of all periods.
      local older, count = load_older(budget), budget.older_count
      if budget.has_usage == 1 then
        older = older .. pack('<ddddd', budget.start, budget.settled, budget.requests,
          budget.expired, budget.excess)
      end
      outcome, is_done = outcome .. pack('<d', count + budget.has_usage) .. older, nil
    end
    if is_done then outcome = outcome .. pack('<d', is_done) end
  end
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
    -- `keep_until`. The keys are kept for a minute longer: then their expiry changes rarely.
    local key, set, ends, known = budget.key, budget.set, budget.ends, budget.kept_until
    if budget.has_usage == 1 or 0 < budget.older_count + budget.credit + budget.holds then
      if budget.kind == PREPAID or not budget.from then
        ends = FOREVER
      else
        local kept = budget.to + (KEPT_PERIODS - 1) * (budget.to - budget.from)
        if ends < kept then ends = kept end
      end
    end
    if ends == FOREVER then
      budget.kept_until = FOREVER
    elseif known < ends or known == FOREVER and 0 < ends then
      budget.kept_until = ends + 60000000
    end
    local head = pack('<BBBdddddddddddd', 117, budget.has_usage, budget.older_count, budget.held,
      budget.credit, budget.holds, budget.count, budget.open_until, budget.purge_at,
      budget.kept_until, budget.start, budget.settled, budget.requests, budget.expired,
      budget.excess)
    if budget.score then
      call('HSET', key, 'h', head, id, budget.entry)
    else
      call('HSET', key, 'h', head)
    end
    if budget.is_older_changed then call('HSET', key, 'p', budget.older) end
    local kept = budget.kept_until
    -- The first entry creates the sorted set, without an expiry.
    if kept ~= FOREVER and (kept ~= known or budget.count == 1) then
      local left = kept - now
      local at = string.format('%.0f', real_millis + (left - left % 1000) / 1000 + 1)
      call('PEXPIREAT', key, at)
      call('PEXPIREAT', set, at)
    elseif kept ~= known and 0 < known then
      call('PERSIST', key)
      call('PERSIST', set)
    end
  end
  local to = budget.kind ~= PREPAID and budget.to or 0
  reply = reply .. pack('<ddddddddd', budget.start, budget.settled, budget.requests, budget.expired,
    budget.excess, budget.held, budget.credit, budget.holds, to)
end
return reply .. outcome
