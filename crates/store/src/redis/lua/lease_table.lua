-- Continues the loop of borrow.lua: applies one message to its counter and to its lease table.
--
-- Returns the header and the records of the lease table, without expired records and without that at
-- `skipped`. The record of an occupying lease ends with the lease.
local function valid_records(skipped)
  local all, ends = {pack(HEAD, TAG, table_expires_at)}, occupying and 16 or 8
  for i = HEAD_BYTES + 1, #lease_table, RECORD_BYTES do
    if i ~= skipped and now < unpack('<d', lease_table, i + ends) then
      all[#all + 1] = string.sub(lease_table, i, i + RECORD_BYTES - 1)
    end
  end
  return all
end

-- `put_record`: stores the sender's record `record_bytes`, unless the lease table is full.
-- `other_count` is the number of other replicas' records, and `others_kept_until` their latest
-- expiry.
function put_record(key, replica, other_count, others_kept_until, kept_until, record_bytes)
  if MAX_REPLICAS <= other_count then return end
  if others_kept_until < kept_until then others_kept_until = kept_until end
  if position and not is_stale and others_kept_until <= table_expires_at then
    call('SETRANGE', key, format('%d', position + 7), record_bytes)
    return
  end
  table_expires_at = others_kept_until + others_kept_until - now
  local all = valid_records(position)
  all[#all + 1] = replica .. record_bytes
  lease_table = table.concat(all)
  call('SET', key, lease_table, 'PXAT', expiry(table_expires_at - now))
  position, is_stale = #lease_table - RECORD_BYTES + 1, false
end

-- `remove_expired`, for occupying leases: charges the hits of expired ones, then removes their records.
-- If that write fails, the hits are charged twice, never forgotten.
function remove_expired(key, hits, remaining, continued)
  if 0 < hits then charge_counter(CHARGE, remaining < hits and remaining or hits, continued) end
  local own = position and string.sub(lease_table, position, position + RECORD_BYTES - 1)
  local all = valid_records(position)
  all[#all + 1] = own
  lease_table, is_stale = table.concat(all), false
  position = own and #lease_table - RECORD_BYTES + 1
  if #lease_table == HEAD_BYTES then
    call('DEL', key)
  else
    call('SET', key, lease_table, 'PXAT', expiry(table_expires_at - now))
  end
end

-- `headroom_beside`, crates/kernel/src/lease/counter.rs: the headroom as if `occupied` hits were
-- charged now.
function headroom_beside(occupied, continued)
  local its_debt, was_unwritten, its_expiry = debt, is_unwritten, stored_expiry
  local code, remaining, _, reset = charge_counter(QUERY, occupied, continued)
  debt, is_unwritten, stored_expiry = its_debt, was_unwritten, its_expiry
  if code ~= ALLOW then remaining = 0 end
  return remaining, reset
end

-- `charge_own`, and `charge_beside` of crates/kernel/src/lease/counter.rs: charges `hits` beside the
-- `occupied` hits of occupying leases.
function charge_own(hits, occupied, continued)
  if not occupying then return charge_counter(CHARGE, hits, continued) end
  local code, remaining, retry, reset = charge_counter(CHARGE, 0, continued)
  if 0 < hits then
    local its_debt, its_expiry = debt, stored_expiry
    code, remaining, retry, reset = charge_counter(QUERY, occupied + hits, continued)
    debt, is_unwritten, stored_expiry = its_debt, false, its_expiry
    if code == ALLOW then
      code, remaining, retry, reset = charge_counter(CHARGE, hits, continued)
    elseif code == NEVER and hits <= (strategy == 1 and burst or limit) then
      code, retry = DENY, ceil(term / tick) + longest
      if EXACT <= retry then retry = EXACT - 1 end
    end
  end
  remaining, reset = headroom_beside(occupied, continued)
  return code, remaining, retry, reset
end

    end

    -- `apply`: converts a debt that was written under another limit. This happens for any result of
    -- the message.
    if not is_plain then
      KEYS[1] = counter_key
      code, remaining, retry, reset = charge_counter(continued and CHARGE or QUERY, 0,
        stored_counter or nil)
      if code == STALE or code == UNREADABLE then
        remaining, reset, its_granted, outstanding = 0, 0, 0, 0
        break
      end
    end

    if occupying and is_stale and is_readable then
      remove_expired(table_key, expired, remaining, continued)
      code, remaining, retry, reset = charge_counter(QUERY, 0, continued)
    end

    -- A message without a lease: only charges its hits.
    if is_readable and number == 0 then
      if now < its_valid_until then outstanding = outstanding + its_balance end
      its_granted = 0
      code, remaining, retry, reset = charge_own(own, outstanding, continued)
      break
    end
    if not is_readable or number < its_number then
      code, remaining, retry, reset = is_readable and SUPERSEDED or UNREADABLE, 0, 0, 0
      its_granted, outstanding = 0, 0
      break
    end
    local old_balance = now < its_valid_until and its_balance or 0

    -- `repeat_reply`, and `charge_own`: the reply to a message that was applied before.
    if number == its_number then
      code, remaining, retry, reset = charge_counter(QUERY, its_allowed == 1 and 0 or own,
        continued)
      if occupying then occupied = outstanding + old_balance end
      if its_allowed == 1 then
        code, retry = ALLOW, 0
        if occupying then remaining, reset = headroom_beside(occupied) end
      elseif code == ALLOW or 0 < occupied then
        code, remaining, retry, reset = charge_own(own, occupied)
      end
      if its_allowed == 0 and code == ALLOW then
        put_record(table_key, replica, other_count, others_kept_until, its_kept_until,
          pack(OWN_RECORD, its_kept_until, its_valid_until, its_balance, its_demand, number,
            its_lease, its_mark, its_fresh, its_granted, 1))
      end
      if its_valid_until <= now then its_granted = 0 end
      kept_balance, valid_for = old_balance - its_granted, its_valid_until - now
      if kept_balance < 0 then kept_balance = 0 end
      if valid_for < 0 then valid_for = 0 end
      break
    end

    -- `apply_report`. An occupying lease charges the hits that were spent.
    kept_balance = reported_balance
    if old_balance < kept_balance then kept_balance = old_balance end
    local left, returned = kept_balance + returned_hits, 0
    if old_balance < left then left = old_balance end
    if occupying then
      local spent = old_balance - left
      if lease ~= 0 and lease ~= its_lease then spent = spent - its_granted end
      if remaining < spent then spent = remaining end
      if 0 < spent then charge_counter(CHARGE, spent, continued) end
      its_mark, its_fresh, occupied = 0, 0, outstanding + kept_balance
    end
    if left < its_fresh then its_fresh = left end
    if lease == its_lease and not occupying then
      returned = left - kept_balance
      if its_fresh < returned then returned = its_fresh end
    end
    its_fresh, its_balance, its_demand = its_fresh - returned, kept_balance, demand
    if kept_balance < its_fresh then its_fresh = kept_balance end
    if demand < 1 then its_demand = 1 elseif MAX_DEMAND < demand then its_demand = MAX_DEMAND end
    if returned ~= 0 then
      put_record(table_key, replica, other_count, others_kept_until, its_kept_until,
        pack(OWN_RECORD, its_kept_until, its_valid_until, its_balance, its_demand, number,
          its_lease, its_mark, its_fresh, its_granted, its_allowed))
      refund(its_mark, returned)
    end

    -- `apply_new`: if nothing was charged, the debt of the last step is still valid. A changed debt
    -- is written later, together with the grant.
    if occupying then
      code, remaining, retry, reset = charge_own(own, occupied, continued)
    elseif not is_plain then
      if not continued or own ~= 0 or returned_hits ~= 0 then
        code, remaining, retry, reset = charge_counter(continued and QUERY or CHARGE, own,
          continued)
      end
    elseif remaining < own then
      code = NEVER
      if own <= burst then code, retry = DENY, ceil((debt - (capacity - own * period)) / limit) end
    elseif 0 < own then
      debt, is_unwritten, remaining = debt + own * period, true, remaining - own
    end
    its_allowed, its_granted = 0, 0
    local coupled, has_windows = budget == -1, strategy == 2 or strategy == 3
    if own == 0 or code == ALLOW then
      its_allowed = 1

      -- `max_grant`, and `proportional_share`.
      local most, all = 0, its_demand + other_demand
      if other_count < MAX_REPLICAS then
        local product = remaining * its_demand
        most = (product - product % all) / all
        if not coupled then
          product = budget * its_demand
          local of_budget, unused = (product - product % all) / all - its_balance,
            budget - outstanding - its_balance
          if of_budget < most then most = of_budget end
          if unused < most then most = unused end
        elseif not has_windows then
          most = 0
        end
      end

      -- `grant`.
      local hits = want
      if most < hits then hits = most end
      if occupying and 0 < hits then
        its_lease, its_granted, its_balance = number, hits, its_balance + hits
        remaining, reset = headroom_beside(occupied + hits, continued)
      elseif continued and 0 < hits then
        its_fresh = (its_mark == 0 and its_fresh or 0) + hits
        its_mark, its_lease, its_granted, its_balance = 0, number, hits, its_balance + hits
        debt, is_unwritten, remaining = debt + hits * period, true, remaining - hits
      elseif 0 < hits then
        local its_code, its_remaining, _, its_reset = charge_counter(CHARGE, hits)
        if its_code == ALLOW then
          local charged_at = locate_charge()
          its_fresh = (its_mark == charged_at and its_fresh or 0) + hits
          its_mark, its_lease, its_granted = charged_at, number, hits
          its_balance = its_balance + hits
          remaining, reset = its_remaining, its_reset
        end
      end
    end
    if continued and is_unwritten then
      local part = debt % limit
      reset = (debt - part) / limit
      if 0 < part then reset = reset + 1 end
    end
    if not is_plain then
      if continued and is_unwritten then charge_counter(CHARGE, 0, continued) end
    elseif is_unwritten then
      local ends, state = at + reset, pack('<Bddc20', 103, at, debt, limit_bytes)
      -- One SET writes the state and the expiry. A separate command for a changed expiry would cost
      -- more than leaving out an unchanged one saves.
      ends = expiry_at((ends + -ends % tenth) * tick / 1000)
      if not call('SET', counter_key, state, 'PXAT', ends, stored_counter and 'XX'
        or 'NX') then code = UNREADABLE end
    elseif not stored_counter then
      if try('GET', counter_key) then code = UNREADABLE end
    elseif debt == 0 then
      call('DEL', counter_key)
    end
    if code == UNREADABLE then
      remaining, retry, reset, its_granted, kept_balance, outstanding = 0, 0, 0, 0, 0, 0
      break
    end

    -- `lease_duration`.
    valid_for = term
    if coupled and has_windows and reset < term then valid_for = reset end
    local kept_until = now + term + longest * tick
    local record_bytes = pack(OWN_RECORD, kept_until, now + valid_for, its_balance, its_demand,
      number, its_lease, its_mark, its_fresh, its_granted, its_allowed)
    if not is_plain then
      put_record(table_key, replica, other_count, others_kept_until, kept_until, record_bytes)
    elseif position and not is_stale and kept_until <= table_expires_at then
      -- The offset of the record's fields after the replica, from 0, as text. It is 17 for the
      -- first record, which is usually the only one.
      call('SETRANGE', table_key, position == HEAD_BYTES + 1 and '17' or format('%d', position + 7),
        record_bytes)
    else
      if term ~= its_term then its_term, its_end = term, expiry(term + term) end
      lease_table = pack(HEAD, TAG, kept_until + term) .. replica .. record_bytes
      call('SET', table_key, lease_table, 'PXAT', its_end)
    end
  until true

  written[table_key] = true
  replies[m] = pack('<dddddddd', code, remaining, retry, reset, its_granted, kept_balance,
    outstanding, valid_for)
end
return table.concat(replies)
