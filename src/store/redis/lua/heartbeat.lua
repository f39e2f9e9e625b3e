-- Applies one share round of one replica, like the Rust code in crates/kernel/src/coordinator,
-- in microseconds. Unlike the Rust code, it stores the sums over all share states, see `put`.
--
-- KEYS[1]  a hash: 'store' is Redis' run_id when the incarnation began, 'life' the coordinator's
--          incarnation, 'heard' the instant of the last report, 'knew' that instant when the
--          incarnation began. Each incarnation of each replica has a field, too: the fleet table.
-- KEYS[n]  from 2, the state of one limit, a hash: 'head' is the HEAD and the permits that each
--          replica wants. Each share state is a SEAT, by replica and incarnation.
-- ARGV[1]  the instant in microseconds since the Unix epoch; '' uses the clock of Redis
-- ARGV[2]  the run_id of Redis; '' if the caller does not know it
-- ARGV[3]  packed: the replica and its incarnation; the coordinator's incarnation that granted all
--          its shares (-1 none); the instant of the last reply that it received (-1 none); the
--          microseconds for which a share of it, or of a forgotten replica, may be in use; 1 if it
--          shuts down
-- ARGV[n]  from 4, packed: the configuration and the report of each limit, see SAID; a vote is one
--          more than its ratio, and 0 is none
-- Reply: one string of little-endian doubles: the incarnation, the instant in microseconds, and
--   eight for each limit. These are a code, and for code 0 (granted) the incarnation, the
--   generation, the share, the fair share, the limit, the number of replicas, and 1 while
--   recovering; else zeros. Codes: 1 left, 2 late, 3 superseded, 4 lost, 5 full, 6 unreadable
--   (the value under the key has an unknown format)
--
-- Arithmetic is exact: all numbers are integers below 2^53. A level is below 2^34 and a ratio at
-- most 2^17, so their product is below 2^52.
--
-- Expiry of a limit's state:
-- - one to two minutes after the time in which the share of the last reporting replica may be in
--   use,
-- - ten to eleven minutes after that time for an adaptive limit, so that its value survives a pause
--   in traffic,
-- - one minute after the last replica of a static limit has left.
--
-- The incarnation is kept for thirty days after the last report. A state with another layout, such
-- as the single string of earlier versions, is reported as unreadable and stays unchanged.
--
-- Cost: O(1) for each limit in the usual case. More is read in these cases:
-- - if the replicas want more permits than the limit: one number of each share state,
-- - if a share state is added, removed or expires: all share states,
-- - if the limit changes, votes are counted, or the limit has fewer permits than replicas: all
--   share states,
-- - until the incarnation is settled, and for a new replica: the whole fleet table.
--
-- Commands: TIME, HGET, HSET, HDEL, HGETALL, HMGET, HVALS, HLEN, DEL, PEXPIREAT.

-- A share report is plain if all share states are live, no vote is due and no replica is new, which
-- is the usual case. A plain report reads and writes only the share state of its replica. The loop
-- at the end contains the plain path, in locals: Redis creates a script's functions and their
-- shared variables anew at every call. All other functions are created when the first limit of a
-- call needs them.

local KEYS, ARGV = KEYS, ARGV
local call, try, spread = redis.call, redis.pcall, _G.unpack
local floor, pack, unpack = math.floor, struct.pack, struct.unpack
local sub, rep = string.sub, string.rep

