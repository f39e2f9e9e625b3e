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
--                 double valid_until the microsecond at which the replica's lease expires
--                 uint32 balance     the balance: hits that the replica may still spend
--                 uint32 demand      the hits that the replica expects to need
--               and fields that only messages of the same replica use
--                 double number      of the last message applied
--                 double lease       of the last message that was granted hits
--                 double mark        the charge of the newest hits in `balance`: the microsecond of
--                                    the window's start or of the log's entry; 0 for GCRA
--                 uint32 fresh       the hits in `balance` that the charge `mark` added
--                 uint32 granted     the hits granted to the last message applied
--                 byte   allowed     1 if the hits of that message were allowed
-- ARGV[1]       the instant, as in head.lua
-- ARGV[2]       the messages, little-endian, packed, 58 bytes each
--                 uint16 the number r of the record with the message's limit
--                 double number, hits, want, demand, balance, returned hits, lease
-- ARGV[r + 2]   record r, as in head.lua; its act and hits are not used. Then follow
--                 double budget      the most outstanding hits; -1 if leases end with their window;
--                                    -2 - hits if leases occupy the limit
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
-- reason. The loop continues in lease_table.lua. The files between them define functions for
-- messages that are not plain.

local SUPERSEDED = 6
-- A lease table without records, and the format of its header. Then the formats of a record: of
-- another replica, and of the sender after its incarnation.
local EMPTY, HEAD, TAG, HEAD_BYTES = 'l\0\0\0\0\0\0\0\0', '<Bd', 108, 9
local OTHER_RECORD, OWN_FIELDS, RECORD_BYTES = '<c8ddI4I4', '<dddI4I4B', 65
local SINGLE_RECORD = '<Bdc8ddI4I4dddI4I4B'
local OWN_RECORD = '<ddI4I4dddI4I4B'
local MAX_REPLICAS, MAX_DEMAND, MAX_READ = 2048, 1048576, 1024
-- The keys of up to TOGETHER messages are read in one MGET, unless the previous lease table was
-- long. The script may then stop early, and would have read the other lease tables for nothing.
local MAX_READ_AHEAD = 16

-- The lease duration of the last message that created a lease table, and the expiry of that table
-- as text.
local its_term, its_end
-- The current lease table, its expiry, the position of the sender's record (nil if none), and true
-- if records of other replicas have expired.
local lease_table, table_expires_at, position, is_stale = '', 0, nil, false

