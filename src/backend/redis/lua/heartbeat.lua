-- Hears one round of one replica's heartbeats: kernel/coordinator, line for line, in microseconds.
--
-- KEYS[1]  a hash: 'store' the name of the store it began in, 'life' the coordinator's life, and a line for
--          each life of each replica
-- KEYS[n]  from 2 on: the state of one ceiling each
-- ARGV[1]  the instant in microseconds since the Unix epoch; '' takes the store's own
-- ARGV[2]  the name of the store; '' of who may not know it
-- ARGV[3]  packed: the replica and its life, the life of the coordinator that all it holds is of (-1 none),
--          microseconds for which something of it may be in use, 1 when it leaves
-- ARGV[n]  from 4 on, packed: a law and a heartbeat for each ceiling, see SAID; a vote is one more than
--          its ratio, and 0 is none
-- Reply: the life; the instant in microseconds; then for each ceiling eight integers: a code, and beside 0 (granted) the life, the generation,
--   the share, the fair share, the ceiling, the members, and 1 while recovering, else zeros. Codes: 1 left,
--   2 late, 3 superseded, 4 lost, 5 full, 6 not understood (something else lives under the key).
--
-- Exact: all numbers are integers below 2^53; a level is below 2^34 and a ratio at most 2^17, so their
-- product is below 2^52. A state expires ten minutes after the last seat can be in use, so that a ceiling
-- that was inferred outlives a pause; the life is kept for thirty days after the last heartbeat.
-- A state is the HEAD, then what every heartbeat reads of all seats, each as a run of numbers (M, U, HS, GS, F, W), then the
-- REST of each seat, which is read of one seat alone unless a seat comes or goes, votes are counted, or the ceiling fell.
-- Cost: O(seats) for each ceiling; O(lines) while the life is in doubt, and when a replica is new.
-- Commands: TIME, HGET, HSET, HDEL, HGETALL, GET, SET (PXAT: Redis 6.2), PEXPIREAT.

local KEYS, ARGV = KEYS, ARGV
local call = redis.call
local spread, pack, unpack = unpack, struct.pack, struct.unpack
local floor, format, sub = math.floor, string.format, string.sub
local insert, sort, concat, rep = table.insert, table.sort, table.concat, string.rep

local GRANTED, LEFT, LATE, SUPERSEDED, LOST, FULL, NOT_UNDERSTOOD = 0, 1, 2, 3, 4, 5, 6
local MOST_SEATS = 4096
local FINE, ONE, TWICE = 1024, 65536, 131072
local EQUAL, DEMAND = 0, 1
local ALL, HUNGRY, TURNS = 0, 1, 2
local SAID = '<dddI4I4I4BBdddBddI4I4I4I4I4B'
local HEAD, HEAD_BYTES = '<ddddddd', 56
local RUNS_BYTES, REST, REST_BYTES = 32, '<dddddI4I4', 48
local LIFE, LINE = '<dddd', '<ddd'
local KEPT_MILLIS, LIFE_KEPT_MILLIS = 600000, 2592000000

local time = call('TIME')
local told = time[1] * 1000000 + time[2]
local real_millis = floor(told / 1000) + 1
if ARGV[1] ~= '' then
  told = tonumber(ARGV[1])
  -- The clock that expires keys is not the one given, and must not end what that one has not ended.
  real_millis = real_millis + 86400000
end

local function max(a, b) if a < b then return b end return a end
local function min(a, b) if b < a then return b end return a end
local function less(a, b) if b < a then return a - b end return 0 end

-- kernel/coordinator/life.rs.
local born_as, born, settled, since_when

local function begin()
  born_as, born, settled = max(born_as and born_as + 1 or 0, told), told, 0
end

local function settle(longest, lines)
  local complete = since_when + longest <= told
  for i = 1, #lines do
    complete = complete and lines[i] == born_as
  end
  if complete then settled = 1 end
end

local life_changed = true
local known_life = call('HGET', KEYS[1], 'life')
if known_life then
  born_as, born, settled, since_when = unpack(LIFE, known_life)
  life_changed = false
else
  since_when = told
end
if not known_life or (ARGV[2] ~= '' and call('HGET', KEYS[1], 'store') ~= ARGV[2]) then
  begin()
  call('HSET', KEYS[1], 'store', ARGV[2])
  life_changed = true
end

-- backend/memory/coordinators.rs, `register`: the replica's line, before anything it says is heard.
local replica, replica_life, under, replica_longest, replica_leaves = unpack('<ddddB', ARGV[3])