local GRANTED, LEFT, LATE, SUPERSEDED, LOST, FULL, NOT_UNDERSTOOD = 0, 1, 2, 3, 4, 5, 6
local MOST_SEATS = 4096
local FINE = 1024
local ALL, HUNGRY, TURNS = 0, 1, 2
-- In these formats, `I` is an unsigned int, which has 4 bytes on every platform of Redis. `I4`
-- would be slower to parse.
local SAID = '<dddIIIBdddBddIIIIIB'
-- The position of the replica and its incarnation in a report: these bytes are the field name of
-- its share state.
local NAME, NAME_FROM, NAME_TO = '<dd', 38, 53
-- The formats of the head of a limit and of a share state. Their lengths identify the layout, so a
-- changed layout needs another length. Therefore 'recovered' has 2 bytes, not 1.
local HEAD, HEAD_BYTES = '<IddddHdIdddIdddIIIII', 122
-- The fields that the script reads from all share states, and the other fields. A share state
-- (SEAT) is shorter than any head.
local SEEN, REST, REST_FROM, SEAT_BYTES = '<IddIIII', '<dddddddI', 37, 96
local SEAT = SEEN .. sub(REST, 2)
local LIFE = '<dddd'
-- `FAILOVER_LOSS`, crates/kernel/src/coordinator/incarnation.rs, in microseconds; and an instant
-- before every report.
local MOMENT, NEVER = 3000000, -2 ^ 52
-- The microseconds for which the state of a limit is kept after its last use: INFERRED for an
-- adaptive limit. A late report must still find the state, or the store would seem to have lost it.
-- SLACK is added to an expiry, which then need not be changed for that long.
local KEPT, INFERRED, SLACK = 60000000, 600000000, 60000000

local time = call('TIME')
local told = time[1] * 1000000 + time[2]
local real = told
if ARGV[1] ~= '' then
  told = tonumber(ARGV[1])
  -- The instant in ARGV may be behind the clock of Redis, which expires keys. One more day keeps
  -- each key until the instant in ARGV reaches its end.
  real = real + 86400000000
end

local function expire(key, at)
  call('PEXPIREAT', key, string.format('%.0f', floor(at / 1000) + 1))
end

-- crates/kernel/src/coordinator/incarnation.rs. Begins a coordinator incarnation. `knew` is the
-- instant up to which the fleet table is complete.
local born_as, born, settled, since_when

local function begin(knew)
  local after = born_as and born_as + 1 or 0
  born_as, born, settled = after < told and told or after, told, 0
  call('HSET', KEYS[1], 'knew', knew)
end

