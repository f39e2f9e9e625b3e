-- Reads the plan (see head.lua) and begins the loop over its charges, which charge.lua ends.
if ARGV[2] == '' then
  alike = #KEYS
  if 1 < #KEYS and (strategy == 1 or strategy == 4) then values = call('MGET', _G.unpack(KEYS)) end
else
  plan = {string.byte(ARGV[2], 1, -1)}
  for i = 1, #plan / 2 do plan[i] = plan[2 * i - 1] + 256 * plan[2 * i] end
  if 1 < plan[1] then values = call('MGET', _G.unpack(KEYS, 1, plan[1])) end

  -- Adds one charge's result to the reply.
  function add_reply(code, remaining, retry, reset)
    if reset == its_reset then
      length, reply_count = length + 1, reply_count + 1
      reply[length] = 16 * remaining + code + 8
    else
      reply[length + 1], reply[length + 2] = 16 * remaining + code, reset
      length, reply_count, its_reset = length + 2, reply_count + 1, reset
    end
    if 4 <= code then
      length = length + 1
      reply[length] = retry
    end
  end

  -- `charge_atomically`, src/store/memory.rs. The current check: its mode, its `count` charges, and
  -- the index i of the current charge. A trial computes a result without charging. `trials` has the
  -- results of the trials so far, `trial_hits` the hits of each key in them. `charged` is nil until
  -- the last trial.
  local place, ends = 2, #ARGV[2] / 2
  local rule, count, i, trials, trial_hits, charged = 0, 0, 0, nil, nil, nil
  -- The current key and its records that the block of its strategy has not charged yet.
  local left_key, left_from, left_last

  -- `combine`, crates/kernel/src/decision.rs.
  local function is_allowed()
    local quota, quota_denies = false, true
    for each = 1, count do
      local its_group, is_denied = trials[each][7], trials[each][8]
      if its_group == 1 or (its_group == 0 and 2 <= rule % 4) then
        quota, quota_denies = true, quota_denies and is_denied
      elseif its_group == 0 and is_denied then
        return false
      end
    end
    return not quota or not quota_denies or 4 <= rule
  end

  -- Returns the next key to charge, the first and the last of its records in the plan, and the
  -- value of the key if it was read. In a trial it also returns the hits of earlier charges of the
  -- check, by key.
  function next_charge()
    if left_key then
      local key = left_key
      left_key = nil
      return key, left_from, left_last
    end
    while true do
      if trials and i < count then
        i = i + 1
        local key, at = KEYS[keys + i], place - count - 1 + i
        if charged == nil then return key, at, at, nil, nil, trial_hits end
        local its = trials[i]
        if charged or its[5] then return key, at, at end
        if not its[6] then return key, at, at, nil, 0 end -- skipped
        add_reply(its[1], its[2], its[3], its[4])
      elseif trials and charged == nil then
        i, charged = 0, rule < 8 and is_allowed()
      else
        if trials then keys, trials = keys + count, nil end
        if ends <= place then return nil end
        rule, count = plan[place], plan[place + 1]
        if rule == 16 then
          alike, current_record = keys + count, plan[place + 2]
          strategy, its_act, group, flags, its_hits, limit, period, burst, tick =
            unpack(RECORD, ARGV[current_record + 2])
          place = place + 3
          return nil
        end
        place = place + 2 + count
        if rule == 0 then
          keys = keys + 1
          return KEYS[keys], place - count, place - 1, values[keys]
        end
        i, trials, trial_hits, charged = 0, {}, {}, nil
      end
    end
  end

  -- Keeps the result of a trial, or adds the result to the reply. A key ends with `wanted` results.
  function add_result(wanted, key, last, through, code, remaining, retry, reset)
    if trials and charged == nil then
      -- A charge to a key with an unknown format does not deny the check, because the caller
      -- decides its verdict. A refund is always made.
      local denies = its_act ~= REFUND and (code == NEVER or DENY <= code)
      local is_denied = denies and flags % 2 == 0
      trials[i] = {code, remaining, retry, reset, its_act == REFUND, denies, group, is_denied}
    elseif through and through < last then
      add_reply(code, remaining, retry, reset)
      left_key, left_from, left_last = key, through + 1, last
    else
      while reply_count < wanted do add_reply(code, remaining, retry, reset) end
    end
  end
end

-- Values derived from the record of a GCRA limit, kept because many keys share a record. `tenth` is
-- a tenth of a second in ticks, or one tick if that is longer. `most_debt` is the largest debt, and
-- `tag` the first byte of a state.
local derived_for, capacity, at, limit_bytes, tenth, most_debt, tag
-- charge_counter.lua uses these variables to join several steps of one counter. The charge script
-- does not use them.
local CONTINUE, debt, is_unwritten, stored_expiry

while true do
  -- Charges one key by the records at `from` to `last` of the plan; the first is the current one.
  -- Keys with equal records have one charge each; `from` is then nil.
  local key, from, last, value, skipped, trial_hits
  local act, hits, ahead, changed, expires_at
  if plan and alike <= keys then
    key, from, last, value, skipped, trial_hits = next_charge()
  end
  if keys < alike then
    keys = keys + 1
    key, value, act, hits = KEYS[keys], values[keys], its_act, its_hits
  elseif not key then
    return pack('<' .. string.rep('d', length), _G.unpack(reply, 1, length))
  else
    if plan[from] ~= current_record then
      current_record = plan[from]
      strategy, its_act, group, flags, its_hits, limit, period, burst, tick =
        unpack(RECORD, ARGV[current_record + 2])
    end
    act, hits = its_act, its_hits
    if skipped then
      act, hits = QUERY, 0
    elseif trial_hits then
      -- The sum may be rounded above 2^53, where it exceeds every limit anyway.
      hits = (trial_hits[key] or 0) + (act == REFUND and 0 or hits)
      act, trial_hits[key] = QUERY, hits
    end
  end
  local wanted = from and reply_count + 1 + last - from
  -- A block that breaks early found a value of unknown format (the default code), or has set
  -- another code. A block that stops before the last record sets `through`.
  local code, remaining, retry, reset, through = UNREADABLE, 0, 0, 0, nil
  repeat
