-- Hears one round of one replica's heartbeats: kernel/coordinator, line for line, in microseconds; but what the
-- kernel adds up over all seats at each heartbeat is kept as sums, see `put`.
--
-- KEYS[1]  a hash: 'store' the name of the store it began in, 'life' the coordinator's life, and a line for
--          each life of each replica
-- KEYS[n]  from 2 on: the state of one ceiling each, a hash: 'head', the HEAD and what each seat wants; and for each
--          seat, by its member and life, a SEAT
-- ARGV[1]  the instant in microseconds since the Unix epoch; '' takes the store's own
-- ARGV[2]  the name of the store; '' of who may not know it
-- ARGV[3]  packed: the replica and its life, the life of the coordinator that all it holds is of (-1 none),
--          microseconds for which something of it may be in use, or of another that nobody remembers, 1 when it leaves
-- ARGV[n]  from 4 on, packed: a law and a heartbeat for each ceiling, see SAID; a vote is one more than
--          its ratio, and 0 is none
-- Reply: the life; the instant in microseconds; then for each ceiling eight integers: a code, and beside 0 (granted) the life, the generation,
--   the share, the fair share, the ceiling, the members, and 1 while recovering, else zeros. Codes: 1 left,
--   2 late, 3 superseded, 4 lost, 5 full, 6 not understood (something else lives under the key).
--
-- Exact: all numbers are integers below 2^53; a level is below 2^34 and a ratio at most 2^17, so their
-- product is below 2^52. A state expires ten to eleven minutes after the seat that spoke last can be in use, so that a ceiling
-- that was inferred outlives a pause; the life is kept for thirty days after the last heartbeat.
-- A state that is of another layout, such as the one string that a ceiling's was before, is not understood and stays as it is.
-- Cost: O(1) for each ceiling; O(seats), of one number each, where not all can have what they want; all seats are read where one
-- comes, leaves or is not live any more, where the ceiling moved, votes are counted or turns are taken; O(lines) while the life
-- is in doubt, and when a replica is new.
-- Commands: TIME, HGET, HSET, HDEL, HGETALL, HMGET, HVALS, HLEN, DEL, PEXPIREAT.

-- What many of the functions below share. They are made anew at every call, and each looks for what it shares with the text that
-- it stands in among all that is shared there, one after the other. What the function around them shares with its own text is only
-- copied: that is why they stand in one, which may share sixty.
local call, floor, pack, unpack = redis.call, math.floor, struct.pack, struct.unpack
local function max(a, b) if a < b then return b end return a end
local function min(a, b) if b < a then return b end return a end
local told, born_as, settled
-- One ceiling: its law, the heartbeat, and its state, a list for each field of a seat.
local term, max_duration, split, holds
local now, incarnation, latest, generation, level, recovered, counted, votes
local n, M, L, N, HG, GG, U, S, HS, GS, T, F, W, V = 0, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}
-- Its key, the head as it was read, until when it is kept; the seat that speaks as it was read, its place.
local key, state, kept, own, mine
-- What was read: the wants of all, and all seats. Whether all are to be written; whether others may hold what is not known yet.
local has_wants, has_all = false, false
local all_changed, grace

-- What is known of all seats without reading them, as long as all are live: until the instant `sums_hold_until` (0 where one is
-- not), while the ceiling is `sum_ceiling`. What each adds to them, `put` says; from `hear` to `grant` the one that speaks is out.
local sums_hold_until, sum_ceiling, sum_exposure, sum_need, sum_taken, count_hungry, count_short, count_empty
-- At most how many terms end before the instant `next_end`. Once it is none the sums hold until then, so that where all speak in
-- time nobody has to look at all for it.
local next_end, count_ending

-- kernel/coordinator/split.rs. What the split knows of the living, in the fleet's order, and of the one that speaks. `live` says
-- which seats they are, and is nil where they are all.
local living, live, hungry, me

-- To the end of the file.
local function round()

local KEYS, ARGV = KEYS, ARGV
local try, spread = redis.pcall, _G.unpack
local format, sub, sort, rep = string.format, string.sub, table.sort, string.rep

