-- Takes members' messages about leased keys, one after the other, each by the same arithmetic as
-- kernel/lease/book.rs: what it reports and gives back, the hits of a question, and a grant.
--
-- Of message m, from 1:
-- KEYS[2m - 1]  the counter
-- KEYS[2m]      the list of who holds leases of it, in the counter's slot: one text, 'l', as a double the microsecond up to which
--               it lives at least, and records in any order, each little-endian, packed, 65 bytes
--                 8 bytes            the member
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
-- ARGV[2]       the messages, little-endian, packed, 58 bytes each
--                 uint16 which record is of it
--                 double number, hits, want, demand, held, returned, lease
-- ARGV[r + 2]   record r, as at the top; its act and hits are not read. Behind it
--                 double budget      hits that may be out; -1 when leases end with their window
--                 double term        microseconds
--                 8 bytes            the member
--
-- Reply: one text of doubles, little-endian, eight for each message: code, remaining, retry after, reset after, granted,
-- kept, parked, good for. Codes and the first four are as at the top; times among those are in ticks of the limit; hits
-- are hits, and good for is microseconds. Beside 3 and 5 all but retry after is 0. Code 6: a later message was taken
-- before. A script that has read MOST_READ records of members takes no further message, so that it keeps nobody waiting
-- for long: the reply is shorter then, and who is not in it may ask again.
--
-- Exact: demand is at most 2^20, and budgets and what is left are below 2^32, so that products are below 2^53.
-- The list lives until the last of its records is to be forgotten, and when that is written down as long again at most: so what
-- its members say mostly leaves its expiry as it is. A record that is to be forgotten sooner counts no more, and goes
-- when the list is written next. What is given back is listed as given back before it is: a store that has no memory
-- to list it does not give it back either.
-- Commands: those at the top, and LRANGE.
-- One loop, because the store makes a script's functions anew at every call: with eleven functions of its own in place of
-- one, a lone message took 1.4 times the instructions. What a paragraph transcribes is named above it. The least of two
-- is written out for the same reason. The loop goes on in `lend.lua`; between stand the functions for what is not plain.

local SUPERSEDED = 6
-- A list without records, and how it begins; a record as it is read, and as it is written behind its member.
local NOBODY, HEAD, LIST, BEGUN = 'l\0\0\0\0\0\0\0\0', '<Bd', 108, 9
local ITS, ITS_OWN, SIZE = '<c8ddI4I4', '<dddI4I4B', 65
local LONE = '<Bdc8ddI4I4dddI4I4B'
local KNOWN = '<ddI4I4dddI4I4B'
local MOST_MEMBERS, MOST_DEMAND, MOST_READ = 2048, 1048576, 1024
-- The keys of so many messages are read together, unless the list before them was long: a script that ends early would
-- have read lists that it never comes to.
local TOGETHER = 16

-- Of the message before that wrote a list anew for itself: its term, and how the expiry was said.
local its_term, its_end
-- The list of the key in hand, how long it lives, where in it the member's record is, if anywhere, and whether others' are to
-- be forgotten.
local list, lasts, place, is_stale = '', 0, nil, false