local all_keys, messages, replies, read = KEYS, ARGV[2], {}, 0
-- The values that the last MGET read, the index of the next message's values, the last message
-- whose values were read, and the keys written since.
local read_values, value_index, read_to, written = nil, 0, 0, {}
-- The limit record of the last message, and the fields after it: the lease settings and the
-- replica. Then `is_occupying`, and for occupying leases `longest_reset` in ticks.
local settings_of, budget, term, replica
local occupying, longest = false, 0
KEYS = {}
for m = 1, #all_keys / 2 do
  if MAX_READ <= read then break end
  local counter_key, table_key = all_keys[2 * m - 1], all_keys[2 * m]
  if read_to < m then
    value_index, read_to = 1, m
    if 1 < m and MAX_READ_AHEAD * #lease_table <= RECORD_BYTES * (MAX_READ - read) then
      read_to = m + MAX_READ_AHEAD - 1
      if #all_keys / 2 < read_to then read_to = #all_keys / 2 end
    end
    read_values = call('MGET', _G.unpack(all_keys, 2 * m - 1, 2 * read_to))
  end

  local its_record, number, own, want, demand, reported_balance, returned_hits, lease =
    unpack('<I2ddddddd', messages, 58 * m - 57)
  if its_record ~= settings_of then
    local record = ARGV[its_record + 2]
    if its_record ~= current_record then
      strategy, its_act, group, flags, its_hits, limit, period, burst, tick =
        unpack(RECORD, record)
    end
    current_record, settings_of = its_record, its_record
    budget, term, replica = unpack('<ddc8', record, #record - 23)
    occupying, longest = budget < -1 and strategy ~= 2 and strategy ~= 3, 0
    if budget < -1 then budget = occupying and -2 - budget or 0 end
    if occupying then
      longest = strategy == 1 and ceil(burst * period / limit) or strategy == 4 and 2 * period or period
    end
  end
  local its_granted, kept_balance, outstanding, valid_for = 0, 0, 0, 0
  -- For occupying leases: the hits that occupy the limit, and those of expired leases.
  local occupied, expired = 0, 0
  local continued = strategy == 1 and CONTINUE or nil
  local stored_counter, stored_table = read_values[value_index], read_values[value_index + 1]
  value_index = value_index + 2
  if written[table_key] then stored_counter, stored_table = nil, nil end

  -- A message is plain if it returns no hits and the debt of its GCRA counter is absent or within
  -- one burst. This block is the shortest form of gcra.lua. MGET also finds no string if the value
  -- has another type; the later write detects that.
  local code, remaining, retry, reset, is_plain
  if continued and returned_hits == 0 and stored_counter ~= nil and not occupying then
    if derived_for ~= current_record then
      derived_for, capacity, at = current_record, burst * period, (now - now % tick) / tick
      limit_bytes = pack('<I4dI4I4', limit, period, burst, tick)
      tenth = tick < 100000 and 100000 / tick or 1
      most_debt, tag = capacity, 103
    end
    local kind, since, stored_debt, its = 103, at, 0, limit_bytes
    if stored_counter then
      kind = nil
      if #stored_counter == 37 then
        kind, since, stored_debt, its = unpack('<Bddc20', stored_counter)
      end
    end
    debt, is_unwritten = stored_debt - (at - since) * limit, false
    if debt < 0 then debt = 0 end
    if kind == 103 and its == limit_bytes and 0 <= since and stored_debt < EXACT
      and debt <= capacity
      and (0 < stored_debt or not stored_counter) then
      local room, part = capacity - debt, debt % limit
      code, remaining, retry, reset = ALLOW, (room - room % period) / period, 0,
        (debt - part) / limit
      if 0 < part then reset = reset + 1 end
      is_plain = true
    end
  end
  repeat
    -- `balance_at`, and `remove_expired`: reads the sender's record, and sums up the valid records
    -- of other replicas: their number, balances and demand, and their latest expiry.
    local its_number, its_lease, its_valid_until, its_kept_until, its_mark = 0, 0, 0, 0, 0
    local its_balance, its_fresh, its_demand, its_allowed = 0, 0, 0, 0
    local other_count, other_demand, others_kept_until = 0, 0, 0
    -- An error reply, for a value of another type, is a Lua table, whose length is 0.
    lease_table = stored_table or try('GET', table_key) or EMPTY
    local first, its_replica
    position, is_stale, read = nil, false, read + #lease_table / RECORD_BYTES
    if #lease_table == HEAD_BYTES + RECORD_BYTES and not occupying then
      -- Fast path for the usual case: no other replica has a lease.
      first, table_expires_at, its_replica, its_kept_until, its_valid_until, its_balance,
        its_demand, its_number, its_lease, its_mark, its_fresh, its_granted, its_allowed =
        unpack(SINGLE_RECORD, lease_table)
      if its_replica == replica and now < its_kept_until then
        position = HEAD_BYTES + 1
      else
        its_number, its_lease, its_valid_until, its_kept_until, its_mark = 0, 0, 0, 0, 0
      end
    elseif #lease_table % RECORD_BYTES == HEAD_BYTES then
      first, table_expires_at = unpack(HEAD, lease_table)
    end
    local is_readable = first == TAG
    for i = HEAD_BYTES + 1, is_readable and not position and #lease_table or 0, RECORD_BYTES do
      local its_replica, kept_until, valid_until, balance, its_need, own_at =
        unpack(OTHER_RECORD, lease_table, i)
      if kept_until <= now then
        is_stale = true
      elseif occupying and valid_until <= now then
        is_stale, expired = true, expired + balance
      elseif its_replica == replica then
        position, its_kept_until, its_valid_until = i, kept_until, valid_until
        its_balance, its_demand = balance, its_need
        its_number, its_lease, its_mark, its_fresh, its_granted, its_allowed =
          unpack(OWN_FIELDS, lease_table, own_at)
      else
        other_count, other_demand = other_count + 1, other_demand + its_need
        if now < valid_until then outstanding = outstanding + balance end
        if others_kept_until < kept_until then others_kept_until = kept_until end
      end
    end
    -- If other replicas have records, a message is plain only if it leaves their records and the
    -- expiry of the lease table unchanged.
    is_plain = is_plain and its_number < number
      and (other_count == 0 or position and not is_stale and now + term <= table_expires_at)

    if not is_plain and not charge_counter then