local GRANTED, LEFT, LATE, SUPERSEDED, LOST, FULL, NOT_UNDERSTOOD = 0, 1, 2, 3, 4, 5, 6
local MOST_SEATS = 4096
local FINE, ONE, TWICE = 1024, 65536, 131072
local EQUAL, DEMAND = 0, 1
local ALL, HUNGRY, TURNS = 0, 1, 2
local SAID = '<dddI4I4I4BBdddBddI4I4I4I4I4B'
-- Where the member and its life stand in it: the name of a seat.
local NAME, NAME_FROM, NAME_TO = '<dd', 39, 54
local HEAD, HEAD_BYTES = '<I4ddddBdI4dddI4dddI4I4I4I4', 117
local HEAD_AND_WANTS = HEAD .. 'c0'
-- What is read of all seats, and the rest of one. Shorter than any head.
local SEEN, REST, REST_FROM, SEAT_BYTES = '<I4ddI4I4I4I4', '<dddddI4', 37, 80
local SEAT = SEEN .. sub(REST, 2)
local LIFE, LINE = '<dddd', '<ddd'
local KEPT, LIFE_KEPT = 600000000, 2592000000000
-- An expiry is set so much later than it has to be, and stays for as long.
local SLACK = 60000000
-- What one command is given at most: a function of Lua takes 8,000.
local MOST_PARTS = 2000

local time = call('TIME')
told = time[1] * 1000000 + time[2]
local real = told
if ARGV[1] ~= '' then
  told = tonumber(ARGV[1])
  -- The clock that expires keys is not the one given, and must not end what that one has not ended.
  real = real + 86400000000
end

local function expire(key, at)
  call('PEXPIREAT', key, format('%.0f', floor(at / 1000) + 1))
end

local function less(a, b) if b < a then return a - b end return 0 end

-- kernel/coordinator/life.rs.
local born, since_when

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

local its_line = pack('<dd', replica, replica_life)
local is_new = call('HSET', KEYS[1], its_line, pack(LINE, told, replica_longest, under)) == 1
if replica_leaves == 1 then call('HDEL', KEYS[1], its_line) end
if is_new or settled == 0 then
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
  -- Who leaves has nothing to lose, and is perhaps the first whom a store hears that has forgotten the others.
  if settled == 0 and replica_leaves == 0 then
    settle(longest or replica_longest, lines)
    life_changed = life_changed or settled == 1
  end
end

-- The rest of the law and of the heartbeat; the name of the seat that speaks; the text that each seat was read from.
local heartbeat, least, start, most, aggregate
local member, life, number, h_coordinator, h_generation, h_share, h_ceiling
local in_flight, wanted, vote, leaves
local name, said_vote, texts = nil, nil, {}

-- What a loop reads of each seat is made the function's own first: a name that functions share is looked up at each use.

-- The formats of so many shares.
local shares = {}

local function format_of_wants()
  if not shares[n] then shares[n] = '<' .. rep('I4', n) end
  return shares[n]
end

-- The wants of all, which stand in the head. The one that speaks may have been heard since that was read.
local function load_wants()
  if has_wants then return end
  has_wants = true
  local its = W[mine]
  W = {unpack(format_of_wants(), state, HEAD_BYTES + 1)}
  if mine then W[mine] = its end
end

-- What the sums are of, of all seats but the one that speaks.
local function see_all()
  if has_all then return end
  has_all = true
  load_wants()
  local all, state, own = call('HVALS', key), state, own
  local M, U, HS, GS, F, T, L, texts = M, U, HS, GS, F, T, L, texts
  for k = 1, #all do
    local its = all[k]
    if its ~= state and its ~= own then
      local i, member, ends, held, granted, in_flight, told = unpack(SEEN, its)
      M[i], U[i], HS[i], GS[i], F[i], T[i], L[i], texts[i] = member, ends, held, granted, in_flight, told, nil, its
    end
  end
end

