if ARGV[2] == '' then
  alike = #KEYS
  if 1 < #KEYS and (strategy == 1 or strategy == 4) then held = call('MGET', _G.unpack(KEYS)) end
else
  plan = {string.byte(ARGV[2], 1, -1)}
  for i = 1, #plan / 2 do plan[i] = plan[2 * i - 1] + 256 * plan[2 * i] end
  if 1 < plan[1] then held = call('MGET', _G.unpack(KEYS, 1, plan[1])) end

  -- An answer.
  function say(code, remaining, retry, reset)
    if reset == its_reset then
      length, said = length + 1, said + 1
      reply[length] = 16 * remaining + code + 8
    else
      reply[length + 1], reply[length + 2] = 16 * remaining + code, reset
      length, said, its_reset = length + 2, said + 1, reset
    end
    if 4 <= code then
      length = length + 1
      reply[length] = retry
    end
  end

  -- all_or_nothing, backend/memory.rs. The question in hand: its rule and its `count` charges, the i-th of
  -- which is in hand; what was asked so far, and how many hits of each key; whether it is charged, as
  -- soon as all was asked.
  local place, ends = 2, #ARGV[2] / 2
  local rule, count, i, asked, together, charged = 0, 0, 0, nil, nil, nil
  -- Where a block left off.
  local left_key, left_from, left_last

  -- combine, kernel/decision.rs.
  local function admitted()
    local quota, quota_denies = false, true
    for each = 1, count do
      local its_group, votes_no = asked[each][7], asked[each][8]
      if its_group == 1 or (its_group == 0 and 2 <= rule % 4) then
        quota, quota_denies = true, quota_denies and votes_no
      elseif its_group == 0 and votes_no then
        return false
      end
    end
    return not quota or not quota_denies or 4 <= rule
  end

  -- What is to be done next: the key, the first and the last of its records in the plan, what lives there
  -- if that is known, and what only is to be asked: these hits, after those of the key before.
  function following()
    if left_key then
      local key = left_key
      left_key = nil
      return key, left_from, left_last
    end
    while true do
      if asked and i < count then
        i = i + 1
        local key, at = KEYS[keys + i], place - count - 1 + i
        if charged == nil then return key, at, at, nil, nil, together end
        local its = asked[i]
        if charged or its[5] then return key, at, at end
        if not its[6] then return key, at, at, nil, 0 end -- spared
        say(its[1], its[2], its[3], its[4])
      elseif asked and charged == nil then
        i, charged = 0, rule < 8 and admitted()
      else
        if asked then keys, asked = keys + count, nil end
        if ends <= place then return nil end
        rule, count = plan[place], plan[place + 1]
        if rule == 16 then
          alike, in_hand = keys + count, plan[place + 2]
          strategy, its_act, group, shadow, its_hits, limit, period, burst, tick =
            unpack(RECORD, ARGV[in_hand + 2])
          place = place + 3
          return nil
        end
        place = place + 2 + count
        if rule == 0 then
          keys = keys + 1
          return KEYS[keys], place - count, place - 1, held[keys]
        end
        i, asked, together, charged = 0, {}, {}, nil
      end
    end
  end

  -- Keeps what was only asked; says the rest. `wanted` answers are said when the key is done with.
  function hear(wanted, key, last, through, code, remaining, retry, reset)
    if asked and charged == nil then
      -- What cannot be read holds nobody back; how it is answered is not for this script to say. A refund is made
      -- whatever its counter holds.
      local denies = its_act ~= REFUND and (code == NEVER or DENY <= code)
      local votes_no = denies and shadow == 0
      asked[i] = {code, remaining, retry, reset, its_act == REFUND, denies, group, votes_no}
    elseif through and through < last then
      say(code, remaining, retry, reset)
      left_key, left_from, left_last = key, through + 1, last
    else
      while said < wanted do say(code, remaining, retry, reset) end
    end
  end
end

-- What the record of a GCRA comes to, and which one: many keys have one limit. A `tenth` of a second in its ticks, or one.
local worked_out, capacity, at, under, tenth
-- Of several steps to one counter, which are `step.lua`'s: none here.
local AGAIN, debt, unwritten, lived

while true do
  -- Charges to one key: of the records at `from` to `last` in the plan, the first of which is in hand. A key that is
  -- like others has one charge, and no place in the plan.
  local key, from, last, value, spared, together
  local act, hits, ahead, changed, lives
  if plan and alike <= keys then
    key, from, last, value, spared, together = following()
  end
  if keys < alike then
    keys = keys + 1
    key, value, act, hits = KEYS[keys], held[keys], its_act, its_hits
  elseif not key then
    return pack('<' .. string.rep('d', length), _G.unpack(reply, 1, length))
  else
    if plan[from] ~= in_hand then
      in_hand = plan[from]
      strategy, its_act, group, shadow, its_hits, limit, period, burst, tick =
        unpack(RECORD, ARGV[in_hand + 2])
    end
    act, hits = its_act, its_hits
    if spared then
      act, hits = ASK, 0
    elseif together then
      -- Beyond 2^53 a sum is more than any limit, however it is rounded.
      hits = (together[key] or 0) + (act == REFUND and 0 or hits)
      act, together[key] = ASK, hits
    end
  end
  local wanted = from and said + 1 + last - from
  -- Whoever leaves the block early has not understood what lives under the key, or has said so. A block
  -- that did not get to the last says how far it got.
  local code, remaining, retry, reset, through = NOT_UNDERSTOOD, 0, 0, 0, nil
  repeat
