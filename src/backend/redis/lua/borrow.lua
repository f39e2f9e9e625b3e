-- Takes members' messages about leased keys, one after the other, each by the same arithmetic as
-- kernel/lease/book.rs: what it reports and gives back, the hits of a question, and a grant.
--
-- Of message m, from 1:
-- KEYS[2m - 1]  the counter
-- KEYS[2m]      a hash in the counter's slot: member -> what is known of it, little-endian, packed, 57 bytes
--                 double number      of the last message taken
--                 double lease       of the last message granted anything
--                 double until       the microsecond at which its lease ends
--                 double kept_until  the microsecond at which this is forgotten
--                 double mark        where the newest part of `held` was charged: the microsecond at which the
--                                    window began, or of the log's entry; 0 for GCRA
--                 uint32 held        hits that it may still spend
--                 uint32 fresh       how many of these are the newest part
--                 uint32 granted     by the last message taken
--                 uint32 demand
--                 byte   passed      1 when the hits of that message passed
-- ARGV[1]       the instant, as at the top
-- ARGV[2m]      the message, little-endian, packed
--                 double number, hits, want, demand, held, returned, lease
--                 double budget      hits that may be out; -1 when leases end with their window
--                 double term        microseconds
--                 8 bytes            the member
-- ARGV[2m + 1]  the record of the limit, as at the top; its act and hits are not read
--
-- Reply: for each message code, remaining, retry after, reset after, granted, kept, parked, good for. Codes and the
-- first four are as at the top; times among those are in ticks of the limit; hits are hits, and good for
-- is microseconds. Beside 3 and 5 all but retry after is 0. Code 6: a later message was taken before.
-- A script that has read MOST_READ records of members takes no further message, so that it keeps nobody waiting
-- for long: the reply is shorter then, and who is not in it may ask again.
--
-- Exact: demand is at most 2^20, and budgets and what is left are below 2^32, so that products are below 2^53.
-- The hash expires when the last of its records is to be forgotten. What is given back is listed as given
-- back before it is: a store that has no memory to list it does not give it back either.
-- Commands: those at the top, and HGETALL, HSET, HDEL, LRANGE.
-- One loop, because the store makes a script's functions anew at every call: with eleven functions of its own in place of
-- one, a lone message took 1.4 times the instructions. What a paragraph transcribes is named above it.

local SUPERSEDED = 6
local KNOWN = '<dddddI4I4I4I4B'
local MOST_MEMBERS, MOST_DEMAND, MOST_READ = 2048, 1048576, 1024

-- Of the message before: when the last of its records is forgotten, and how that is said.
local last_forgotten, its_end

-- Lists a member as this, where there is room for one more beside the `others`, who are `forgotten` at the latest then.
local function put(member, others, forgotten, kept_until, known)
  if MOST_MEMBERS <= others then return end
  call('HSET', KEYS[2], member, known)
  if forgotten < kept_until then forgotten = kept_until end
  if forgotten ~= last_forgotten then last_forgotten, its_end = forgotten, expiry(forgotten - now) end
  call('PEXPIREAT', KEYS[2], its_end)
end

