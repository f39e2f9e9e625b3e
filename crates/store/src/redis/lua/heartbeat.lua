-- Applies one share round of one replica, in microseconds.
--
-- It is a transcription of Rust code: the fleet table of src/store/memory/coordinators.rs, and each
-- limit of crates/kernel/src/coordinator: incarnation.rs, coordinator.rs, grant.rs, split.rs,
-- entitlement.rs, running_sums.rs, share_state.rs and aggregate.rs. Functions and commented blocks have the names
-- and the order of the Rust functions. A Rust field `a.b` is the local `a_b` here; a field of the
-- coordinator has no prefix. `limit` is in whole permits, and `fractional_limit` in 1,024ths.
--
-- KEYS[1]  a hash: 'store' is Redis' run_id when the incarnation began, 'incarnation' the
--          coordinator's incarnation, 'last_report' the instant of the last report, 'known_until'
--          that instant when the incarnation began. Each incarnation of each replica has a field,
--          too: the fleet table.
-- KEYS[n]  from 2, the state of one limit, a hash: 'head' is the HEAD and the demand of each
--          replica. Each share state has a field, by replica and incarnation; the points of its
--          curve follow it.
-- ARGV[1]  the instant in microseconds since the Unix epoch; '' uses the clock of Redis
-- ARGV[2]  the run_id of Redis; '' if the caller does not know it
-- ARGV[3]  packed: the replica and its incarnation; the coordinator's incarnation that granted all
--          its shares (-1 none); the instant of the last reply that it received (-1 none); the
--          microseconds for which a share of it, or of a forgotten replica, may be in use; 1 if it
--          shuts down
-- ARGV[n]  from 4, packed: the configuration and the heartbeat of each limit, see REPORT; a vote is
--          one more than its ratio, and 0 is none; the last byte is 1 if the replica leaves, plus 2
--          if the heartbeat is claimed. If the limit has classes or fair parts and the replica has
--          demand, there follow the number of classes, the part of each in percent, and the points
--          of the curve
-- Reply: one string of little-endian doubles: the incarnation, the instant in microseconds, and
--   eight for each limit. These are a code, and for code 0 (granted) the incarnation, the
--   generation, the share, the fair share, the limit, the number of replicas, and 1 while
--   recovering; else zeros. Codes: 1 left, 2 stale, 3 superseded, 4 state lost, 5 too many
--   replicas, 6 unreadable (the value under the key has an unknown format)
--
-- Arithmetic is exact: all numbers are integers below 2^53. A fractional limit is below 2^34 and a
-- ratio at most 2^17, so their product is below 2^52.
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
-- - if the replicas need more permits than the limit: the demand of each replica,
-- - if a share state is added, removed or expires: all share states,
-- - if the limit changes, votes are counted, or the limit has fewer permits than replicas: all
--   share states,
-- - if a heartbeat has a curve: all share states with their curves; of more than 16 replicas, only
--   eight times in a heartbeat interval,
-- - until the incarnation is settled, and for a new replica: the whole fleet table.
--
-- Commands: TIME, HGET, HSET, HDEL, HGETALL, HMGET, HVALS, HLEN, DEL, PEXPIREAT.

-- A plain heartbeat reads and writes only the share state of its replica. The loop at the end
-- contains the plain path, in locals: Redis creates a script's functions and their shared variables
-- anew at every call. All other functions are created when the first limit of a call needs them.

local KEYS, ARGV = KEYS, ARGV
local call, try, spread = redis.call, redis.pcall, _G.unpack
local floor, pack, unpack = math.floor, struct.pack, struct.unpack
local sub, rep = string.sub, string.rep

local GRANTED, LEFT, STALE, SUPERSEDED, STATE_LOST, TOO_MANY_REPLICAS, UNREADABLE =
  0, 1, 2, 3, 4, 5, 6
local MAX_SHARE_STATES = 4096
local LEVELS_PER_PERMIT = 1024
local ALL, WITH_DEMAND, TURNS = 0, 1, 2
-- In these formats, `I` is an unsigned int, which has 4 bytes on every platform of Redis. `I4`
-- would be slower to parse.
local REPORT, REPORT_BYTES = '<dddIIIBdddBddIIIIIB', 99
-- The position of the replica and its incarnation in a report: these bytes are the field name of
-- its share state.
local NAME, NAME_FROM, NAME_TO = '<dd', 38, 53
-- The formats of the head of a limit and of a share state. Their lengths identify the layout, so a
-- changed layout needs another length. Therefore 'is_recovered' has 2 bytes, not 1.
local HEAD, HEAD_BYTES = '<IddddHdIddddIdddIIIII', 130
-- The fields that the script reads from all share states, and the other fields. The points of a curve
-- may follow.
local FIRST, OTHER, OTHER_FROM, SHARE_STATE_BYTES = '<IddIIII', '<dddddddI', 37, 96
local SHARE_STATE = FIRST .. sub(OTHER, 2)
local INCARNATION = '<dddd'
-- crates/kernel/src/coordinator/demand_curve.rs and `MAX_EACH_ENTITLED`.
local LEVELS, UNITS_PER_PERMIT, POINT_BYTES, MAX_EACH_ENTITLED = 134217728, 16, 8, 16
-- `FAILOVER_LOSS`, crates/kernel/src/coordinator/incarnation.rs, in microseconds; and an instant
-- before every report.
local FAILOVER_LOSS, NEVER = 3000000, -2 ^ 52
-- The microseconds for which the state of a limit is kept after its last use: the second for an
-- adaptive limit. A late report must still find the state, or the store would seem to have lost it.
-- SLACK is added to an expiry, which then need not be changed for that long.
local KEPT, ADAPTIVE_KEPT, SLACK = 60000000, 600000000, 60000000