-- `incarnation_for` and `update_table`, src/store/memory/coordinators.rs: writes the replica's
-- record in the fleet table before its share reports are applied.
local life_changed = false
do
  local LINE = '<ddd'
  local replica, replica_life, under, answered, replica_longest, leaves = unpack('<dddddB', ARGV[3])
  local known_life, its_store, last_heard = spread(call('HMGET', KEYS[1], 'life', 'store', 'heard'))
  last_heard = tonumber(last_heard or NEVER)

  if known_life then born_as, born, settled, since_when = unpack(LIFE, known_life) end
  if not known_life or ARGV[2] ~= '' and its_store ~= ARGV[2] then
    -- `may_list_only_dead`, crates/kernel/src/coordinator/incarnation.rs.
    if not known_life or last_heard + replica_longest <= told + MOMENT then since_when = told end

    begin(last_heard)
    call('HSET', KEYS[1], 'store', ARGV[2])
    life_changed = true
  end

  -- `has_lost_state`, crates/kernel/src/coordinator/incarnation.rs.
  if settled == 0 and 0 <= answered and answered < born and since_when ~= born
    and tonumber(call('HGET', KEYS[1], 'knew') or NEVER) + MOMENT < answered then
    since_when, life_changed = born, true
  end

  local its_line = pack('<dd', replica, replica_life)
  local is_new = 0 < call('HSET', KEYS[1], 'heard', told, its_line, pack(LINE, told, replica_longest, under))
  if leaves == 1 then call('HDEL', KEYS[1], its_line) end
  if is_new or settled == 0 then
    local function settle(longest, lines)
      local complete = since_when + longest <= told
      for i = 1, #lines do
        complete = complete and lines[i] == born_as
      end
      if complete then settled = 1 end
    end

    local all, lines, longest = call('HGETALL', KEYS[1]), {}, nil
    for i = 1, #all, 2 do
      if #all[i] == 16 then
        local heard, its_longest, its_under = unpack(LINE, all[i + 1])
        if heard + its_longest <= told then
          call('HDEL', KEYS[1], all[i])
        else
          lines[#lines + 1] = its_under
          if not longest or longest < its_longest then longest = its_longest end
        end
      end
    end
    -- The last report of a replica that shuts down must not end the grace period: it may be the
    -- first report after the store lost its state.
    if settled == 0 and leaves == 0 then
      settle(longest or replica_longest, lines)
      life_changed = life_changed or settled == 1
    end
  end
end

-- Variables of the current limit: its configuration, the report, and its head (the state except the
-- share states).
local heartbeat, term, max_duration, least, start, most, aggregate
local member, life, number, holds, h_coordinator, h_generation, h_share, h_ceiling
local in_flight, wanted, vote, leaves
local n, incarnation, latest, generation, level, recovered, counted, votes, kept
-- The sums over all share states; `put` defines each addend. They are valid until the instant
-- `sums_hold_until` (0 if a share state is not live), and while the limit is `sum_ceiling`. While a
-- report is applied, the sums exclude the reporting replica until its grant.
local sums_hold_until, sum_ceiling, sum_exposure, sum_need, sum_taken, count_hungry, count_short, count_empty
-- At most `count_ending` share states expire before the instant `next_end`. If it is 0, the sums
-- are valid until that instant. So if all replicas report in time, the script never reads all share
-- states.
local next_end, count_ending
-- The fill level (the need up to which each replica gets its permits) when the limit was last too
-- small for all needs.
local filled
-- The reporting replica's share state: its index, if it exists, and its fields, as in the lists
-- below.
local at, ends, held, granted, its_told, heard, held_generation, granted_generation, since, rests, lasts, its_vote
-- The limit's key, its head as it was read, and the reporting replica's share state as it was read.
local key, state, own
-- All share states, as one list for each field, after they were read. `lay_down` copies the
-- reporting replica's fields into the lists.
local M, L, N, HG, GG, U, S, R, D, HS, GS, T, F, W, V = {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}
-- The packed share states as they were read.
local texts = {}
-- True if the permits that each replica wants were read, if all share states were read, and if all
-- must be written. `grace` is true in the grace period, when other replicas may use shares that the
-- store has lost.
local has_wants, has_all, all_changed, grace
local now, whole

-- crates/kernel/src/coordinator/split.rs. The input of the split: the number of live replicas, and
-- the index of the reporting replica (`me`). `live` lists the indices of live share states, and is
-- nil if all are live. `idle` counts replicas without need that are split as if they needed one
-- permit.
local living, live, me, hungry, idle, my_need, total_need

-- Adds a live share state to the sums if `sign` is 1, or removes it if `sign` is -1. One function
-- does both, so that it removes exactly what it added.
local function put(sign, ends, held, granted, in_flight, told, wanted)
  local ceiling = sum_ceiling
  if ceiling < wanted then wanted = ceiling end
  -- The permits of this replica that count against a lowered limit, and its exposure.
  local taken = granted < in_flight and in_flight or granted
  if held < taken then held = taken end
  sum_exposure, sum_need = sum_exposure + sign * held, sum_need + sign * wanted
  if told <= ceiling then sum_taken = sum_taken + sign * taken end
  if 0 < wanted then count_hungry = count_hungry + sign end
  if granted < wanted then count_short = count_short + sign end
  if granted == 0 then count_empty = count_empty + sign end
  if ends < next_end then count_ending = count_ending + sign end
end

-- `divide_evenly`
local function even(total, among, place_from_0)
  if among == 0 then return 0 end
  local rest = total % among
  return (total - rest) / among + (place_from_0 < rest and 1 or 0)
end

-- The pack formats of the list of wants, by its length.
local formats = {}

-- Reads from the head how many permits each replica wants.
local function load_wants()
  if has_wants then return end
  has_wants = true
  if not formats[n] then formats[n] = '<' .. rep('I', n) end
  W = {unpack(formats[n], state, HEAD_BYTES + 1)}
end

-- Returns how many permits each live replica wants, with the new value of the reporting replica.
local function wants_of_the_living()
  load_wants()
  W[at] = wanted
  if not live then return W end
  local wants = {}
  for i = 1, living do wants[i] = W[live[i]] end
  return wants
end

-- Functions for reports that need all share states, or for limits that are too small for all needs.
local see_all, lay_down, drop_seats_that_are_over, place, insert, move_ceiling, sum_up, take_turns, write_all, fill

local reply, length = {0, told}, 2
for i = 2, #KEYS do
  local said = ARGV[i + 2]
  key = KEYS[i]
  heartbeat, term, max_duration, least, start, most, aggregate, member, life, number, holds,
    h_coordinator, h_generation, h_share, h_ceiling, in_flight, wanted, vote, leaves = unpack(SAID, said)
  local code, fair, its_generation = NOT_UNDERSTOOD, 0, 0
  -- A `break` without a code means that the value under the key has an unknown format.
  repeat
    local name = sub(said, NAME_FROM, NAME_TO)
    local found = try('HMGET', key, 'head', name)
    if found.err then
      assert(sub(found.err, 1, 9) == 'WRONGTYPE', found.err)
      break
    end
    state, own, at = found[1], found[2], nil
    has_wants, has_all, all_changed = false, false, false
    if not state then
      if call('HLEN', key) ~= 0 then break end
      n, incarnation, kept = 0, -1, 0
    else
      if #state < HEAD_BYTES then break end
      n, incarnation, latest, generation, level, recovered, counted, votes, kept, sums_hold_until, next_end, sum_ceiling,
        sum_exposure, sum_need, sum_taken, count_hungry, count_short, count_empty, count_ending, filled = unpack(HEAD, state)
      if #state ~= HEAD_BYTES + 4 * n or own and #own ~= SEAT_BYTES then break end
    end
    local was_in_flight, was_wanted, _
    if own then
      at, _, ends, held, granted, was_in_flight, its_told, _, heard, held_generation, granted_generation, since, rests,
        lasts, its_vote = unpack(SEAT, own)
      was_wanted = unpack('<I', state, HEAD_BYTES + 4 * at - 3)
    end

    -- `apply_heartbeat`, crates/kernel/src/coordinator/coordinator.rs: to the end of the loop.
    if incarnation ~= born_as then
      incarnation, latest, generation, level, recovered, counted, votes = born_as, 0, 0, -1, 0, told, 0
      n, at, has_wants, has_all, all_changed = 0, nil, true, true, true
      sums_hold_until, next_end, sum_ceiling, sum_exposure, sum_need, sum_taken = 0, 0, 0, 0, 0, 0
      count_hungry, count_short, count_empty, count_ending, filled = 0, 0, 0, 0, 0
    end
    if latest < told then latest = told end
    now = latest
    whole = level < 0 and 0 or (level - level % FINE) / FINE

    -- `is_in_grace`, crates/kernel/src/coordinator/incarnation.rs.
    grace = settled == 0 and now < born + term + max_duration

    local must_see_all = not at or sums_hold_until <= now or leaves == 1

    -- `is_plain`: all share states are live and stay. The limit does not change, has a permit for
    -- each replica, and is the limit for which the sums are valid.
    local is_plain = not must_see_all and not grace and n <= whole and whole == sum_ceiling and 0 < term
      and least * FINE <= level and level <= most * FINE
      and (votes + vote == 0 or 4 * (now - counted) < 7 * heartbeat)
    if not is_plain and not see_all then
      function see_all()
        if has_all then return end
        has_all = true
        load_wants()
        local all, state = call('HVALS', key), state
        local M, U, HS, GS, F, T, L, texts = M, U, HS, GS, F, T, L, texts
        for k = 1, #all do
          local its = all[k]
          if its ~= state then
            local i, member, ends, held, granted, in_flight, told = unpack(SEEN, its)
            M[i], U[i], HS[i], GS[i], F[i], T[i], L[i], texts[i] = member, ends, held, granted, in_flight, told, nil, its
          end
        end
      end

      -- `load` unpacks the other fields of one share state, and `load_all` those of all.
      local function load(i)
        if L[i] then return end
        L[i], N[i], HG[i], GG[i], S[i], R[i], D[i], V[i] = unpack(REST, texts[i], REST_FROM)
      end

      local function load_all()
        see_all()
        for i = 1, n do load(i) end
      end

      -- Copies the reporting replica's share state into the lists.
      function lay_down()
        see_all()
        M[at], L[at], N[at], HG[at], GG[at], U[at], S[at] = member, life, heard, held_generation, granted_generation, ends, since
        HS[at], GS[at], T[at], F[at], W[at], V[at] = held, granted, its_told, in_flight, wanted, its_vote
        R[at], D[at] = rests, lasts
      end

      -- crates/kernel/src/coordinator/share_state.rs.
      local function exposure(i)
        local most, granted, in_flight = HS[i], GS[i], F[i]
        if most < granted then most = granted end
        if most < in_flight then most = in_flight end
        return most
      end

      -- `is_unused`
      local function is_over(i)
        if now < U[i] then return false end
        if exposure(i) == 0 then return true end
        load(i)
        -- `unused_from`: uses the larger `max_duration` of the share state and of the current
        -- configuration.
        local lasts = D[i]
        if lasts < max_duration then lasts = max_duration end
        return R[i] <= now and U[i] + lasts <= now
      end

      function drop_seats_that_are_over()
        local now, U, first = now, U, 1
        for i = 1, n do
          if now < U[i] or not is_over(i) then first = first + 1 else break end
        end
        if n < first then return end
        load_all()
        local kept = first - 1
        for i = first, n do
          if is_over(i) then
            if V[i] ~= 0 then votes = votes - 1 end
          else
            kept = kept + 1
            M[kept], L[kept], N[kept], HG[kept], GG[kept], U[kept], S[kept] = M[i], L[i], N[i], HG[i], GG[i], U[i], S[i]
            HS[kept], GS[kept], T[kept], F[kept], W[kept], V[kept] = HS[i], GS[i], T[i], F[i], W[i], V[i]
            R[kept], D[kept] = R[i], D[i]
          end
        end
        n, all_changed = kept, true
      end

      -- `find_index`: returns the share state's index, true if it
      -- exists, and SUPERSEDED if a later incarnation reported.
      function place()
        local member, M = member, M
        local at, is_there = n + 1, false
        for i = 1, n do
          if member <= M[i] then at = i break end
        end
        while at <= n and M[at] == member do
          load(at)
          if life < L[at] then return at, is_there, SUPERSEDED end
          is_there = L[at] == life
          if is_there then break end
          at = at + 1
        end
        if is_there and M[at + 1] == member and at < n then return at, is_there, SUPERSEDED end
        return at, is_there
      end

      function insert()
        load_all()
        for _, run in ipairs({M, L, N, HG, GG, U, S, R, D, HS, GS, T, F, W, V}) do
          for i = n, at, -1 do run[i + 1] = run[i] end
        end
        n, all_changed, sums_hold_until = n + 1, true, 0
      end

      -- `live_replicas`
      local function is_live(i)
        return now < U[i] and (i == n or M[i + 1] ~= M[i])
      end

      -- crates/kernel/src/coordinator/aggregate.rs.
      local function within(a)
        if most * FINE < a then a = most * FINE end
        if a < least * FINE then a = least * FINE end
        return a
      end

      -- A ratio of 65,536 means 1. One vote count at most doubles a limit.
      local function scaled(a, ratio)
        if 131072 < ratio then ratio = 131072 end
        return within(floor(a * ratio / 65536))
      end

      -- `combine`
      local function fold(votes)
        table.sort(votes)
        if aggregate == 1 or #votes == 0 then return votes[1] end
        return votes[floor((#votes - 1) / 2) + 1]
      end

      -- `count_votes`
      local function count()
        lay_down()
        load_all()
        local of_the_living = {}
        for i = 1, n do
          if V[i] ~= 0 and is_live(i) then of_the_living[#of_the_living + 1] = V[i] - 1 end
        end
        local ratio = fold(of_the_living)
        if not ratio then return end
        level, counted, votes, its_vote, all_changed = scaled(level, ratio), now, 0, 0, true
        for i = 1, n do V[i] = 0 end
      end

      -- `update_limit`
      function move_ceiling()
        local claim = grace and holds == 1 and h_coordinator ~= incarnation and h_ceiling * FINE or nil
        if level < 0 or claim and recovered == 0 then
          level = claim or start * FINE
        elseif claim and claim < level then
          level = claim
        end
        if claim then recovered = 1 end
        level = within(level)
        if not grace and 7 * heartbeat <= 4 * (now - counted) and votes ~= 0 then count() end
        whole = (level - level % FINE) / FINE
      end

      -- Computes the sums over all share states except that of the reporting replica. An expired
      -- share state adds only its exposure.
      function sum_up()
        lay_down()
        sum_ceiling, sum_exposure, sum_need, sum_taken, count_hungry, count_short, count_empty = whole, 0, 0, 0, 0, 0, 0
        next_end, count_ending = ends, 0
        living, live, me = 0, {}, nil
        local until_when = ends
        for i = 1, n do
          if is_live(i) then
            living = living + 1
            live[living] = i
            if i == at then me = living else put(1, U[i], HS[i], GS[i], F[i], T[i], W[i]) end
            if U[i] < until_when then until_when = U[i] end
          elseif i ~= at then
            local its = exposure(i)
            sum_exposure, sum_taken = sum_exposure + its, sum_taken + its
          end
        end
        -- If a share state has expired, the sums are invalid for the next report, whose
        -- configuration decides how long the share state is kept.
        sums_hold_until = living == n and until_when or 0
      end

      -- crates/kernel/src/coordinator/split.rs. For each live replica: the permits that it wants,
      -- true if it waits for a permit, and since when it waits or has one.
      local wants, waits, turns

      -- `priority_class`
      local function class(i, turned)
        if wants[i] == 0 then return 3 end
        if waits[i] then return 1 end
        if turned < turns[i] then return 0 end
        return 2
      end

      -- Returns the number of replicas that get a permit before `me`, and how many of them wait for
      -- one.
      local function ahead(turned)
        local mine, count_ahead, waiting = class(me, turned), 0, 0
        for i = 1, living do
          local its = class(i, turned)
          if its < mine or its == mine and (turns[i] < turns[me] or turns[i] == turns[me] and i < me) then
            count_ahead = count_ahead + 1
            if waits[i] then waiting = waiting + 1 end
          end
        end
        return count_ahead, waiting
      end

      -- Returns the fair share of the reporting replica, if the limit has fewer permits than
      -- replicas. Also returns the permits that replicas before it wait for.
      function take_turns()
        lay_down()
        load_all()
        wants, waits, turns = wants_of_the_living(), {}, {}
        for i = 1, living do
          local its = live and live[i] or i
          waits[i], turns[i] = GS[its] == 0, S[its]
        end
        local turned = now - heartbeat * 4
        if turned < 0 then turned = 0 end
        local count_ahead, waiting = ahead(turned)
        return count_ahead < whole and 1 or 0, waiting
      end

      -- Deletes and rewrites the hash of the limit, so that no removed share state stays in it.
      function write_all()
        load_all()
        call('DEL', key)
        local head = pack(HEAD, n, incarnation, latest, generation, level, recovered, counted, votes, kept, sums_hold_until,
          next_end, sum_ceiling, sum_exposure, sum_need, sum_taken, count_hungry, count_short, count_empty, count_ending,
          filled)
        local parts, to = {'head', head .. pack('<' .. rep('I', n), spread(W, 1, n))}, 2
        for i = 1, n do
          parts[to + 1] = pack(NAME, M[i], L[i])
          parts[to + 2] = pack(SEAT, i, M[i], U[i], HS[i], GS[i], F[i], T[i], L[i], N[i], HG[i], GG[i], S[i], R[i], D[i], V[i])
          to = to + 2
          -- Write in parts, because a Lua function takes at most 8,000 arguments.
          if to == 2000 then
            call('HSET', key, spread(parts))
            parts, to = {}, 0
          end
        end
        if 0 < to then call('HSET', key, spread(parts)) end
      end
    end

    -- `see`: reads all share states if that of the reporting replica is not enough.
    local is_there, refused = true, nil
    if must_see_all then
      see_all()
      drop_seats_that_are_over()
      at, is_there, refused = place()
    end

    -- `refused`: rejects invalid reports.
    if refused then
      code = refused
    elseif holds == 1 and h_coordinator == incarnation and generation < h_generation then
      code = LOST
    elseif is_there and number <= heard then
      code = LATE
    elseif not is_there and MOST_SEATS <= n then
      code = FULL
    else

      -- `confirmed_grant`: the grant that the replica used when it sent the report.
      local its_held, its_held_generation = 0, 0
      if holds == 1 and leaves == 0 then
        if h_coordinator ~= incarnation then
          if grace then its_held = h_share end
        elseif is_there and held_generation == h_generation then
          its_held, its_held_generation = held, held_generation
        elseif is_there and granted_generation == h_generation then
          its_held, its_held_generation = granted, granted_generation
        end
      end

      -- `valid_vote`: a vote counts only if the replica voted on the current limit.
      local said_vote = 0
      if holds == 1 and h_ceiling == whole and 0 < wanted then
        said_vote = vote
        if vote == 0 and is_there then said_vote = its_vote end
      end

      -- `store_heartbeat`.
      if not is_there then
        insert()
        granted_generation, since, granted, its_told, its_vote = its_held_generation, now, its_held, 0, 0
        ends, rests, lasts = now, now, max_duration
      elseif now < sums_hold_until then
        put(-1, ends, held, granted, was_in_flight, its_told, was_wanted)
      end
      heard, held_generation, held = number, its_held_generation, its_held
      if said_vote ~= its_vote then
        votes = votes + (said_vote == 0 and 0 or 1) - (its_vote == 0 and 0 or 1)
        its_vote = said_vote
      end
      -- `previous_requests_end`.
      local last = now
      if max_duration < lasts and now < ends then last = ends end
      if rests < last + lasts then rests = last + lasts end
      lasts = max_duration
      if leaves == 1 then
        granted_generation, granted, ends = 0, 0, now
      elseif ends < now + term then
        ends = now + term
      end
      if ends < sums_hold_until then sums_hold_until = ends end

      -- `leave`.
      if leaves == 1 then
        code = LEFT
        lay_down()
        drop_seats_that_are_over()
      else
        if not is_plain then move_ceiling() end

        -- `grant_share`.
        if sums_hold_until <= now or whole ~= sum_ceiling then
          sum_up()
        else
          living, live, me = n, nil, at
        end
        my_need = 0
        if me then my_need = wanted < whole and wanted or whole end
        total_need, hungry, idle = sum_need + my_need, count_hungry, 0
        if 0 < my_need then hungry = hungry + 1 end

        -- `split_rule`, crates/kernel/src/coordinator/split.rs.
        local by = TURNS
        if living <= whole then
          by = ALL
        elseif 0 < hungry and hungry <= whole then
          by = HUNGRY
        end

        -- `any_short`, and the case where each replica needs at least one permit.
        local any_short = 0 < count_short or by == ALL and 0 < count_empty
        if by == ALL and hungry < living then
          idle = living - hungry
          total_need, hungry = total_need + idle, living
          if my_need < 1 then my_need = 1 end
        end

        -- `fair_share`, crates/kernel/src/coordinator/split.rs;
        -- and `reserved`, the permits owed to others.
        local owed = 0
        if not me then
          fair = 0
        elseif by == TURNS then
          fair, owed = take_turns()
        elseif total_need <= whole and hungry == living then
          fair = my_need + even(whole - total_need, living, me - 1)
        elseif my_need ~= 0 then
          if not fill then
            -- `fill_level`: sets `filled` to the fill level: the largest whole number of permits
            -- such that each replica can get its need up to this number. Returns the number of
            -- needs above the level, and the permits left over. The search starts at the previous
            -- level, which is near. From a start that is too high, the first iteration goes to the
            -- level or below it. From below, each iteration goes up, and stops at the level.
            local function fill_all(wants)
              local living, level, spare, is_first = living, filled, whole - idle, true
              while true do
                local rest, short = spare, 0
                for i = 1, living do
                  local its = wants[i]
                  if level < its then short = short + 1 else rest = rest - its end
                end
                local next = short == 0 and 0 or floor(rest / short)
                -- The level can only go down here if the sums do not belong to these wants. The
                -- search must still end.
                if next == level or not is_first and next < level then
                  filled = level
                  return short, rest - level * short
                end
                level, is_first = next, false
              end
            end

            -- `divide_by_need`
            function fill()
              -- Replicas that want more than the level share the permits left over. If no replica
              -- wants more, all replicas of the split share them.
              local wants, to, among, rest = wants_of_the_living(), 0, hungry, whole - total_need
              local mine = my_need
              if rest < 0 then
                among, rest = fill_all(wants)
                to = filled
                if mine <= to then return mine end
                mine = to
              end
              local before = 0
              for i = 1, me - 1 do
                if to < wants[i] then before = before + 1 end
              end
              return mine + even(rest, among, before)
            end
          end
          fair = fill()
        end

        -- `grantable_share`; and `room_after_decrease`, for a lowered limit whose new value other
        -- replicas have not received yet.
        local free, share = whole - sum_exposure, fair
        if free < held then
          local left = whole - sum_taken
          if left < 0 then left = 0 end
          if held < share then share = held end
          if left < share then share = left end
        else
          if share < held and (grace or not any_short) then share = held end
          local room = held
          if not grace and held < free - owed then room = free - owed end
          if room < share then share = room end
        end

        -- `granted`: stores the grant.
        its_generation = held_generation
        if held ~= share or its_generation == 0 then its_generation = generation + 1 end
        if generation < its_generation then generation = its_generation end
        if (share == 0) ~= (granted == 0) then since = now end
        granted_generation, granted, its_told, code = its_generation, share, whole, GRANTED
        put(1, ends, held, granted, in_flight, whole, wanted)
        if count_ending == 0 and 0 < sums_hold_until then
          -- Count every other share state as ending before this one. If one of them does not, the
          -- sums are only computed again earlier than necessary.
          if sums_hold_until < next_end then sums_hold_until = next_end end
          next_end, count_ending = ends, n - 1
        end
        if all_changed then lay_down() end
      end
    end

    local is_heard, in_use = code == GRANTED or code == LEFT, term + max_duration
    -- Requests that the replica allowed under an earlier configuration may last longer.
    if is_heard and in_use < rests - now then in_use = rests - now end
    local least_kept = real + in_use + (least < most and INFERRED or KEPT)
    local renews = kept < least_kept
    if n == 0 and least == most then
      -- The last replica left. There may be as many short-lived limits as descriptor values, so
      -- this state expires early.
      kept, renews = real + KEPT, true
    elseif renews then
      kept = least_kept + SLACK
    end
    if all_changed then
      write_all()
    else
      local w = HEAD_BYTES + (is_heard and 4 * at or 0)
      local wants = sub(state, w + 1)
      if is_heard then wants = sub(state, HEAD_BYTES + 1, w - 4) .. pack('<I', wanted) .. wants end
      local head = pack(HEAD .. 'c0', n, incarnation, latest, generation, level, recovered, counted, votes, kept,
        sums_hold_until, next_end, sum_ceiling, sum_exposure, sum_need, sum_taken, count_hungry, count_short, count_empty,
        count_ending, filled, wants)
      if is_heard then
        call('HSET', key, 'head', head, name, pack(SEAT, at, member, ends, held, granted, in_flight, its_told, life, heard,
          held_generation, granted_generation, since, rests, lasts, its_vote))
      else
        call('HSET', key, 'head', head)
      end
    end
    if renews or all_changed then expire(key, kept) end
  until true

  if code == LOST then
    -- The store lost the state of the limit, but not the fleet table.
    begin(told)
    life_changed = true
  end
  reply[length + 1] = code
  if code == GRANTED then
    reply[length + 2], reply[length + 3], reply[length + 4], reply[length + 5] = incarnation, its_generation, granted, fair
    reply[length + 6], reply[length + 7], reply[length + 8] = whole, living, grace and 1 or 0
  else
    for field = 2, 8 do reply[length + field] = 0 end
  end
  length = length + 8
end
if life_changed then
  call('HSET', KEYS[1], 'life', pack(LIFE, born_as, born, settled, since_when))
end
-- The fleet table expires after thirty days.
expire(KEYS[1], real + 2592000000000)
reply[1] = born_as
return pack('<' .. rep('d', length), spread(reply, 1, length))
