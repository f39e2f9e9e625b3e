  error('strategy ' .. strategy)
end -- put

if ARGV[1] == 'e' and #KEYS == 1 then return {put(1)} end

local reply = {}
if ARGV[1] == 'e' then
  local n = 0
  for i = 1, #KEYS do
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = put(i)
    n = n + 4
  end
  return reply
end

-- all_or_nothing, backend/memory.rs.

-- What charge i would come to if all before it were charged.
local function ask(i)
  local _, act, group, shadow, together = unpack('<BBBBd', ARGV[i + 2])
  if act == 1 then together = 0 end
  for j = 1, i - 1 do
    if KEYS[j] == KEYS[i] then
      local _, its_act, _, _, its_hits = unpack('<BBBBd', ARGV[j + 2])
      if its_act ~= 1 then together = together + its_hits end
    end
  end
  -- Beyond 2^53 a sum is more than any limit, however it is rounded.
  local code, remaining, retry, reset = put(i, 2, together)
  -- What cannot be read holds nobody back; how it is answered is not for this script to say.
  local denies = code ~= 0 and code ~= 5
  return {code, remaining, retry, reset, act, denies, group, denies and shadow == 0}
end

-- combine, kernel/decision.rs.
local function admitted(asked)
  local quota_for_all = match(ARGV[1], 'q')
  local quota, quota_denies = false, true
  for i = 1, #asked do
    local group, votes_no = asked[i][7], asked[i][8]
    if group == 1 or (group == 0 and quota_for_all) then
      quota, quota_denies = true, quota_denies and votes_no
    elseif group == 0 and votes_no then
      return false
    end
  end
  return not quota or not quota_denies or match(ARGV[1], 'r') ~= nil
end

local asked = {}
for i = 1, #KEYS do asked[i] = ask(i) end
local charged = ARGV[1] ~= 'n' and admitted(asked)
for i = 1, #KEYS do
  local n, its = 4 * i - 4, asked[i]
  if charged or its[5] == 1 then
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = put(i)
  elseif its[6] then
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = its[1], its[2], its[3], its[4]
  else -- spared
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = put(i, 2, 0)
  end
end
return reply