-- The rest of one seat, and of all: of one it costs little.
local function load(i)
  if L[i] then return end
  L[i], N[i], HG[i], GG[i], S[i], V[i] = unpack(REST, texts[i], REST_FROM)
end

local function load_all()
  see_all()
  for i = 1, n do load(i) end
end

-- kernel/coordinator/life.rs, `is_in_grace`.
local function is_in_grace()
  return settled == 0 and now < born + term + max_duration
end

-- kernel/coordinator/seat.rs.
local function exposure(i)
  local most, granted, in_flight = HS[i], GS[i], F[i]
  if most < granted then most = granted end
  if most < in_flight then most = in_flight end
  return most
end

local function is_over(i)
  if now < U[i] then return false end
  return exposure(i) == 0 or U[i] + max_duration <= now
end

local function drop_seats_that_are_over()
  -- Where they were not read all are live.
  if not has_all then return end
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
  return (level - level % FINE) / FINE
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

-- What a live seat adds to the sums, with a `sign` of 1, or takes from them, with -1. In one place, so that what is taken is what
-- was added.
local function put(i, sign)
  local need, granted, ceiling = W[i], GS[i], sum_ceiling
  if ceiling < need then need = ceiling end
  sum_exposure, sum_need = sum_exposure + sign * exposure(i), sum_need + sign * need
  if T[i] <= ceiling then sum_taken = sum_taken + sign * granted end
  if 0 < need then count_hungry = count_hungry + sign end
  if granted < need then count_short = count_short + sign end
  if granted == 0 then count_empty = count_empty + sign end
  if U[i] < next_end then count_ending = count_ending + sign end
end

-- kernel/coordinator/coordinator.rs, `place`: a code, or where the seat is or belongs and whether it is there.
local function place()
  -- Where all are live no member has two.
  local at, found = mine, true
  if has_all then
    local member, M = member, M
    at, found = n + 1, false
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
  end
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
  if found then
    if now < sums_hold_until then put(at, -1) end
  else
    load_all()
    for _, run in ipairs({M, L, N, HG, GG, U, S, HS, GS, T, F, W, V}) do
      for i = n, at, -1 do run[i + 1] = run[i] end
    end
    M[at], L[at], GG[at], S[at], GS[at], T[at], V[at] = member, life, held_generation, now, held_share, 0, 0
    n, all_changed, sums_hold_until = n + 1, true, 0
  end
  if leaves == 1 then GG[at], GS[at] = held_generation, held_share end
  votes = votes + (said_vote == 0 and 0 or 1) - (V[at] == 0 and 0 or 1)
  N[at], HG[at], HS[at], F[at], W[at], V[at] = number, held_generation, held_share, in_flight, wanted, said_vote
  U[at] = leaves == 1 and now or now + term
  sums_hold_until = min(sums_hold_until, U[at])
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

-- kernel/coordinator/split.rs. What the split knows further; `idle`, how many of the hungry want nothing and count as needing one.
local wants, waits, since
local my_need, total_need, idle

-- What each of the living wants.
local function wants_of_the_living()
  load_wants()
  if not live then return W end
  local wants = {}
  for i = 1, living do wants[i] = W[live[i]] end
  return wants
end

local function rule(whole)
  if living <= whole then return ALL end
  if split == DEMAND and 0 < hungry and hungry <= whole then return HUNGRY end
  return TURNS
end

local function class(i, turned)
  if split == DEMAND and wants[i] == 0 then return 3 end
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

-- The highest level to which every need can be filled, rounded down, where there is not enough for all; how many need more, and
-- what is left over. The level is below the ceiling, so that what is wanted beyond that makes no difference here.
local function fills_to(whole, wants)
  local living, filled = living, floor(whole / hungry)
  local spare = whole - idle
  while true do
    local rest, short = spare, 0
    for i = 1, living do
      local its = wants[i]
      if filled < its then short = short + 1 else rest = rest - its end
    end
    local raised = short == 0 and 0 or floor(rest / short)
    if raised <= filled then return filled, short, rest - filled * short end
    filled = raised
  end
end

