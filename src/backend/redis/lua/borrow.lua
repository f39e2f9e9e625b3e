-- Takes members' messages about leased keys, one after the other, each by the same arithmetic as
-- kernel/lease/book.rs: what it reports and gives back, the hits of a question, and a grant.
--
-- Of message m, from 1:
-- KEYS[2m - 1]  the counter
-- KEYS[2m]      the list of who holds leases of it, in the counter's slot: one text, 'l' and records in any order, each
--               little-endian, packed, 65 bytes
--                 8 bytes            the member, as two uint32
--                 double kept_until  the microsecond at which this is forgotten
--                 double until       the microsecond at which its lease ends
--                 uint32 held        hits that it may still spend
--                 uint32 demand
--               and, which only its own messages need,
--                 double number      of the last message taken
--                 double lease       of the last message granted anything
--                 double mark        where the newest part of `held` was charged: the microsecond at which the
--                                    window began, or of the log's entry; 0 for GCRA
--                 uint32 fresh       how many of `held` are the newest part
--                 uint32 granted     by the last message taken
--                 byte   passed      1 when the hits of that message passed
-- ARGV[1]       the instant, as at the top
-- ARGV[2]       the messages, little-endian, packed, 82 bytes each
--                 uint16 which record is of its limit
--                 double number, hits, want, demand, held, returned, lease
--                 double budget      hits that may be out; -1 when leases end with their window
--                 double term        microseconds
--                 8 bytes            the member
-- ARGV[r + 2]   record r, as at the top; its act and hits are not read
--
-- Reply: one text of doubles, little-endian, eight for each message: code, remaining, retry after, reset after, granted,
-- kept, parked, good for. Codes and the first four are as at the top; times among those are in ticks of the limit; hits
-- are hits, and good for is microseconds. Beside 3 and 5 all but retry after is 0. Code 6: a later message was taken
-- before. A script that has read MOST_READ records of members takes no further message, so that it keeps nobody waiting
-- for long: the reply is shorter then, and who is not in it may ask again.
--
-- Exact: demand is at most 2^20, and budgets and what is left are below 2^32, so that products are below 2^53.
-- The list expires when the last of its records is to be forgotten; one that is to be sooner counts no more, and goes
-- when the list is written next. What is given back is listed as given back before it is: a store that has no memory
-- to list it does not give it back either.
-- Commands: those at the top, and LRANGE.
-- One loop, because the store makes a script's functions anew at every call: with eleven functions of its own in place of
-- one, a lone message took 1.4 times the instructions. What a paragraph transcribes is named above it. The least of two
-- is written out for the same reason.

local byte = string.byte
local SUPERSEDED = 6
local ITS, ITS_OWN, SIZE = '<I4I4ddI4I4', '<dddI4I4B', 65
local KNOWN = ITS .. 'dddI4I4B'
local MOST_MEMBERS, MOST_DEMAND, MOST_READ = 2048, 1048576, 1024
-- The keys of so many messages are read together, unless the list before them was long: a script that ends early would
-- have read lists that it never comes to.
local TOGETHER = 16

-- Of the message before: when the last of its records is forgotten, and how that is said.
local last_forgotten, its_end
-- The list of the key in hand, where in it the member's record is, if anywhere, and whether others' are to be forgotten.
local list, place, is_stale = '', nil, false

