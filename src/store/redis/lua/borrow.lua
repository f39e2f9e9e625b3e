-- Applies lease messages in order, with the arithmetic of crates/kernel/src/lease/table.rs. Each
-- message reports and returns hits, charges the hits of a check, and borrows hits.
--
-- For message m, from 1:
-- KEYS[2m - 1]  the counter
-- KEYS[2m]      the counter's lease table, in the same slot: a string of 'l', a double and records.
--               The double is the microsecond up to which the string lives at least. The records
--               are in any order, each little-endian, packed, 65 bytes:
--                 8 bytes            the replica's incarnation
--                 double kept_until  the microsecond at which the record expires
--                 double until       the microsecond at which the replica's lease expires
--                 uint32 held        the balance: hits that the replica may still spend
--                 uint32 demand      the hits that the replica expects to need
--               and fields that only messages of the same replica use
--                 double number      of the last message applied
--                 double lease       of the last message that was granted hits
--                 double mark        the charge of the newest hits in `held`: the microsecond of
--                                    the window's start or of the log's entry; 0 for GCRA
--                 uint32 fresh       the hits in `held` that the charge `mark` added
--                 uint32 granted     the hits granted to the last message applied
--                 byte   passed      1 if the hits of that message were allowed
-- ARGV[1]       the instant, as in head.lua
-- ARGV[2]       the messages, little-endian, packed, 58 bytes each
--                 uint16 the number r of the record with the message's limit
--                 double number, hits, want, demand, held, returned, lease
-- ARGV[r + 2]   record r, as in head.lua; its act and hits are not used. Then follow
--                 double budget      the most outstanding hits; -1 if leases end with their window
--                 double term        the lease duration in microseconds
--                 8 bytes            the replica's incarnation
--
-- Reply: one string of little-endian doubles, eight for each message: code, remaining, retry after,
--   reset after, granted, kept, parked, valid for. The codes and the first four are as in head.lua,
--   with times in ticks of the limit. Parked are the hits that other replicas may spend. Valid for
--   is the lease duration in microseconds. For codes 3 and 5 all but retry after is 0. Code 6: a
--   later message of the replica was already applied.
--
-- After MOST_READ records the script applies no further messages, so that it does not block Redis
-- for long. The reply is then shorter, and the caller sends the other messages again.
--
-- Arithmetic is exact: demand is at most 2^20, and budgets and remaining hits are below 2^32, so
-- their products are below 2^53.
--
-- The expiry of a lease table is later than that of its last record, by at most a record's
-- lifetime. So most messages need not change it. An expired record is ignored, and is dropped when
-- the lease table is next rewritten.
--
-- Returned hits are removed from the lease table before they are refunded to the counter. If Redis
-- has no memory for that write, the script ends without a refund, so no hits are refunded twice.
--
-- Commands: those of head.lua, and LRANGE.
--
-- The script is one loop, because Redis creates a script's functions anew at every call. With
-- eleven functions of its own, a single message took 1.4 times the instructions. A comment names
-- the function of crates/kernel that a paragraph implements. Minimums are written out for the same
-- reason. The loop continues in lend.lua. The files between them define functions for messages that
-- are not plain.

local SUPERSEDED = 6
-- A lease table without records, and the format of its header. Then the formats of a record: of
-- another replica, and of the sender after its incarnation.
local NOBODY, HEAD, LIST, BEGUN = 'l\0\0\0\0\0\0\0\0', '<Bd', 108, 9
local ITS, ITS_OWN, SIZE = '<c8ddI4I4', '<dddI4I4B', 65
local LONE = '<Bdc8ddI4I4dddI4I4B'
local KNOWN = '<ddI4I4dddI4I4B'
local MOST_MEMBERS, MOST_DEMAND, MOST_READ = 2048, 1048576, 1024
-- The keys of up to TOGETHER messages are read in one MGET, unless the previous lease table was
-- long. The script may then stop early, and would have read the other lease tables for nothing.
local TOGETHER = 16

-- The lease duration of the last message that created a lease table, and the expiry of that table
-- as text.
local its_term, its_end
-- The current lease table, its expiry, the position of the sender's record (nil if none), and true
-- if records of other replicas have expired.
local list, lasts, place, is_stale = '', 0, nil, false

local all_keys, messages, lent, read = KEYS, ARGV[2], {}, 0
-- The values that the last MGET read, the index of the next message's values, the last message
-- whose values were read, and the keys written since.
local lives, at_hand, read_to, written = nil, 0, 0, {}
-- The limit record of the last message, and the fields after it: the lease settings and the
-- replica.
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

  -- A message is plain if it returns no hits and the debt of its GCRA counter is absent or within
  -- one burst. This block is the shortest form of gcra.lua. MGET also finds no string if the value
  -- has another type; the later write detects that.
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
    -- `balance_at`, and `remove_expired`: reads the sender's record, and sums up the valid records
    -- of other replicas: their number, balances and demand, and their latest expiry.
    local its_number, its_lease, its_till, its_kept_until, its_mark = 0, 0, 0, 0, 0
    local its_held, its_fresh, its_demand, its_passed = 0, 0, 0, 0
    local others, others_demand, forgotten = 0, 0, 0
    -- An error reply, for a value of another type, is a Lua table, whose length is 0.
    list = listed or try('GET', its_list) or NOBODY
    local first, whose
    place, is_stale, read = nil, false, read + #list / SIZE
    if #list == BEGUN + SIZE then
      -- Fast path for the usual case: no other replica has a lease.
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
    -- If other replicas have records, a message is plain only if it leaves their records and the
    -- expiry of the lease table unchanged.
    is_plain = is_plain and its_number < number
      and (others == 0 or place and not is_stale and now + term <= lasts)

    if not is_plain and not step then