local function register()
  local name = pack('<dd', replica, replica_life)
  local is_new = call('HSET', KEYS[1], name, pack(LINE, told, replica_longest, under)) == 1
  if replica_leaves == 1 then call('HDEL', KEYS[1], name) end
  if not is_new and settled == 1 then return end
  local all, lines, longest = call('HGETALL', KEYS[1]), {}, nil
  for i = 1, #all, 2 do
    if #all[i] == 16 then
      local heard, its_longest, its_under = unpack(LINE, all[i + 1])
      if heard + its_longest <= told then
        call('HDEL', KEYS[1], all[i])
      else
        lines[#lines + 1] = its_under
        longest = max(longest or 0, its_longest)
      end
    end
  end
  if settled == 0 then
    settle(longest or replica_longest, lines)
    life_changed = life_changed or settled == 1
  end
end

register()

-- One ceiling: its law, the heartbeat, and its state, a list for each field of a seat.
local heartbeat, term, max_duration, least, start, most, aggregate, split
local member, life, number, holds, h_coordinator, h_generation, h_share, h_ceiling
local in_flight, wanted, vote, leaves
local now, incarnation, latest, generation, level, recovered, counted, votes
local n, M, L, N, HG, GG, U, S, HS, GS, T, F, W, V = 0, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}
local state, said_vote, all_changed, grace
-- The latest end of a seat's term, once it is known.
local last_end

-- What a loop reads of each seat is made the function's own first: a name that functions share is looked up at each use.

-- The rest of one seat, and of all: of one it costs little.
local function load(i)
  if L[i] then return end
  L[i], N[i], HG[i], GG[i], S[i], T[i], V[i] =
    unpack(REST, state, HEAD_BYTES + n * RUNS_BYTES + (i - 1) * REST_BYTES + 1)
end

local function load_all()
  for i = 1, n do load(i) end
end

-- kernel/coordinator/life.rs, `is_in_grace`.
local function is_in_grace()
  return settled == 0 and now < born + term + max_duration
end

-- kernel/coordinator/seat.rs.
local function exposure(i)
  return max(max(HS[i], GS[i]), F[i])
end

local function is_over(i)
  if now < U[i] then return false end
  return exposure(i) == 0 or U[i] + max_duration <= now
end

local function drop_seats_that_are_over()
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
      M[kept], L[kept], N[kept], HG[kept], GG[kept], U[kept], S[kept] =
        M[i], L[i], N[i], HG[i], GG[i], U[i], S[i]
      HS[kept], GS[kept], T[kept], F[kept], W[kept], V[kept] = HS[i], GS[i], T[i], F[i], W[i], V[i]
    end
  end
  n, all_changed = kept, true
end

local function ceiling()
  if level < 0 then return 0 end
  return floor(level / FINE)
end

-- kernel/coordinator/aggregate.rs.
local function within(a)
  return max(min(a, most * FINE), least * FINE)
end

local function scaled(a, ratio)
  return within(floor(a * min(ratio, TWICE) / ONE))
end

