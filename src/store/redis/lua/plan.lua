-- Reads the plan (see head.lua) and begins the loop over its charges, which charge.lua ends.
if ARGV[2] == '' then
  alike = #KEYS
  if 1 < #KEYS and (strategy == 1 or strategy == 4) then held = call('MGET', _G.unpack(KEYS)) end
else
  plan = {string.byte(ARGV[2], 1, -1)}
  for i = 1, #plan / 2 do plan[i] = plan[2 * i - 1] + 256 * plan[2 * i] end
  if 1 < plan[1] then held = call('MGET', _G.unpack(KEYS, 1, plan[1])) end

  -- Adds one charge's result to the reply.
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

  -- `charge_atomically`, src/store/memory.rs. The current check: its mode, its `count` charges, and
  -- the index i of the current charge. A trial computes a result without charging. `asked` has the
  -- results of the trials so far, `together` the hits of each key in them. `charged` is nil until
  -- the last trial.
  local place, ends = 2, #ARGV[2] / 2
  local rule, count, i, asked, together, charged = 0, 0, 0, nil, nil, nil
  -- The current key and its records that the block of its strategy has not charged yet.
  local left_key, left_from, left_last

  -- `combine`, crates/kernel/src/decision.rs.
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

  -- Returns the next key to charge, the first and the last of its records in the plan, and the
  -- value of the key if it was read. In a trial it also returns the hits of earlier charges of the
  -- check, by key.
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
        if not its[6] then return key, at, at, nil, 0 end -- skipped
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

  -- Keeps the result of a trial, or adds the result to the reply. A key ends with `wanted` results.
  function hear(wanted, key, last, through, code, remaining, retry, reset)
    if asked and charged == nil then
      -- A charge to a key with an unknown format does not deny the check, because the caller
      -- decides its verdict. A refund is always made.
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

-- Values derived from the record of a GCRA limit, kept because many keys share a record. `tenth` is
-- a tenth of a second in ticks, or one tick if that is longer.
local worked_out, capacity, at, under, tenth
-- step.lua uses these variables to join several steps of one counter. The charge script does not
-- use them.
local AGAIN, debt, unwritten, lived

while true do
  -- Charges one key by the records at `from` to `last` of the plan; the first is the current one.
  -- Keys with equal records have one charge each; `from` is then nil.
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
      -- The sum may be rounded above 2^53, where it exceeds every limit anyway.
      hits = (together[key] or 0) + (act == REFUND and 0 or hits)
      act, together[key] = ASK, hits
    end
  end
  local wanted = from and said + 1 + last - from
  -- A block that breaks early found a value of unknown format (the default code), or has set
  -- another code. A block that stops before the last record sets `through`.
  local code, remaining, retry, reset, through = NOT_UNDERSTOOD, 0, 0, 0, nil
  repeat
