-- Charges and refunds counters under envoyproxy/ratelimit's keys, if the check must be decided
-- atomically. Other checks use plain commands. The script does not read the clock.
--
-- KEYS[i]           the counter of charge i, with the start of its window; several charges may name
--                   the same
-- ARGV[1]           the mode: 'e' each, 'n' none, 'a' all or nothing, 's' stop_when_over; then 'q'
--                   if every limit is in the quota group, and 'r' if that group must not deny
-- ARGV[5i-3 … 5i+1] of charge i: 'c' to charge or 'r' to refund, the hits, the limit, the seconds
--                   to live, and its standing: '0' enforced, '1' quota, '2' ignored, then '1' if
--                   a denial is only reported
-- Reply: two integers for each charge, in order: a code, and the hits in the counter, at most 2^53
--   Codes: 0 charged, 1 not charged, 2 not charged because this limit denies, 3 unreadable
--   (the value under the key is not a number, and stays), 4 refunded
--
-- Arithmetic is exact: hits are passed to INCRBY as text. Numbers in comparisons are below 2^53, or
-- exceed every limit even if they are rounded.
--
-- Commands: GET, SET, EXISTS, INCRBY, DECRBY, EXPIRE.

local KEYS, ARGV, type, tonumber, match = KEYS, ARGV, type, tonumber, string.match
local call, try = redis.call, redis.pcall
local CHARGED, NOT_CHARGED, OVER, UNREADABLE, REFUNDED = 0, 1, 2, 3, 4
local EXACT = 9007199254740992

local function charge(i)
  local n = 5 * i - 3
  return ARGV[n], ARGV[n + 1], tonumber(ARGV[n + 2]), ARGV[n + 3], ARGV[n + 4]
end

-- Returns the code for an error because the value under a key is not a number. Any other error ends
-- the script.
local function unreadable(failed)
  if match(failed.err, 'WRONGTYPE') or match(failed.err, 'not an integer') then
    return UNREADABLE, 0
  end
  error(failed.err)
end

-- Returns the hits in the counter, or nil if the value under the key is not a number.
local function read_count(key)
  local value = try('GET', key)
  if not value then return 0 end
  if type(value) ~= 'string' or not match(value, '^%d+$') then return nil end
  local count = tonumber(value)
  return count < EXACT and count or EXACT
end

local function add(i, instead)
  local _, hits, _, seconds = charge(i)
  local sum = try('INCRBY', KEYS[i], instead or hits)
  if type(sum) ~= 'number' then
    -- Redis does not add hits that overflow the counter. The sum is over every limit.
    if not match(sum.err, 'overflow') then return unreadable(sum) end
    sum = EXACT
  end
  if sum < 0 then return UNREADABLE, 0 end
  call('EXPIRE', KEYS[i], seconds)
  return CHARGED, sum < EXACT and sum or EXACT
end

local function refund(i)
  local key, _, hits = KEYS[i], charge(i)
  if call('EXISTS', key) == 0 then return REFUNDED, 0 end
  local sum = try('DECRBY', key, hits)
  if type(sum) ~= 'number' then return unreadable(sum) end
  if sum < 0 then
    -- Set a negative counter to 0, because envoyproxy/ratelimit expects counters of at least 0.
    call('SET', key, '0', 'KEEPTTL')
    sum = 0
  end
  return REFUNDED, sum < EXACT and sum or EXACT
end

local function apply(i)
  if charge(i) == 'r' then return refund(i) end
  return add(i)
end

local rule = match(ARGV[1], '^.')
local reply = {}
if rule == 'e' then
  for i = 1, #KEYS do reply[2 * i - 1], reply[2 * i] = apply(i) end
  return reply
end

-- The hits of each key in the trials so far. A trial computes a result without charging.
local trial_hits = {}

-- Computes the result of charge i without charging it. Includes the hits of earlier charges of the
-- check to the same key, except in mode 's'.
local function try_charge(i)
  local act, hits, limit, _, standing = charge(i)
  local count = read_count(KEYS[i])
  local sum = (act == 'r' and 0 or tonumber(hits)) + (rule ~= 's' and trial_hits[KEYS[i]] or 0)
  trial_hits[KEYS[i]] = sum
  sum = sum + (count or 0)
  -- A charge to a key whose value is not a number does not deny the check. A refund is always made.
  local denies = act ~= 'r' and count ~= nil and limit < sum
  local group, shadow = match(standing, '^(.)(.)$')
  local is_denied = denies and shadow == '0'
  return {act = act, count = count, denies = denies, group = group, is_denied = is_denied}
end

-- `combine`, crates/kernel/src/decision.rs.
local function is_allowed(trials)
  local quota_for_all = match(ARGV[1], 'q')
  local quota, quota_denies = false, true
  for i = 1, #trials do
    local group, is_denied = trials[i].group, trials[i].is_denied
    if group == '1' or (group == '0' and quota_for_all) then
      quota, quota_denies = true, quota_denies and is_denied
    elseif group == '0' and is_denied then
      return false
    end
  end
  return not quota or not quota_denies or match(ARGV[1], 'r') ~= nil
end

-- Returns the code and the hits in the counter for a charge of a denied check.
local function report_denial(i, its)
  if rule == 's' then
    if its.denies then return add(i) end
    local code, count = add(i, '0')
    return code == CHARGED and NOT_CHARGED or code, count
  end
  -- Report the denial of the trial, even if the check refunded hits to the key after it.
  if its.denies then return OVER, its.count end
  local count = read_count(KEYS[i])
  if not count then return UNREADABLE, 0 end
  return NOT_CHARGED, count
end

local trials = {}
for i = 1, #KEYS do trials[i] = try_charge(i) end
local charged = rule ~= 'n' and is_allowed(trials)
for i = 1, #KEYS do
  local code, count
  if charged or trials[i].act == 'r' then
    code, count = apply(i)
  else
    code, count = report_denial(i, trials[i])
  end
  reply[2 * i - 1], reply[2 * i] = code, count
end
return reply