local function fold(votes)
  sort(votes)
  if aggregate == 0 then return votes[floor(max(#votes - 1, 0) / 2) + 1] end
  return votes[1]
end

-- kernel/coordinator/coordinator.rs, `place`: a code, or where the seat is or belongs and whether it is there.
local function place()
  local member, M, at, found = member, M, n + 1, false
  for i = 1, n do
    if member <= M[i] then at = i break end
  end
  while at <= n and M[at] == member do
    load(at)
    if life < L[at] then return SUPERSEDED end
    found = L[at] == life
    if found then break end
    at = at + 1
  end
  if found and M[at + 1] == member and at < n then return SUPERSEDED end
  if holds == 1 and h_coordinator == incarnation and generation < h_generation then return LOST end
  if found and number <= N[at] then return LATE end
  if not found and MOST_SEATS <= n then return FULL end
  return nil, at, found
end

local function held(at, found)
  if holds == 0 then return 0, 0 end
  if h_coordinator == incarnation then
    if found and HG[at] == h_generation then return HG[at], HS[at] end
    if found and GG[at] == h_generation then return GG[at], GS[at] end
    return 0, 0
  end
  return 0, grace and h_share or 0
end

local function vote_that_counts(at, found)
  local about_this = holds == 1 and h_ceiling == ceiling()
  local its = vote
  if its == 0 and found then its = V[at] end
  return about_this and 0 < wanted and its or 0
end

local function hear(at, found)
  local held_generation, held_share = 0, 0
  if leaves == 0 then held_generation, held_share = held(at, found) end
  said_vote = vote_that_counts(at, found)
  if not found then
    load_all()
    for _, run in ipairs({M, U, HS, GS, F, W}) do
      for i = #run, n + 1, -1 do run[i] = nil end
    end
    insert(M, at, member); insert(L, at, life); insert(N, at, number); insert(HG, at, 0)
    insert(GG, at, held_generation); insert(U, at, 0); insert(S, at, now); insert(HS, at, 0)
    insert(GS, at, held_share); insert(T, at, 0); insert(F, at, 0); insert(W, at, 0); insert(V, at, 0)
    n, all_changed = n + 1, true
  end
  if leaves == 1 then GG[at], GS[at] = held_generation, held_share end
  votes = votes + (said_vote == 0 and 0 or 1) - (V[at] == 0 and 0 or 1)
  N[at], HG[at], HS[at], F[at], W[at], V[at] = number, held_generation, held_share, in_flight, wanted, said_vote
  U[at] = leaves == 1 and now or now + term
end

local function is_live(i)
  return now < U[i] and (i == n or M[i + 1] ~= M[i])
end

local function count()
  if votes == 0 then return end
  load_all()
  local of_the_living = {}
  for i = 1, n do
    if V[i] ~= 0 and is_live(i) then of_the_living[#of_the_living + 1] = V[i] - 1 end
  end
  local ratio = fold(of_the_living)
  if not ratio or level < 0 then return end
  level, counted, votes, all_changed = scaled(level, ratio), now, 0, true
  for i = 1, n do V[i] = 0 end
end

local function move_ceiling()
  local claim = grace and holds == 1 and h_coordinator ~= incarnation and h_ceiling * FINE or nil
  if level < 0 or claim and recovered == 0 then
    level = claim or start * FINE
  elseif claim then
    level = min(level, claim)
  end
  if claim then recovered = 1 end
  level = within(level)
  if not grace and counted + heartbeat + heartbeat <= now then count() end
end

-- kernel/coordinator/split.rs. What the split knows of the living, in the fleet's order, and of the one that speaks.
local living, live, need, waits, since
local me, total_need, hungry

local function rule(whole)
  if living <= whole then return ALL end
  if split == DEMAND and 0 < hungry and hungry <= whole then return HUNGRY end
  return TURNS
end

local function class(i, turned)
  if split == DEMAND and need[i] == 0 then return 3 end
  if waits[i] then return 1 end
  if turned < since[i] then return 0 end
  return 2
end

-- How many are before member `me` in the line for a permit, and how many of them wait.
local function ahead(turned)
  local mine, count_ahead, waiting = class(me, turned), 0, 0
  for i = 1, living do
    local its = class(i, turned)
    if its < mine or its == mine and (since[i] < since[me] or since[i] == since[me] and i < me) then
      count_ahead = count_ahead + 1
      if waits[i] then waiting = waiting + 1 end
    end
  end
  return count_ahead, waiting
end

local function even(total, among, place_from_0)
  if among == 0 then return 0 end
  local rest = total % among
  return (total - rest) / among + (place_from_0 < rest and 1 or 0)
end

-- The highest level to which every need can be filled, rounded down.
local function fills_to(whole)
  local need, living = need, living
  local filled = hungry == 0 and 0 or floor(whole / hungry)
  if filled == 0 then return 0 end
  while true do
    local rest, short = whole, 0
    for i = 1, living do
      local its = need[i]
      if filled < its then short = short + 1 else rest = rest - its end
    end
    if short == 0 then return filled end
    local raised = rest < 0 and 0 or floor(rest / short)
    if raised <= filled then return filled end
    filled = raised
  end
end

-- The needs are at least the floor already.
local function fill(whole)
  local need, living, me = need, living, me
  local mine = need[me]
  if mine == 0 then return 0 end
  local among, before = 0, 0
  if total_need <= whole then
    -- Nobody is short.
    if hungry == living then return mine + even(whole - total_need, living, me - 1) end
    for i = 1, living do
      if 0 < need[i] then
        among = among + 1
        if i < me then before = before + 1 end
      end
    end
    return mine + even(whole - total_need, among, before)
  end
  local filled = fills_to(whole)
  local below = 0
  for i = 1, living do
    local its = need[i]
    if filled < its then
      below, among = below + filled, among + 1
      if i < me then before = before + 1 end
    else
      below = below + its
    end
  end
  if mine <= filled then return mine end
  return filled + even(less(whole, below), among, before)
end

local function part(whole, turned, by)
  if by == TURNS then return (ahead(turned)) < whole and 1 or 0 end
  if split == EQUAL then return even(whole, living, me - 1) end
  return fill(whole)
end

local function owed(turned, by)
  if by ~= TURNS then return 0 end
  local _, waiting = ahead(turned)
  return waiting
end

-- kernel/coordinator/coordinator.rs, `fair`.
local function fair_part(whole, by)
  if not me then return 0, 0 end
  if by == TURNS then
    load_all()
    waits, since = {}, {}
    for i = 1, living do
      local its = live[i]
      waits[i], since[i] = GS[its] == 0, S[its]
    end
  end
  local turned = less(now, heartbeat * 4)
  return part(whole, turned, by), owed(turned, by)
end

local function left_by_the_lowered(at, whole)
  load_all()
  local taken, place_in_live = 0, 1
  for i = 1, n do
    local alive = live[place_in_live] == i
    if alive then place_in_live = place_in_live + 1 end
    if i ~= at then
      if not alive then
        taken = taken + exposure(i)
      elseif T[i] <= whole then
        taken = taken + GS[i]
      end
    end
  end
  return less(whole, taken)
end

local function share(at, whole, fair, owed_first, others, any_short)
  local free, own = less(whole, others), HS[at]
  if free < own then return min(min(fair, own), left_by_the_lowered(at, whole)) end
  local keeps = grace or split == DEMAND and not any_short
  local goal = keeps and max(fair, own) or fair
  return min(goal, grace and own or max(own, less(free, owed_first)))
end

local function grant(at)
  local now, n, M, U, HS, GS, F, W = now, n, M, U, HS, GS, F, W
  local whole, others, ends, alive, want, wants = ceiling(), 0, 0, 0, 0, 0
  local seats, needs, is_short, each_has_one = {}, {}, false, true
  me = nil
  for i = 1, n do
    local its_end, granted, its = U[i], GS[i], nil
    if ends < its_end then ends = its_end end
    if now < its_end and (i == n or M[i + 1] ~= M[i]) then
      its, alive = W[i], alive + 1
      if whole < its then its = whole end
      if 0 < its then want, wants = want + 1, wants + its end
      seats[alive], needs[alive] = i, its
    end
    if i == at then
      me = its and alive
    else
      if its then
        if granted < its then is_short = true end
        if granted == 0 then each_has_one = false end
      end
      local most_of_it = HS[i]
      if most_of_it < granted then most_of_it = granted end
      its = F[i]
      if most_of_it < its then most_of_it = its end
      others = others + most_of_it
    end
  end
  living, live, need, hungry, total_need, last_end = alive, seats, needs, want, wants, ends
  local by = rule(whole)
  local any_short = is_short or by == ALL and not each_has_one
  if by == ALL and want < alive then
    -- Each needs one at least.
    for i = 1, alive do
      if needs[i] == 0 then needs[i] = 1 end
    end
    hungry, total_need = alive, wants + alive - want
  end
  local fair, owed_first = fair_part(whole, by)
  local granted = share(at, whole, fair, owed_first, others, any_short)
  local same = HS[at] == granted and HG[at] ~= 0
  local its_generation = same and HG[at] or generation + 1
  generation = max(generation, its_generation)
  if (granted == 0) ~= (GS[at] == 0) then S[at] = now end
  votes = votes + (said_vote == 0 and 0 or 1) - (V[at] == 0 and 0 or 1)
  GG[at], GS[at], T[at], V[at] = its_generation, granted, whole, said_vote
  return its_generation, granted, fair, whole, living
end

-- The formats of so many doubles, and of so many shares.
local doubles, shares = {}, {}

local function formats(of)
  if not doubles[of] then doubles[of], shares[of] = '<' .. rep('d', of), '<' .. rep('I4', of) end
  return doubles[of], shares[of]
end

local function read(text)
  -- What is not loaded of the others is not read.
  L = {}
  if not text then
    M, U, HS, GS, F, W = {}, {}, {}, {}, {}, {}
    n, incarnation = 0, -1
    return true
  end
  n = (#text - HEAD_BYTES) / (RUNS_BYTES + REST_BYTES)
  if n < 0 or n ~= floor(n) then return false end
  state = text
  incarnation, latest, generation, level, recovered, counted, votes = unpack(HEAD, text)
  local double, share, from = formats(n)
  -- The runs have one number too many at their end: where the next one begins.
  M, from = {unpack(double, text, HEAD_BYTES + 1)}, HEAD_BYTES + 1 + 8 * n
  U, from = {unpack(double, text, from)}, from + 8 * n
  HS, from = {unpack(share, text, from)}, from + 4 * n
  GS, from = {unpack(share, text, from)}, from + 4 * n
  F, from = {unpack(share, text, from)}, from + 4 * n
  W = {unpack(share, text, from)}
  return true
end

local function rest(i)
  return pack(REST, L[i], N[i], HG[i], GG[i], S[i], T[i], V[i])
end

local function whole_state()
  load_all()
  local double, share = formats(n)
  local parts = {pack(HEAD, incarnation, latest, generation, level, recovered, counted, votes)}
  for _, run in ipairs({M, U}) do parts[#parts + 1] = pack(double, spread(run, 1, n)) end
  for _, run in ipairs({HS, GS, F, W}) do parts[#parts + 1] = pack(share, spread(run, 1, n)) end
  for i = 1, n do parts[#parts + 1] = rest(i) end
  return concat(parts)
end

-- What one heartbeat changes of a state: the head, and one seat's numbers where they stand.
local function changed_state(text, at)
  local head = pack(HEAD, incarnation, latest, generation, level, recovered, counted, votes)
  if not at then return head .. sub(text, HEAD_BYTES + 1) end
  local u = HEAD_BYTES + 8 * n + 8 * (at - 1)
  local hs = HEAD_BYTES + 16 * n + 4 * (at - 1)
  local gs, f, w = hs + 4 * n, hs + 8 * n, hs + 12 * n
  local last = HEAD_BYTES + n * RUNS_BYTES + (at - 1) * REST_BYTES
  return concat({
    head, sub(text, HEAD_BYTES + 1, u), pack('<d', U[at]), sub(text, u + 9, hs), pack('<I4', HS[at]),
    sub(text, hs + 5, gs), pack('<I4', GS[at]), sub(text, gs + 5, f), pack('<I4', F[at]),
    sub(text, f + 5, w), pack('<I4', W[at]), sub(text, w + 5, last), rest(at), sub(text, last + REST_BYTES + 1),
  })
end

local function write(key, text, at)
  local ends = last_end or 0
  for i = 1, last_end and 0 or n do ends = max(ends, U[i]) end
  local rests = max(latest, 0 < n and ends + max_duration or 0)
  local until_millis = real_millis + floor((rests - now) / 1000) + 1 + KEPT_MILLIS
  local changed = all_changed and whole_state() or changed_state(text, at)
  call('SET', key, changed, 'PXAT', format('%.0f', until_millis))
end

-- kernel/coordinator/coordinator.rs.
local function on_heartbeat()
  if incarnation ~= born_as then
    incarnation, latest, generation, level, recovered, counted, votes = born_as, 0, 0, -1, 0, told, 0
    n, all_changed = 0, true
  end
  latest = max(latest, told)
  now, last_end = latest, nil
  drop_seats_that_are_over()
  local refused, at, found = place()
  if refused then return refused end
  grace = is_in_grace()
  hear(at, found)
  if leaves == 1 then
    drop_seats_that_are_over()
    return LEFT, at
  end
  move_ceiling()
  return GRANTED, at, grant(at)
end

local reply = {0, told}
for i = 2, #KEYS do
  heartbeat, term, max_duration, least, start, most, aggregate, split, member, life, number, holds,
    h_coordinator, h_generation, h_share, h_ceiling, in_flight, wanted, vote, leaves = unpack(SAID, ARGV[i + 2])
  local text = call('GET', KEYS[i])
  local code, at, its_generation, granted, fair, whole, members = NOT_UNDERSTOOD
  if read(text) then
    all_changed = not text
    code, at, its_generation, granted, fair, whole, members = on_heartbeat()
    write(KEYS[i], text, at)
  end
  if code == LOST then
    begin()
    life_changed = true
  end
  local to = #reply
  reply[to + 1], reply[to + 2], reply[to + 3], reply[to + 4] = code, 0, its_generation or 0, granted or 0
  reply[to + 5], reply[to + 6], reply[to + 7], reply[to + 8] = fair or 0, whole or 0, members or 0, 0
  if code == GRANTED then
    reply[to + 2], reply[to + 8] = incarnation, grace and 1 or 0
  end
end
if life_changed then
  call('HSET', KEYS[1], 'life', pack(LIFE, born_as, born, settled, since_when))
end
call('PEXPIREAT', KEYS[1], format('%.0f', real_millis + LIFE_KEPT_MILLIS))
reply[1] = born_as
return reply