local function fill(whole)
  local mine, is_enough = my_need, total_need <= whole
  if mine == 0 then return 0 end
  if is_enough and hungry == living then return mine + even(whole - total_need, living, me - 1) end
  -- Who shares in the rest: those that want more, or everybody who takes part once nobody does.
  local wants, filled, among, rest = wants_of_the_living(), 0, hungry, whole - total_need
  if not is_enough then
    filled, among, rest = fills_to(whole, wants)
    if mine <= filled then return mine end
    mine = filled
  end
  local before = 0
  for i = 1, me - 1 do
    if filled < wants[i] then before = before + 1 end
  end
  return mine + even(rest, among, before)
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
    wants, waits, since = wants_of_the_living(), {}, {}
    for i = 1, living do
      local its = live and live[i] or i
      waits[i], since[i] = GS[its] == 0, S[its]
    end
  end
  local turned = less(now, heartbeat * 4)
  return part(whole, turned, by), owed(turned, by)
end

local function left_by_the_lowered(whole)
  return less(whole, sum_taken)
end

local function share(at, whole, fair, owed_first, others, any_short)
  local free, own = less(whole, others), HS[at]
  if free < own then return min(min(fair, own), left_by_the_lowered(whole)) end
  local keeps = grace or split == DEMAND and not any_short
  local goal = keeps and max(fair, own) or fair
  return min(goal, grace and own or max(own, less(free, owed_first)))
end

-- The sums of all seats but the one that speaks, from the seats. One that is not live is exposed, and takes part in nothing else.
local function sum_up(at, whole)
  see_all()
  sum_ceiling, sum_exposure, sum_need, sum_taken, count_hungry, count_short, count_empty = whole, 0, 0, 0, 0, 0, 0
  next_end, count_ending = U[at], 0
  living, live, me = 0, {}, nil
  local least = U[at]
  for i = 1, n do
    if is_live(i) then
      living = living + 1
      live[living] = i
      if i == at then me = living else put(i, 1) end
      if U[i] < least then least = U[i] end
    elseif i ~= at then
      local its = exposure(i)
      sum_exposure, sum_taken = sum_exposure + its, sum_taken + its
    end
  end
  -- Until when a seat that is not live is kept, each heartbeat's own law says.
  sums_hold_until = living == n and least or 0
end

local function grant(at)
  local whole = ceiling()
  if sums_hold_until <= now or whole ~= sum_ceiling then
    sum_up(at, whole)
  else
    living, live, me = n, nil, at
  end
  my_need = me and min(W[at], whole) or 0
  total_need, hungry, idle = sum_need + my_need, count_hungry + (0 < my_need and 1 or 0), 0
  local by = rule(whole)
  local any_short = 0 < count_short or by == ALL and 0 < count_empty
  if by == ALL and hungry < living then
    -- Each needs one at least.
    idle = living - hungry
    total_need, hungry, my_need = total_need + idle, living, max(my_need, 1)
  end
  local fair, owed_first = fair_part(whole, by)
  local granted = share(at, whole, fair, owed_first, sum_exposure, any_short)
  local same = HS[at] == granted and HG[at] ~= 0
  local its_generation = same and HG[at] or generation + 1
  generation = max(generation, its_generation)
  if (granted == 0) ~= (GS[at] == 0) then S[at] = now end
  votes = votes + (said_vote == 0 and 0 or 1) - (V[at] == 0 and 0 or 1)
  GG[at], GS[at], T[at], V[at] = its_generation, granted, whole, said_vote
  put(at, 1)
  if count_ending == 0 and 0 < sums_hold_until then
    -- Each of the others may end before this one; whichever does not is counted as if it did, and the sums are made anew then.
    sums_hold_until, next_end, count_ending = max(sums_hold_until, next_end), U[at], n - 1
  end
  return its_generation, granted, fair, whole, living
end