local keys, lent, read = KEYS, {}, 0
KEYS = {keys[1], keys[2]}
for m = 1, #keys / 2 do
  if 1 < m then
    if MOST_READ <= read then break end
    KEYS[1], KEYS[2] = keys[2 * m - 1], keys[2 * m]
    -- Many keys have one limit, and what its record comes to is known then.
    if ARGV[2 * m + 1] ~= ARGV[in_hand + 2] then
      in_hand = 2 * m - 1
      strategy, its_act, group, shadow, its_hits, limit, period, burst, tick =
        unpack(RECORD, ARGV[in_hand + 2])
    end
  end

  -- `step`.
  local number, own, want, demand, still_held, back, lease, budget, term, member_at =
    unpack('<ddddddddd', ARGV[2 * m])
  local member = string.sub(ARGV[2 * m], member_at)
  local its_granted, kept, out, good_for = 0, 0, 0, 0
  local again = strategy == 1 and AGAIN or nil
  -- A debt that was written under another limit is converted whatever becomes of the message.
  local code, remaining, retry, reset = step(again and CHARGE or ASK, 0)
  repeat
    if code == STALE or code == NOT_UNDERSTOOD then
      remaining, reset = 0, 0
      break
    end

    -- `held_at`, and `forget`: what is known of the member, and of the others together: those that stay, what they may
    -- spend, what they ask for, and when the last is forgotten.
    local its_number, its_lease, its_till, its_kept_until, its_mark = 0, 0, 0, 0, 0
    local its_held, its_fresh, its_demand, its_passed = 0, 0, 0, 0
    local others, others_demand, forgotten = 0, 0, 0
    local listed = try('HGETALL', KEYS[2])
    local understood = not listed.err
    read = read + #listed / 2
    for i = 1, #listed, 2 do
      if #listed[i + 1] ~= 57 then
        understood = false
        break
      end
      local n, l, till, kept_until, m, held, fresh, granted, d, passed = unpack(KNOWN, listed[i + 1])
      if kept_until <= now then
        call('HDEL', KEYS[2], listed[i])
      elseif listed[i] == member then
        its_number, its_lease, its_till, its_kept_until, its_mark = n, l, till, kept_until, m
        its_held, its_fresh, its_granted, its_demand, its_passed = held, fresh, granted, d, passed
      else
        others, others_demand = others + 1, others_demand + d
        if now < till then out = out + held end
        if forgotten < kept_until then forgotten = kept_until end
      end
    end
    if not understood or number < its_number then
      code, remaining, retry, reset = understood and SUPERSEDED or NOT_UNDERSTOOD, 0, 0, 0
      its_granted, out = 0, 0
      break
    end
    local had = now < its_till and its_held or 0

    -- `repeat`, and `ask_then_step`: the answer to a message that was taken before.
    if number == its_number then
      code, remaining, retry, reset = step(ASK, its_passed == 1 and 0 or own, again)
      if its_passed == 1 then
        code, retry = ADMIT, 0
      elseif code == ADMIT then
        code, remaining, retry, reset = step(CHARGE, own)
        put(member, others, forgotten, its_kept_until, pack(KNOWN, number, its_lease, its_till,
          its_kept_until, its_mark, its_held, its_fresh, its_granted, its_demand, 1))
      end
      if its_till <= now then its_granted = 0 end
      kept, good_for = had - its_granted, its_till - now
      if kept < 0 then kept = 0 end
      if good_for < 0 then good_for = 0 end
      break
    end

    -- `report`.
    kept = min(had, still_held)
    local left = min(had, kept + back)
    local fresh = min(its_fresh, left)
    local returned = lease == its_lease and min(fresh, left - kept) or 0
    its_fresh, its_held = min(fresh - returned, kept), kept
    its_demand = min(demand < 1 and 1 or demand, MOST_DEMAND)
    if returned ~= 0 then
      put(member, others, forgotten, its_kept_until, pack(KNOWN, number, its_lease, its_till,
        its_kept_until, its_mark, its_held, its_fresh, its_granted, its_demand, its_passed))
      refund(its_mark, returned)
    end

    -- `turn`: where nothing is put to a debt, what it came to still stands. What is, is written with the grant.
    if not again or own ~= 0 or back ~= 0 then
      code, remaining, retry, reset = step(again and ASK or CHARGE, own, again)
    end
    its_passed, its_granted = 0, 0
    local coupled, has_windows = budget < 0, strategy == 2 or strategy == 3
    if own == 0 or code == ADMIT then
      its_passed = 1

      -- `may_have`, and `share`.
      local most, all = 0, its_demand + others_demand
      if others < MOST_MEMBERS then
        local of_law = floor(remaining * its_demand / all)
        if coupled then
          most = has_windows and of_law or 0
        else
          local of_budget = floor(budget * its_demand / all) - its_held
          most = min(min(of_law, of_budget), budget - out - its_held)
        end
      end

      -- `grant`.
      local hits = min(want, most)
      if 0 < hits then
        local its_code, its_remaining, _, its_reset = step(CHARGE, hits, again)
        if its_code == ADMIT then
          local charged_at = again and 0 or mark()
          its_fresh = (its_mark == charged_at and its_fresh or 0) + hits
          its_mark, its_lease, its_granted, its_held = charged_at, number, hits, its_held + hits
          remaining, reset = its_remaining, its_reset
        end
      end
    end
    if again and unwritten then step(CHARGE, 0, again) end

    -- `length`.
    good_for = coupled and has_windows and min(term, reset) or term
    put(member, others, forgotten, now + term, pack(KNOWN, number, its_lease, now + good_for,
      now + term, its_mark, its_held, its_fresh, its_granted, its_demand, its_passed))
  until true

  local i = 8 * m - 8
  lent[i + 1], lent[i + 2], lent[i + 3], lent[i + 4], lent[i + 5], lent[i + 6], lent[i + 7], lent[i + 8] =
    code, remaining, retry, reset, its_granted, kept, out, good_for
end
return lent