-- Lists a member as this, where there is room for one more beside the `others`, who are `forgotten` at the latest then.
local function put(others, forgotten, kept_until, known)
  if MOST_MEMBERS <= others then return end
  if forgotten < kept_until then forgotten = kept_until end
  if forgotten ~= last_forgotten then last_forgotten, its_end = forgotten, expiry(forgotten - now) end
  if place and not is_stale then
    call('SETRANGE', KEYS[2], format('%d', place - 1), known)
    call('PEXPIREAT', KEYS[2], its_end)
    return
  end
  if others == 0 then
    list = 'l' .. known
  else
    local rest = {'l'}
    for i = 2, #list, SIZE do
      if i ~= place and now < unpack('<d', list, i + 8) then rest[#rest + 1] = string.sub(list, i, i + SIZE - 1) end
    end
    list = table.concat(rest) .. known
  end
  call('SET', KEYS[2], list, 'PXAT', its_end)
  place, is_stale = #list - SIZE + 1, false
end

local keys, lent, read = KEYS, {}, 0
-- What lives under some of the keys, from which on, up to which message; and which have been written since.
local lives, before, read_to, written = {}, 0, 1, {}
KEYS = {keys[1], keys[2]}
for m = 1, #keys / 2 do
  if 1 < m then
    if MOST_READ <= read then break end
    KEYS[1], KEYS[2] = keys[2 * m - 1], keys[2 * m]
    if read_to < m then
      lives, before, read_to = {}, 2 * m - 2, m
      if TOGETHER * #list <= SIZE * (MOST_READ - read) then
        read_to = m + TOGETHER - 1
        if #keys / 2 < read_to then read_to = #keys / 2 end
        lives = call('MGET', _G.unpack(keys, 2 * m - 1, 2 * read_to))
      end
    end
  end

  -- `step`.
  local its_record, number, own, want, demand, still_held, back, lease, budget, term, low, high =
    unpack('<I2dddddddddI4I4', ARGV[2], 82 * m - 81)
  if its_record ~= in_hand then
    in_hand = its_record
    strategy, its_act, group, shadow, its_hits, limit, period, burst, tick =
      unpack(RECORD, ARGV[in_hand + 2])
  end
  local its_granted, kept, out, good_for = 0, 0, 0, 0
  local again = strategy == 1 and AGAIN or nil
  -- A debt that was written under another limit is converted whatever becomes of the message.
  local lives_there, listed = lives[2 * m - 1 - before], lives[2 * m - before]
  if written[KEYS[2]] then lives_there, listed = nil, nil end
  -- What was read together of a debt that neither rests nor is cut down, or of none, is `gcra.lua` at its shortest. What else
  -- may live where nothing was read shows when it is written to.
  local code, remaining, retry, reset, is_unread
  if again and worked_out == in_hand and (lives_there or lives_there == false and back == 0) then
    local kind, since, owed, its = 103, at, 0, under
    if lives_there then
      kind = nil
      if #lives_there == 37 then kind, since, owed, its = unpack('<Bddc20', lives_there) end
    end
    local ahead = owed - (at - since) * limit
    if kind == 103 and its == under and 0 <= since and since < EXACT and owed < EXACT and ahead <= capacity
      and (0 < owed and 0 < ahead or not lives_there) then
      local room, part = capacity - ahead, ahead % limit
      code, remaining, retry, reset = ADMIT, (room - room % period) / period, 0, (ahead - part) / limit
      if 0 < part then reset = reset + 1 end
      debt, unwritten, lived, is_unread = ahead, false, nil, not lives_there
      if lives_there then
        part = owed % limit
        lived = since + (owed - part) / limit
        if 0 < part then lived = lived + 1 end
        lived = lived + -lived % tenth
      end
    end
  end
  if not code then code, remaining, retry, reset = step(again and CHARGE or ASK, 0, lives_there or nil) end
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
    list = listed or try('GET', KEYS[2]) or 'l'
    local understood = not list.err and #list % SIZE == 1 and byte(list) == 108
    place, is_stale, read = nil, false, read + #list / SIZE
    for i = 2, understood and #list or 0, SIZE do
      local a, b, kept_until, till, held, demanded, own_at = unpack(ITS, list, i)
      if kept_until <= now then
        is_stale = true
      elseif a == low and b == high then
        place, its_kept_until, its_till, its_held, its_demand = i, kept_until, till, held, demanded
        its_number, its_lease, its_mark, its_fresh, its_granted, its_passed = unpack(ITS_OWN, list, own_at)
      else
        others, others_demand = others + 1, others_demand + demanded
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
      if is_unread and step(CHARGE, 0) == NOT_UNDERSTOOD then
        code, remaining, reset, its_granted, out = NOT_UNDERSTOOD, 0, 0, 0, 0
        break
      end
      code, remaining, retry, reset = step(ASK, its_passed == 1 and 0 or own, again)
      if its_passed == 1 then
        code, retry = ADMIT, 0
      elseif code == ADMIT then
        code, remaining, retry, reset = step(CHARGE, own)
        put(others, forgotten, its_kept_until, pack(KNOWN, low, high, its_kept_until, its_till, its_held,
          its_demand, number, its_lease, its_mark, its_fresh, its_granted, 1))
      end
      if its_till <= now then its_granted = 0 end
      kept, good_for = had - its_granted, its_till - now
      if kept < 0 then kept = 0 end
      if good_for < 0 then good_for = 0 end
      break
    end

    -- `report`.
    kept = still_held
    if had < kept then kept = had end
    local left, returned = kept + back, 0
    if had < left then left = had end
    if left < its_fresh then its_fresh = left end
    if lease == its_lease then
      returned = left - kept
      if its_fresh < returned then returned = its_fresh end
    end
    its_fresh, its_held, its_demand = its_fresh - returned, kept, demand
    if kept < its_fresh then its_fresh = kept end
    if demand < 1 then its_demand = 1 elseif MOST_DEMAND < demand then its_demand = MOST_DEMAND end
    if returned ~= 0 then
      put(others, forgotten, its_kept_until, pack(KNOWN, low, high, its_kept_until, its_till, its_held,
        its_demand, number, its_lease, its_mark, its_fresh, its_granted, its_passed))
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
        local product = remaining * its_demand
        most = (product - product % all) / all
        if not coupled then
          product = budget * its_demand
          local of_budget, unused = (product - product % all) / all - its_held, budget - out - its_held
          if of_budget < most then most = of_budget end
          if unused < most then most = unused end
        elseif not has_windows then
          most = 0
        end
      end

      -- `grant`.
      local hits = want
      if most < hits then hits = most end
      if again and 0 < hits then
        its_fresh = (its_mark == 0 and its_fresh or 0) + hits
        its_mark, its_lease, its_granted, its_held = 0, number, hits, its_held + hits
        debt, unwritten, remaining = debt + hits * period, true, remaining - hits
        local part = debt % limit
        reset = (debt - part) / limit
        if 0 < part then reset = reset + 1 end
      elseif 0 < hits then
        local its_code, its_remaining, _, its_reset = step(CHARGE, hits)
        if its_code == ADMIT then
          local charged_at = mark()
          its_fresh = (its_mark == charged_at and its_fresh or 0) + hits
          its_mark, its_lease, its_granted, its_held = charged_at, number, hits, its_held + hits
          remaining, reset = its_remaining, its_reset
        end
      end
    end
    if unwritten and is_unread then
      local ends = at + reset
      local state = pack('<Bddc20', 103, at, debt, under)
      if not call('SET', KEYS[1], state, 'PXAT', expiry_at((ends + -ends % tenth) * tick / 1000), 'NX') then
        code = NOT_UNDERSTOOD
      end
    elseif again and unwritten then
      step(CHARGE, 0, again)
    elseif is_unread and step(CHARGE, 0) == NOT_UNDERSTOOD then
      code = NOT_UNDERSTOOD
    end
    if code == NOT_UNDERSTOOD then
      remaining, retry, reset, its_granted, kept, out = 0, 0, 0, 0, 0, 0
      break
    end

    -- `length`.
    good_for = term
    if coupled and has_windows and reset < term then good_for = reset end
    put(others, forgotten, now + term, pack(KNOWN, low, high, now + term, now + good_for, its_held,
      its_demand, number, its_lease, its_mark, its_fresh, its_granted, its_passed))
  until true

  written[KEYS[2]] = true
  lent[m] = pack('<dddddddd', code, remaining, retry, reset, its_granted, kept, out, good_for)
end
return table.concat(lent)