local time = call('TIME')
local store_time = time[1] * 1000000 + time[2]
local redis_time = store_time
if ARGV[1] ~= '' then
  store_time = tonumber(ARGV[1])
  -- The instant in ARGV may be behind the clock of Redis, which expires keys. One more day keeps
  -- each key until the instant in ARGV reaches its end.
  redis_time = redis_time + 86400000000
end

local function expire(key, at)
  call('PEXPIREAT', key, string.format('%.0f', floor(at / 1000) + 1))
end

-- The coordinator's incarnation, and the instant since which the fleet table is complete.
local current_incarnation, current_started_at, current_is_settled, complete_since

-- Begins a coordinator incarnation. The fleet table contains every report up to `known_until`.
local function begin_incarnation(known_until)
  local after = current_incarnation and current_incarnation + 1 or 0
  current_incarnation = after < store_time and store_time or after
  current_started_at, current_is_settled = store_time, 0
  call('HSET', KEYS[1], 'known_until', known_until)
end

-- `incarnation_for` and `update_table`, src/store/memory/coordinators.rs: writes the replica's
-- record in the fleet table before its share reports are applied.
local incarnation_changed = false
do
  local RECORD = '<ddd'
  local replica, incarnation, granted_by, last_reply_at, longest_use, is_leaving =
    unpack('<dddddB', ARGV[3])
  local known, known_store, last_report =
    spread(call('HMGET', KEYS[1], 'incarnation', 'store', 'last_report'))
  last_report = tonumber(last_report or NEVER)

  if known then
    current_incarnation, current_started_at, current_is_settled, complete_since =
      unpack(INCARNATION, known)
  end
  if not known or ARGV[2] ~= '' and known_store ~= ARGV[2] then
    -- `may_list_only_dead`, crates/kernel/src/coordinator/incarnation.rs.
    if not known or last_report + longest_use <= store_time + FAILOVER_LOSS then
      complete_since = store_time
    end

    begin_incarnation(last_report)
    call('HSET', KEYS[1], 'store', ARGV[2])
    incarnation_changed = true
  end

  -- `has_lost_state`, crates/kernel/src/coordinator/incarnation.rs.
  if current_is_settled == 0 and 0 <= last_reply_at and last_reply_at < current_started_at
    and complete_since ~= current_started_at
    and tonumber(call('HGET', KEYS[1], 'known_until') or NEVER) + FAILOVER_LOSS < last_reply_at then
    complete_since, incarnation_changed = current_started_at, true
  end

  local name = pack(NAME, replica, incarnation)
  local record = pack(RECORD, store_time, longest_use, granted_by)
  local is_new = 0 < call('HSET', KEYS[1], 'last_report', store_time, name, record)
  if is_leaving == 1 then call('HDEL', KEYS[1], name) end
  if is_new or current_is_settled == 0 then
    local function settle(longest, granted_by)
      local is_complete = complete_since + longest <= store_time
      for i = 1, #granted_by do
        is_complete = is_complete and granted_by[i] == current_incarnation
      end
      if is_complete then current_is_settled = 1 end
    end

    local fields, all_granted_by, longest = call('HGETALL', KEYS[1]), {}, nil
    for i = 1, #fields, 2 do
      if #fields[i] == 16 then
        local reported_at, its_longest, its_granted_by = unpack(RECORD, fields[i + 1])
        if reported_at + its_longest <= store_time then
          call('HDEL', KEYS[1], fields[i])
        else
          all_granted_by[#all_granted_by + 1] = its_granted_by
          if not longest or longest < its_longest then longest = its_longest end
        end
      end
    end
    -- The last report of a replica that shuts down must not end the grace period: it may be the
    -- first report after the store lost its state.
    if current_is_settled == 0 and is_leaving == 0 then
      settle(longest or longest_use, all_granted_by)
      incarnation_changed = incarnation_changed or current_is_settled == 1
    end
  end
end

-- Variables of the current limit: its configuration, the heartbeat and its grant in use, and the
-- head (the coordinator's fields except the share states).
local timing_heartbeat, timing_share_lifetime, timing_max_duration
local config_min, config_start, config_max, config_aggregate
local heartbeat_replica, heartbeat_incarnation, heartbeat_number, heartbeat_in_flight
local heartbeat_demand, heartbeat_vote, heartbeat_is_leaving, heartbeat_is_claimed
local config_classes, heartbeat_curve
local has_in_use, in_use_coordinator_incarnation, in_use_generation, in_use_share, in_use_limit
local count, incarnation, latest_time, generation, fractional_limit, is_recovered, counted_at
local vote_count, kept_until, entitled_at
local sums_valid_until, sums_next_expiry, sums_limit, sums_exposure, sums_need, sums_used
local sums_with_demand, sums_short, sums_without_share, sums_expiring, sums_fill_level
-- The reporting replica's share state: its index, if it exists, and its fields.
local at, own_expires_at, own_confirmed, own_granted, own_in_flight, own_demand, own_replied_limit
local own_number, own_confirmed_generation, own_granted_generation, own_changed_at
local own_earlier_requests_end, own_max_duration, own_vote, own_curve
-- The limit's key, its head as it was read, and the reporting replica's share state as it was read.
local key, stored_head, stored_own
-- All share states, as one list for each field, after they were read. `write` copies the reporting
-- replica's fields into the lists.
local replicas, incarnations, numbers, expires_at, changed_at = {}, {}, {}, {}, {}
local confirmed_generations, granted_generations, confirmed, granted = {}, {}, {}, {}
local earlier_requests_end, max_duration, replied_limit = {}, {}, {}
local in_flight, demand, vote, curve = {}, {}, {}, {}
-- The packed share states as they were read.
local texts = {}
-- True if the demands were read, if all share states were read, and if all must be written. `grace`
-- is true in the grace period, when other replicas may use shares that the store has lost.
-- `is_entitled` is true if all demands changed.
local has_demands, has_all, all_changed, grace, is_entitled
local now, limit

-- The split: its fields (`me` is the index of the reporting replica, or nil), and the indices of
-- live share states, or nil if all are live.
local live_count, me, own_need, total_need, with_demand, idle, live

-- `put`: adds a live share state to the sums if `sign` is 1, or removes it if `sign` is -1.
local function put(sign, expires_at, confirmed, granted, in_flight, replied_limit, demand)
  local limit = sums_limit
  local need = demand < limit and demand or limit
  local used = granted < in_flight and in_flight or granted
  local exposure = confirmed < used and used or confirmed
  sums_exposure, sums_need = sums_exposure + sign * exposure, sums_need + sign * need
  if replied_limit <= limit then sums_used = sums_used + sign * used end
  if 0 < need then sums_with_demand = sums_with_demand + sign end
  if granted < need then sums_short = sums_short + sign end
  if granted == 0 then sums_without_share = sums_without_share + sign end
  if expires_at < sums_next_expiry then sums_expiring = sums_expiring + sign end
end

-- `divide_evenly`; its index counts from 0.
local function divide_evenly(total, count, index)
  if count == 0 then return 0 end
  local rest = total % count
  return (total - rest) / count + (index < rest and 1 or 0)
end

-- The pack formats of the list of demands, by its length.
local formats = {}

-- Reads the demands from the head.
local function read_demands()
  if has_demands then return end
  has_demands = true
  if not formats[count] then formats[count] = '<' .. rep('I', count) end
  demand = {unpack(formats[count], stored_head, HEAD_BYTES + 1)}
end

-- Returns the demands of the live replicas, with the new one of the reporting replica.
local function live_demands()
  read_demands()
  demand[at] = own_demand
  if not live then return demand end
  local demands = {}
  for i = 1, live_count do demands[i] = demand[live[i]] end
  return demands
end

-- Functions for heartbeats that need all share states, or for limits that are too small for all
-- needs.
local read_all, write, drop_unused, find_index, is_superseded, insert, update_limit, sum_up
local divide_by_need, take_turns, write_all, entitle

local reply, length = {0, store_time}, 2
for i = 2, #KEYS do
  local report = ARGV[i + 2]
  key = KEYS[i]
  timing_heartbeat, timing_share_lifetime, timing_max_duration, config_min, config_start,
    config_max, config_aggregate, heartbeat_replica, heartbeat_incarnation, heartbeat_number,
    has_in_use, in_use_coordinator_incarnation, in_use_generation, in_use_share, in_use_limit,
    heartbeat_in_flight, heartbeat_demand, heartbeat_vote, heartbeat_is_leaving =
    unpack(REPORT, report)
  heartbeat_curve, config_classes = '', nil
  if REPORT_BYTES < #report then
    local classes_to = REPORT_BYTES + 1 + string.byte(report, REPORT_BYTES + 1)
    config_classes = sub(report, REPORT_BYTES + 2, classes_to)
    heartbeat_curve = sub(report, classes_to + 1)
  end
  heartbeat_is_claimed = 2 <= heartbeat_is_leaving
  heartbeat_is_leaving = heartbeat_is_leaving % 2
  local code, fair_share = UNREADABLE, 0
  -- A `break` without a code means that the value under the key has an unknown format.
  repeat
    local name = sub(report, NAME_FROM, NAME_TO)
    local found = try('HMGET', key, 'head', name)
    if found.err then
      assert(sub(found.err, 1, 9) == 'WRONGTYPE', found.err)
      break
    end
    stored_head, stored_own, at = found[1], found[2], nil
    has_demands, has_all, all_changed, is_entitled = false, false, false, false
    if not stored_head then
      if call('HLEN', key) ~= 0 then break end
      count, incarnation, kept_until = 0, -1, 0
    else
      if #stored_head < HEAD_BYTES then break end
      count, incarnation, latest_time, generation, fractional_limit, is_recovered, counted_at,
        vote_count, entitled_at, kept_until, sums_valid_until, sums_next_expiry, sums_limit, sums_exposure,
        sums_need, sums_used, sums_with_demand, sums_short, sums_without_share, sums_expiring,
        sums_fill_level = unpack(HEAD, stored_head)
      if #stored_head ~= HEAD_BYTES + 4 * count then break end
      if stored_own and (#stored_own < SHARE_STATE_BYTES
        or (#stored_own - SHARE_STATE_BYTES) % POINT_BYTES ~= 0) then break end
    end
    if stored_own then
      local _
      at, _, own_expires_at, own_confirmed, own_granted, own_in_flight, own_replied_limit, _,
        own_number, own_confirmed_generation, own_granted_generation, own_changed_at,
        own_earlier_requests_end, own_max_duration, own_vote = unpack(SHARE_STATE, stored_own)
      own_demand = unpack('<I', stored_head, HEAD_BYTES + 4 * at - 3)
    end

    -- `apply_heartbeat`, crates/kernel/src/coordinator/coordinator.rs: to the end of the loop.
    if incarnation ~= current_incarnation then
      incarnation, latest_time, generation, fractional_limit = current_incarnation, 0, 0, -1
      is_recovered, counted_at, vote_count, entitled_at = 0, store_time, 0, 0
      count, at, has_demands, has_all, all_changed = 0, nil, true, true, true
      sums_valid_until, sums_next_expiry, sums_limit, sums_exposure, sums_need = 0, 0, 0, 0, 0
      sums_used, sums_with_demand, sums_short, sums_without_share = 0, 0, 0, 0
      sums_expiring, sums_fill_level = 0, 0
    end
    if latest_time < store_time then latest_time = store_time end
    now = latest_time
    limit = fractional_limit < 0 and 0
      or (fractional_limit - fractional_limit % LEVELS_PER_PERMIT) / LEVELS_PER_PERMIT

    -- `is_in_grace`, crates/kernel/src/coordinator/incarnation.rs.
    grace = current_is_settled == 0
      and now < current_started_at + timing_share_lifetime + timing_max_duration

    local must_read_all = not at or sums_valid_until <= now or heartbeat_is_leaving == 1

    -- `is_plain`
    local is_plain = not must_read_all and not grace and count <= limit and limit == sums_limit
      and 0 < timing_share_lifetime and config_min * LEVELS_PER_PERMIT <= fractional_limit
      and fractional_limit <= config_max * LEVELS_PER_PERMIT
      and (vote_count + heartbeat_vote == 0 or 4 * (now - counted_at) < 7 * timing_heartbeat)
    if (not is_plain or heartbeat_curve ~= '') and not read_all then
      local read, read_others, lists, is_live, count_votes, ahead, priority_class
      local exposure, is_unused, within, scaled, combine
      local entitlements, add_lines, class_level, demand_at

      function read_all()
        if has_all then return end
        has_all = true
        read_demands()
        local fields, stored_head = call('HVALS', key), stored_head
        local replicas, expires_at, confirmed, granted = replicas, expires_at, confirmed, granted
        local in_flight, replied_limit = in_flight, replied_limit
        local incarnations, texts = incarnations, texts
        for k = 1, #fields do
          local text = fields[k]
          if text ~= stored_head then
            local i, a, b, c, d, e, f = unpack(FIRST, text)
            replicas[i], expires_at[i], confirmed[i], granted[i] = a, b, c, d
            in_flight[i], replied_limit[i], incarnations[i], texts[i] = e, f, nil, text
            curve[i] = sub(text, SHARE_STATE_BYTES + 1)
          end
        end
      end

      -- Unpacks the other fields of one share state.
      function read(i)
        if incarnations[i] then return end
        incarnations[i], numbers[i], confirmed_generations[i], granted_generations[i],
          changed_at[i], earlier_requests_end[i], max_duration[i], vote[i] =
          unpack(OTHER, texts[i], OTHER_FROM)
      end

      function read_others()
        read_all()
        for i = 1, count do read(i) end
      end

      function lists()
        return {replicas, incarnations, numbers, confirmed_generations, granted_generations,
          expires_at, changed_at, earlier_requests_end, max_duration, confirmed, granted,
          replied_limit, in_flight, demand, vote, curve}
      end

      function drop_unused()
        local now, expires_at, first = now, expires_at, 1
        while first <= count and (now < expires_at[first] or not is_unused(first)) do
          first = first + 1
        end
        if count < first then return end
        read_others()
        local kept = {}
        for i = first, count do
          if not is_unused(i) then
            kept[#kept + 1] = i
          elseif vote[i] ~= 0 then
            vote_count = vote_count - 1
          end
        end
        for _, list in ipairs(lists()) do
          for k = 1, #kept do list[first + k - 1] = list[kept[k]] end
        end
        count, all_changed = first + #kept - 1, true
      end

      -- Returns the index of the replica's share state, and true if that state exists.
      function find_index()
        local replica, replicas = heartbeat_replica, replicas
        local at = count + 1
        for i = 1, count do
          if replica <= replicas[i] then at = i break end
        end
        while at <= count and replicas[at] == replica do
          read(at)
          if heartbeat_incarnation <= incarnations[at] then
            return at, incarnations[at] == heartbeat_incarnation
          end
          at = at + 1
        end
        return at, false
      end

      -- Returns true if a later incarnation of the replica has a share state.
      function is_superseded(is_known)
        local later = is_known and at + 1 or at
        return later <= count and replicas[later] == heartbeat_replica
      end

      -- Copies the reporting replica's share state into the lists.
      function write()
        read_all()
        replicas[at], incarnations[at] = heartbeat_replica, heartbeat_incarnation
        numbers[at], vote[at], demand[at] = own_number, own_vote, own_demand
        confirmed_generations[at], confirmed[at] = own_confirmed_generation, own_confirmed
        granted_generations[at], granted[at] = own_granted_generation, own_granted
        replied_limit[at], in_flight[at] = own_replied_limit, own_in_flight
        expires_at[at], changed_at[at] = own_expires_at, own_changed_at
        max_duration[at], earlier_requests_end[at] = own_max_duration, own_earlier_requests_end
        curve[at] = own_curve
      end

      function insert()
        read_others()
        for _, list in ipairs(lists()) do
          for i = count, at, -1 do list[i + 1] = list[i] end
        end
        count, all_changed, sums_valid_until = count + 1, true, 0
      end

      function update_limit()
        local claim = grace and has_in_use == 1 and not heartbeat_is_claimed
          and in_use_coordinator_incarnation ~= incarnation
          and in_use_limit * LEVELS_PER_PERMIT or nil
        if fractional_limit < 0 or claim and is_recovered == 0 then
          fractional_limit = claim or config_start * LEVELS_PER_PERMIT
        elseif claim and claim < fractional_limit then
          fractional_limit = claim
        end
        if claim then is_recovered = 1 end
        fractional_limit = within(fractional_limit)
        local is_due = 7 * timing_heartbeat <= 4 * (now - counted_at)
        if not grace and is_due and vote_count ~= 0 then count_votes() end
        limit = (fractional_limit - fractional_limit % LEVELS_PER_PERMIT) / LEVELS_PER_PERMIT
      end

      function count_votes()
        write()
        read_others()
        local votes = {}
        for i = 1, count do
          if vote[i] ~= 0 and is_live(i) then votes[#votes + 1] = vote[i] - 1 end
        end
        local ratio = combine(votes)
        if not ratio then return end
        fractional_limit = scaled(fractional_limit, ratio)
        counted_at, vote_count, own_vote, all_changed = now, 0, 0, true
        for i = 1, count do vote[i] = 0 end
      end

      function is_live(i)
        return now < expires_at[i] and (i == count or replicas[i + 1] ~= replicas[i])
      end

      -- Replaces the demands of all live replicas by their entitlements.
      function entitle()
        if MAX_EACH_ENTITLED < count and 8 * (now - entitled_at) < timing_heartbeat then return end
        write()
        local live, lines = {}, {}
        for class = 0, #config_classes - 1 do lines[class] = {} end
        for i = 1, count do
          if curve[i] ~= '' and is_live(i) then
            live[#live + 1] = i
            add_lines(lines, #live, curve[i])
          end
        end
        for k, share in ipairs(entitlements(lines, #live)) do demand[live[k]] = share end
        own_demand = demand[at]
        entitled_at, sums_valid_until, is_entitled = now, 0, true
      end

      -- Adds the levels and the demands of a curve, in turn, to `lines[class][k]`.
      function add_lines(lines, k, curve)
        local number = #curve / 4
        if not formats[number] then formats[number] = '<' .. rep('I', number) end
        local points, class, line, to = {unpack(formats[number], curve)}, nil, nil, nil
        for p = 1, number, 2 do
          local place = points[p]
          local its = (place - place % LEVELS) / LEVELS
          if its ~= class then
            class, line, to = its, {}, 0
            if lines[class] then lines[class][k] = line end
          end
          line[to + 1], line[to + 2] = place % LEVELS, points[p + 1]
          to = to + 2
        end
      end

      -- crates/kernel/src/coordinator/entitlement.rs
      function entitlements(all_lines, replicas)
        local used, share, all_used = {}, {}, 0
        for k = 1, replicas do used[k], share[k] = 0, 0 end
        for class = 0, #config_classes - 1 do
          local percent = string.byte(config_classes, class + 1)
          local part = floor(limit * percent / 100)
          if part < 1 and 0 < limit then part = 1 end
          local left = part * UNITS_PER_PERMIT - all_used
          local lines = all_lines[class]
          local level = 0 < left and class_level(lines, left)
          for k, line in pairs(lines) do
            local more = level and demand_at(line, level) or 0
            if 0 < more then
              used[k], all_used = used[k] + more, all_used + more
              -- `needed_share`
              local needed = used[k]
              if UNITS_PER_PERMIT < needed then needed = math.ceil(needed * 100 / percent) end
              if share[k] < needed then share[k] = needed end
            end
          end
        end
        -- `whole_permits`
        local sum, permits, half = 0, {}, UNITS_PER_PERMIT / 2
        for k = 1, replicas do
          local before = floor((sum + half) / UNITS_PER_PERMIT)
          sum = sum + share[k]
          permits[k] = floor((sum + half) / UNITS_PER_PERMIT) - before
          if permits[k] < 1 and 0 < share[k] then permits[k] = 1 end
        end
        return permits
      end

      function demand_at(line, level)
        local from_level, from = 0, 0
        for p = 1, #line, 2 do
          local to_level, to = line[p], line[p + 1]
          if level < to_level then
            return from + floor((to - from) * (level - from_level) / (to_level - from_level))
          end
          from_level, from = to_level, to
        end
        return from
      end

      -- Returns the largest level at which the customers of the class get at most `left`.
      function class_level(lines, left)
        local function fits(level)
          local sum = 0
          for _, line in pairs(lines) do sum = sum + demand_at(line, level) end
          return sum <= left
        end
        local fitting, above = 0, LEVELS - 1
        if fits(above) then return above end
        while 1 < above - fitting do
          local middle = fitting + floor((above - fitting) / 2)
          if fits(middle) then fitting = middle else above = middle end
        end
        return fitting
      end

      -- crates/kernel/src/coordinator/grant.rs. Also lists the live share states.
      function sum_up()
        write()
        sums_limit, sums_next_expiry = limit, own_expires_at
        sums_exposure, sums_need, sums_used = 0, 0, 0
        sums_with_demand, sums_short, sums_without_share, sums_expiring = 0, 0, 0, 0
        live_count, live, me = 0, {}, nil
        local valid_until = own_expires_at
        for i = 1, count do
          if is_live(i) then
            live_count = live_count + 1
            live[live_count] = i
            if i == at then
              me = live_count
            else
              put(1, expires_at[i], confirmed[i], granted[i], in_flight[i], replied_limit[i],
                demand[i])
            end
            if expires_at[i] < valid_until then valid_until = expires_at[i] end
          elseif i ~= at then
            -- `put_expired`
            local its_exposure = exposure(i)
            sums_exposure, sums_used = sums_exposure + its_exposure, sums_used + its_exposure
          end
        end
        -- If a share state has expired, the sums are invalid for the next heartbeat, whose
        -- configuration decides how long the share state is kept.
        sums_valid_until = live_count == count and valid_until or 0
      end

      -- crates/kernel/src/coordinator/split.rs. For each live replica: its demand, true if it waits
      -- for a permit, and since when it waits or has one.
      local demands, is_waiting, its_changed_at

      -- Returns the share and the reserved permits.
      function take_turns()
        write()
        read_others()
        demands, is_waiting, its_changed_at = live_demands(), {}, {}
        for i = 1, live_count do
          local its = live and live[i] or i
          is_waiting[i], its_changed_at[i] = granted[its] == 0, changed_at[its]
        end
        local turn_cutoff = now - timing_heartbeat * 4
        if turn_cutoff < 0 then turn_cutoff = 0 end
        local ahead_count, waiting = ahead(turn_cutoff)
        return ahead_count < limit and 1 or 0, waiting
      end

      -- Returns the number of replicas that get a permit before the reporting replica, and how many
      -- of them wait for one.
      function ahead(turn_cutoff)
        local own_class, own_since = priority_class(me, turn_cutoff), its_changed_at[me]
        local ahead_count, waiting = 0, 0
        for i = 1, live_count do
          local class, since = priority_class(i, turn_cutoff), its_changed_at[i]
          if class < own_class
            or class == own_class and (since < own_since or since == own_since and i < me) then
            ahead_count = ahead_count + 1
            if is_waiting[i] then waiting = waiting + 1 end
          end
        end
        return ahead_count, waiting
      end

      function priority_class(i, turn_cutoff)
        if demands[i] == 0 then return 3 end
        if is_waiting[i] then return 1 end
        if turn_cutoff < its_changed_at[i] then return 0 end
        return 2
      end

      -- crates/kernel/src/coordinator/share_state.rs.
      function exposure(i)
        local most, granted, in_flight = confirmed[i], granted[i], in_flight[i]
        if most < granted then most = granted end
        if most < in_flight then most = in_flight end
        return most
      end

      function is_unused(i)
        if now < expires_at[i] then return false end
        if exposure(i) == 0 then return true end
        read(i)
        -- `unused_from`
        local longest = max_duration[i]
        if longest < timing_max_duration then longest = timing_max_duration end
        return earlier_requests_end[i] <= now and expires_at[i] + longest <= now
      end

      -- crates/kernel/src/coordinator/aggregate.rs.
      function within(level)
        if config_max * LEVELS_PER_PERMIT < level then level = config_max * LEVELS_PER_PERMIT end
        if level < config_min * LEVELS_PER_PERMIT then level = config_min * LEVELS_PER_PERMIT end
        return level
      end

      -- A ratio of 65,536 means 1. One vote count at most doubles a limit.
      function scaled(level, ratio)
        if 131072 < ratio then ratio = 131072 end
        return within(floor(level * ratio / 65536))
      end

      function combine(votes)
        table.sort(votes)
        if config_aggregate == 1 or #votes == 0 then return votes[1] end
        return votes[floor((#votes - 1) / 2) + 1]
      end

      -- Deletes and rewrites the hash of the limit, so that no removed share state stays in it.
      function write_all(head)
        read_others()
        call('DEL', key)
        local demands = pack('<' .. rep('I', count), spread(demand, 1, count))
        local parts, to = {'head', head .. demands}, 2
        for i = 1, count do
          parts[to + 1] = pack(NAME, replicas[i], incarnations[i])
          parts[to + 2] = pack(SHARE_STATE, i, replicas[i], expires_at[i], confirmed[i], granted[i],
            in_flight[i], replied_limit[i], incarnations[i], numbers[i], confirmed_generations[i],
            granted_generations[i], changed_at[i], earlier_requests_end[i], max_duration[i],
            vote[i]) .. curve[i]
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

    local is_known = true
    if must_read_all then
      read_all()
      drop_unused()
      at, is_known = find_index()
    end

    -- `refuse`
    if must_read_all and is_superseded(is_known) then
      code = SUPERSEDED
    elseif has_in_use == 1 and not heartbeat_is_claimed
      and in_use_coordinator_incarnation == incarnation and generation < in_use_generation then
      code = STATE_LOST
    elseif is_known and heartbeat_number <= own_number then
      code = STALE
    elseif not is_known and MAX_SHARE_STATES <= count then
      code = TOO_MANY_REPLICAS
    else

      -- `confirmed_grant`
      local confirmed_share, confirmed_generation = 0, 0
      if has_in_use == 1 and heartbeat_is_leaving == 0 then
        if in_use_coordinator_incarnation ~= incarnation then
          if grace and not heartbeat_is_claimed then confirmed_share = in_use_share end
        elseif is_known and own_confirmed_generation == in_use_generation then
          confirmed_share, confirmed_generation = own_confirmed, own_confirmed_generation
        elseif is_known and own_granted_generation == in_use_generation then
          confirmed_share, confirmed_generation = own_granted, own_granted_generation
        end
      end

      -- `valid_vote`
      local valid_vote = 0
      if has_in_use == 1 and in_use_limit == limit and 0 < heartbeat_demand then
        valid_vote = heartbeat_vote
        if heartbeat_vote == 0 and is_known then valid_vote = own_vote end
      end

      -- `store_heartbeat`
      if heartbeat_is_claimed then
        local confirmable = 0
        if is_known then
          confirmable = own_confirmed
          if confirmable < own_granted then confirmable = own_granted end
          if confirmable < own_in_flight then confirmable = own_in_flight end
        end
        if confirmable < heartbeat_in_flight then heartbeat_in_flight = confirmable end
      end
      if not is_known then
        insert()
        own_granted, own_granted_generation = confirmed_share, confirmed_generation
        own_replied_limit, own_vote, own_expires_at, own_changed_at = 0, 0, now, now
        own_earlier_requests_end, own_max_duration = now, timing_max_duration
      elseif now < sums_valid_until then
        put(-1, own_expires_at, own_confirmed, own_granted, own_in_flight, own_replied_limit,
          own_demand)
      end
      vote_count = vote_count + (valid_vote == 0 and 0 or 1) - (own_vote == 0 and 0 or 1)
      own_number, own_confirmed, own_vote = heartbeat_number, confirmed_share, valid_vote
      own_confirmed_generation = confirmed_generation
      own_in_flight, own_curve = heartbeat_in_flight, heartbeat_curve
      -- With a curve, the demand is the entitlement, see `entitle`.
      if own_curve == '' or not is_known then own_demand = heartbeat_demand end
      -- `previous_requests_end`
      local last = now
      if timing_max_duration < own_max_duration and now < own_expires_at then
        last = own_expires_at
      end
      if own_earlier_requests_end < last + own_max_duration then
        own_earlier_requests_end = last + own_max_duration
      end
      own_max_duration = timing_max_duration
      if heartbeat_is_leaving == 1 then
        own_granted, own_granted_generation, own_expires_at = 0, 0, now
      elseif own_expires_at < now + timing_share_lifetime then
        own_expires_at = now + timing_share_lifetime
      end
      if own_expires_at < sums_valid_until then sums_valid_until = own_expires_at end

      -- `leave`
      if heartbeat_is_leaving == 1 then
        code = LEFT
        write()
        drop_unused()
      else
        if not is_plain then update_limit() end
        if own_curve ~= '' then entitle() end

        -- `grant_share`, crates/kernel/src/coordinator/grant.rs.
        if sums_valid_until <= now or limit ~= sums_limit then
          sum_up()
        else
          live_count, me, live = count, at, nil
        end
        own_need = 0
        if me then own_need = own_demand < limit and own_demand or limit end
        total_need, with_demand, idle = sums_need + own_need, sums_with_demand, 0
        if 0 < own_need then with_demand = with_demand + 1 end

        -- `split_rule`, crates/kernel/src/coordinator/split.rs.
        local split_rule = TURNS
        if live_count <= limit then
          split_rule = ALL
        elseif 0 < with_demand and with_demand <= limit then
          split_rule = WITH_DEMAND
        end

        -- `any_short`
        local any_short = 0 < sums_short or split_rule == ALL and 0 < sums_without_share

        -- `with_idle`
        if split_rule == ALL and with_demand < live_count then
          idle = live_count - with_demand
          total_need, with_demand = total_need + idle, live_count
          if own_need < 1 then own_need = 1 end
        end

        -- `fair_share`
        local reserved = 0
        if not me then
          fair_share = 0
        elseif split_rule == TURNS then
          fair_share, reserved = take_turns()
        elseif total_need <= limit and with_demand == live_count then
          fair_share = own_need + divide_evenly(limit - total_need, live_count, me - 1)
        elseif own_need == 0 then
          fair_share = 0
        else
          if not divide_by_need then
            local fill

            function divide_by_need()
              -- Replicas that need more than the level share the permits left over. If no replica
              -- needs more, all replicas of the split share them.
              local demands, share, level = live_demands(), own_need, 0
              local receivers, rest = with_demand, limit - total_need
              if limit < total_need then
                receivers, rest = fill(demands)
                level = sums_fill_level
                if share <= level then return share end
                share = level
              end
              local before = 0
              for i = 1, me - 1 do
                if level < demands[i] then before = before + 1 end
              end
              return share + divide_evenly(rest, receivers, before)
            end

            -- Sets `sums_fill_level` to the fill level: the largest number of permits such that
            -- each replica can get its need up to this number. Returns the number of needs above
            -- the level, and the permits left over.
            function fill(demands)
              local live_count, spare = live_count, limit - idle
              local level, is_first = sums_fill_level, true
              while true do
                local rest, short = spare, 0
                for i = 1, live_count do
                  local need = demands[i]
                  if level < need then short = short + 1 else rest = rest - need end
                end
                local next = 0 < short and 0 < rest and floor(rest / short) or 0
                -- The level can only go down here if the sums do not belong to these demands. The
                -- search must still end.
                if next == level or not is_first and next < level then
                  sums_fill_level = level
                  return short, rest - level * short
                end
                level, is_first = next, false
              end
            end
          end
          fair_share = divide_by_need()
        end

        -- `grantable_share`, crates/kernel/src/coordinator/grant.rs.
        local free, share = limit - sums_exposure, fair_share
        if free < own_confirmed then
          local room_after_decrease = limit - sums_used
          if room_after_decrease < 0 then room_after_decrease = 0 end
          if own_confirmed < share then share = own_confirmed end
          if room_after_decrease < share then share = room_after_decrease end
        else
          if share < own_confirmed and (grace or not any_short) then share = own_confirmed end
          local room = own_confirmed
          if not grace and room < free - reserved then room = free - reserved end
          if room < share then share = room end
        end

        -- `store_grant`
        own_granted_generation = own_confirmed_generation
        if own_confirmed ~= share or own_granted_generation == 0 then
          own_granted_generation = generation + 1
        end
        if generation < own_granted_generation then generation = own_granted_generation end
        if (share == 0) ~= (own_granted == 0) then own_changed_at = now end
        own_granted, own_replied_limit, code = share, limit, GRANTED
        put(1, own_expires_at, own_confirmed, own_granted, own_in_flight, limit, own_demand)
        -- `extend`
        if sums_expiring == 0 and 0 < sums_valid_until then
          if sums_valid_until < sums_next_expiry then sums_valid_until = sums_next_expiry end
          sums_next_expiry, sums_expiring = own_expires_at, count - 1
        end
        if all_changed then write() end
      end
    end

    local is_stored = code == GRANTED or code == LEFT
    local in_use = timing_share_lifetime + timing_max_duration
    -- Requests that the replica allowed under an earlier configuration may last longer.
    if is_stored and in_use < own_earlier_requests_end - now then
      in_use = own_earlier_requests_end - now
    end
    local least_kept = redis_time + in_use + (config_min < config_max and ADAPTIVE_KEPT or KEPT)
    local renews = kept_until < least_kept
    if count == 0 and config_min == config_max then
      -- The last replica left. There may be as many short-lived limits as descriptor values, so
      -- this state expires early.
      kept_until, renews = redis_time + KEPT, true
    elseif renews then
      kept_until = least_kept + SLACK
    end
    local head = pack(HEAD, count, incarnation, latest_time, generation, fractional_limit,
      is_recovered, counted_at, vote_count, entitled_at, kept_until, sums_valid_until,
      sums_next_expiry, sums_limit, sums_exposure, sums_need, sums_used, sums_with_demand, sums_short,
      sums_without_share, sums_expiring, sums_fill_level)
    if all_changed then
      write_all(head)
    elseif is_stored then
      if is_entitled then
        head = head .. pack(formats[count], spread(demand, 1, count))
      else
        local to = HEAD_BYTES + 4 * at
        head = head .. sub(stored_head, HEAD_BYTES + 1, to - 4) .. pack('<I', own_demand)
          .. sub(stored_head, to + 1)
      end
      call('HSET', key, 'head', head, name, pack(SHARE_STATE, at, heartbeat_replica,
        own_expires_at, own_confirmed, own_granted, own_in_flight, own_replied_limit,
        heartbeat_incarnation, own_number, own_confirmed_generation, own_granted_generation,
        own_changed_at, own_earlier_requests_end, own_max_duration, own_vote) .. own_curve)
    else
      call('HSET', key, 'head', head .. sub(stored_head, HEAD_BYTES + 1))
    end
    if renews or all_changed then expire(key, kept_until) end
  until true

  if code == STATE_LOST then
    -- The store lost the state of the limit, but not the fleet table.
    begin_incarnation(store_time)
    incarnation_changed = true
  end
  reply[length + 1] = code
  if code == GRANTED then
    reply[length + 2], reply[length + 3] = incarnation, own_granted_generation
    reply[length + 4], reply[length + 5], reply[length + 6] = own_granted, fair_share, limit
    reply[length + 7], reply[length + 8] = live_count, grace and 1 or 0
  else
    for field = 2, 8 do reply[length + field] = 0 end
  end
  length = length + 8
end
if incarnation_changed then
  local state = pack(INCARNATION, current_incarnation, current_started_at, current_is_settled,
    complete_since)
  call('HSET', KEYS[1], 'incarnation', state)
end
-- The fleet table expires after thirty days.
expire(KEYS[1], redis_time + 2592000000000)
reply[1] = current_incarnation
return pack('<' .. rep('d', length), spread(reply, 1, length))