local all_keys, messages, lent, read = KEYS, ARGV[2], {}, 0
-- What lives under some of the keys, where of these the next message's are, the last message of them; and which have been
-- written since.
local lives, at_hand, read_to, written = nil, 0, 0, {}
-- By which record the last message was, and what stands behind it.
local said_by, budget, term, member
KEYS = {}
for m = 1, #all_keys / 2 do
  if MOST_READ <= read then break end
  local its_counter, its_list = all_keys[2 * m - 1], all_keys[2 * m]
  if read_to < m then
    at_hand, read_to = 1, m
    if 1 < m and TOGETHER * #list <= SIZE * (MOST_READ - read) then
      read_to = m + TOGETHER - 1
      if #all_keys / 2 < read_to then read_to = #all_keys / 2 end
    end
    lives = call('MGET', _G.unpack(all_keys, 2 * m - 1, 2 * read_to))
  end

  local its_record, number, own, want, demand, still_held, back, lease = unpack('<I2ddddddd', messages, 58 * m - 57)
  if its_record ~= said_by then
    local record = ARGV[its_record + 2]
    if its_record ~= in_hand then
      strategy, its_act, group, shadow, its_hits, limit, period, burst, tick = unpack(RECORD, record)
    end
    in_hand, said_by = its_record, its_record
    budget, term, member = unpack('<ddc8', record, #record - 23)
  end
  local its_granted, kept, out, good_for = 0, 0, 0, 0
  local again = strategy == 1 and AGAIN or nil
  local lives_there, listed = lives[at_hand], lives[at_hand + 1]
  at_hand = at_hand + 2
  if written[its_list] then lives_there, listed = nil, nil end

  -- What was read of a debt that is not cut down, or of none, and of which nothing is taken back, is plain: `gcra.lua` at
  -- its shortest. What else may live where nothing was read shows when it is written to.
  local code, remaining, retry, reset, is_plain
  if again and back == 0 and lives_there ~= nil then
    if worked_out ~= in_hand then
      worked_out, capacity, at = in_hand, burst * period, (now - now % tick) / tick
      under = pack('<I4dI4I4', limit, period, burst, tick)
      tenth = tick < 100000 and 100000 / tick or 1
    end
    local kind, since, owed, its = 103, at, 0, under
    if lives_there then
      kind = nil
      if #lives_there == 37 then kind, since, owed, its = unpack('<Bddc20', lives_there) end
    end
    debt, unwritten = owed - (at - since) * limit, false
    if debt < 0 then debt = 0 end
    if kind == 103 and its == under and 0 <= since and owed < EXACT and debt <= capacity
      and (0 < owed or not lives_there) then
      local room, part = capacity - debt, debt % limit
      code, remaining, retry, reset = ADMIT, (room - room % period) / period, 0, (debt - part) / limit
      if 0 < part then reset = reset + 1 end
      is_plain = true
    end
  end
  repeat
    -- `held_at`, and `forget`: what is known of the member, and of the others together: those that stay, what they may
    -- spend, what they ask for, and when the last is forgotten.
    local its_number, its_lease, its_till, its_kept_until, its_mark = 0, 0, 0, 0, 0
    local its_held, its_fresh, its_demand, its_passed = 0, 0, 0, 0
    local others, others_demand, forgotten = 0, 0, 0
    -- An error is a table of no length.
    list = listed or try('GET', its_list) or NOBODY
    local first, whose
    place, is_stale, read = nil, false, read + #list / SIZE
    if #list == BEGUN + SIZE then
      -- Mostly nobody else holds any.
      first, lasts, whose, its_kept_until, its_till, its_held, its_demand, its_number, its_lease, its_mark, its_fresh,
        its_granted, its_passed = unpack(LONE, list)
      if whose == member and now < its_kept_until then
        place = BEGUN + 1
      else
        its_number, its_lease, its_till, its_kept_until, its_mark = 0, 0, 0, 0, 0
      end
    elseif #list % SIZE == BEGUN then
      first, lasts = unpack(HEAD, list)
    end
    local understood = first == LIST
    for i = BEGUN + 1, understood and not place and #list or 0, SIZE do
      local whose, kept_until, till, held, demanded, own_at = unpack(ITS, list, i)
      if kept_until <= now then
        is_stale = true
      elseif whose == member then
        place, its_kept_until, its_till, its_held, its_demand = i, kept_until, till, held, demanded
        its_number, its_lease, its_mark, its_fresh, its_granted, its_passed = unpack(ITS_OWN, list, own_at)
      else
        others, others_demand = others + 1, others_demand + demanded
        if now < till then out = out + held end
        if forgotten < kept_until then forgotten = kept_until end
      end
    end
    -- Where others are listed, plain is what leaves them and the list's expiry as they are.
    is_plain = is_plain and its_number < number
      and (others == 0 or place and not is_stale and now + term <= lasts)

    if not is_plain and not step then