local function read(said)
  has_wants, has_all, all_changed, mine = false, false, false, nil
  name = sub(said, NAME_FROM, NAME_TO)
  local found = try('HMGET', key, 'head', name)
  if found.err then
    assert(sub(found.err, 1, 9) == 'WRONGTYPE', found.err)
    return false
  end
  state, own = found[1], found[2]
  if not state then
    n, incarnation, kept = 0, -1, 0
    return call('HLEN', key) == 0
  end
  if #state < HEAD_BYTES then return false end
  n, incarnation, latest, generation, level, recovered, counted, votes, kept, sums_hold_until, next_end, sum_ceiling,
    sum_exposure, sum_need, sum_taken, count_hungry, count_short, count_empty, count_ending = unpack(HEAD, state)
  if #state ~= HEAD_BYTES + 4 * n or own and #own ~= SEAT_BYTES then return false end
  if own then
    local i, m, u, hs, gs, f, t, l, heard, hg, gg, s, v = unpack(SEAT, own)
    M[i], U[i], HS[i], GS[i], F[i], T[i] = m, u, hs, gs, f, t
    L[i], N[i], HG[i], GG[i], S[i], V[i] = l, heard, hg, gg, s, v
    W[i] = unpack('<I4', state, HEAD_BYTES + 4 * i - 3)
    mine = i
  end
  return true
end

local function seat(i)
  return pack(SEAT, i, M[i], U[i], HS[i], GS[i], F[i], T[i], L[i], N[i], HG[i], GG[i], S[i], V[i])
end

local function head(wants)
  return pack(HEAD_AND_WANTS, n, incarnation, latest, generation, level, recovered, counted, votes, kept, sums_hold_until,
    next_end, sum_ceiling, sum_exposure, sum_need, sum_taken, count_hungry, count_short, count_empty, count_ending, wants)
end

-- Anew, so that no seat stays that is gone.
local function write_all()
  load_all()
  call('DEL', key)
  local parts, to = {'head', head(pack(format_of_wants(), spread(W, 1, n)))}, 2
  for i = 1, n do
    parts[to + 1], parts[to + 2] = pack(NAME, M[i], L[i]), seat(i)
    to = to + 2
    if to == MOST_PARTS then
      call('HSET', key, spread(parts))
      parts, to = {}, 0
    end
  end
  if 0 < to then call('HSET', key, spread(parts)) end
end

local function write(at)
  local rests = real + term + max_duration + KEPT
  local renews = kept < rests
  if renews then kept = rests + SLACK end
  if all_changed then
    write_all()
  elseif at then
    local w = HEAD_BYTES + 4 * at
    local wants = sub(state, HEAD_BYTES + 1, w - 4) .. pack('<I4', W[at]) .. sub(state, w + 1)
    call('HSET', key, 'head', head(wants), name, seat(at))
  else
    call('HSET', key, 'head', head(sub(state, HEAD_BYTES + 1)))
  end
  if renews or all_changed then expire(key, kept) end
end

-- kernel/coordinator/coordinator.rs.
local function on_heartbeat()
  if incarnation ~= born_as then
    incarnation, latest, generation, level, recovered, counted, votes = born_as, 0, 0, -1, 0, told, 0
    n, mine, has_wants, has_all, all_changed = 0, nil, true, true, true
    sums_hold_until, next_end, sum_ceiling, sum_exposure, sum_need, sum_taken = 0, 0, 0, 0, 0, 0
    count_hungry, count_short, count_empty, count_ending = 0, 0, 0, 0
  end
  latest = max(latest, told)
  now = latest
  if not mine or sums_hold_until <= now or leaves == 1 then see_all() end
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
  local said = ARGV[i + 2]
  heartbeat, term, max_duration, least, start, most, aggregate, split, member, life, number, holds,
    h_coordinator, h_generation, h_share, h_ceiling, in_flight, wanted, vote, leaves = unpack(SAID, said)
  key = KEYS[i]
  local code, at, its_generation, granted, fair, whole, members = NOT_UNDERSTOOD
  if read(said) then
    code, at, its_generation, granted, fair, whole, members = on_heartbeat()
    write(at)
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
expire(KEYS[1], real + LIFE_KEPT)
reply[1] = born_as
return reply

end

return round()
