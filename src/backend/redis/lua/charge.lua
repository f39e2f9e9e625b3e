  error('strategy ' .. strategy)
end -- put

if ARGV[2] == '' then
  take(1)
  local held = {}
  if 1 < #KEYS and (strategy == 1 or strategy == 4) then held = call('MGET', spread(KEYS)) end
  for i = 1, #KEYS do say(put(KEYS[i], 0, 0, held[i])) end
  return reply
end

-- all_or_nothing, backend/memory.rs.

-- What each charge of the question at `at` in the plan would come to if all before it were charged.
local function ask(keys, at, count)
  local asked, together = {}, {}
  for i = 1, count do
    take(plan[at + i])
    local key, is_refund = KEYS[keys + i], its_act == 1
    -- Beyond 2^53 a sum is more than any limit, however it is rounded.
    local hits = (together[key] or 0) + (is_refund and 0 or its_hits)
    together[key] = hits
    local its_group, its_shadow = group, shadow
    local code, remaining, retry, reset = put(key, 0, 0, nil, hits)
    -- What cannot be read holds nobody back; how it is answered is not for this script to say.
    local denies = code == 1 or 4 <= code
    asked[i] = {code, remaining, retry, reset, is_refund, denies, its_group, denies and its_shadow == 0}
  end
  return asked
end

-- combine, kernel/decision.rs.
local function admitted(asked, quota_for_all, rescued)
  local quota, quota_denies = false, true
  for i = 1, #asked do
    local its_group, votes_no = asked[i][7], asked[i][8]
    if its_group == 1 or (its_group == 0 and quota_for_all) then
      quota, quota_denies = true, quota_denies and votes_no
    elseif its_group == 0 and votes_no then
      return false
    end
  end
  return not quota or not quota_denies or rescued
end

local function all_or_nothing(rule, keys, at, count)
  local asked = ask(keys, at, count)
  local charged = admitted(asked, 2 <= rule % 4, 4 <= rule)
  for i = 1, count do
    local its = asked[i]
    take(plan[at + i])
    if charged or its[5] then
      say(put(KEYS[keys + i], 0, 0))
    elseif its[6] then
      say(its[1], its[2], its[3], its[4])
    else -- spared
      say(put(KEYS[keys + i], 0, 0, nil, 0))
    end
  end
end

plan = {byte(ARGV[2], 1, -1)}
for i = 1, #plan / 2 do plan[i] = plan[2 * i - 1] + 256 * plan[2 * i] end
local at, ends, keys, held = 2, #ARGV[2] / 2, 0, {}
if 1 < plan[1] then held = call('MGET', spread(KEYS, 1, plan[1])) end
while at < ends do
  local rule, count = plan[at], plan[at + 1]
  if rule == 0 then
    keys = keys + 1
    local from, last, wanted = at + 2, at + 1 + count, said + count
    take(plan[from])
    local code, remaining, retry, reset, through = put(KEYS[keys], from, last, held[keys])
    while through and through < last do
      say(code, remaining, retry, reset)
      take(plan[through + 1])
      code, remaining, retry, reset, through = put(KEYS[keys], through + 1, last)
    end
    while said < wanted do say(code, remaining, retry, reset) end
  else
    all_or_nothing(rule, keys, at + 1, count)
    keys = keys + count
  end
  at = at + 2 + count
end
return reply
