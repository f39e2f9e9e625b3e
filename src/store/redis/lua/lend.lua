-- Continues the loop of borrow.lua: applies one message to its counter and to its lease table.
--
-- `put_record`: stores the sender's record `known`, unless the lease table is full. `others` is the
-- number of other replicas' records, and `forgotten` their latest expiry.
function put(key, member, others, forgotten, kept_until, known)
  if MOST_MEMBERS <= others then return end
  if forgotten < kept_until then forgotten = kept_until end
  if place and not is_stale and forgotten <= lasts then
    call('SETRANGE', key, format('%d', place + 7), known)
    return
  end
  lasts = forgotten + forgotten - now
  local rest = {pack(HEAD, LIST, lasts)}
  for i = BEGUN + 1, #list, SIZE do
    if i ~= place and now < unpack('<d', list, i + 8) then rest[#rest + 1] = string.sub(list, i, i + SIZE - 1) end
  end
  rest[#rest + 1] = member .. known
  list = table.concat(rest)
  call('SET', key, list, 'PXAT', expiry(lasts - now))
  place, is_stale = #list - SIZE + 1, false
end

    end

    -- `apply`: converts a debt that was written under another limit. This happens for any result of
    -- the message.
    if not is_plain then
      KEYS[1] = its_counter
      code, remaining, retry, reset = step(again and CHARGE or ASK, 0, lives_there or nil)
      if code == STALE or code == NOT_UNDERSTOOD then
        remaining, reset, its_granted, out = 0, 0, 0, 0
        break
      end
    end
    if not understood or number < its_number then
      code, remaining, retry, reset = understood and SUPERSEDED or NOT_UNDERSTOOD, 0, 0, 0
      its_granted, out = 0, 0
      break
    end
    local had = now < its_till and its_held or 0

    -- `repeat_reply`, and `peek_then_charge`: the reply to a message that was applied before.
    if number == its_number then
      code, remaining, retry, reset = step(ASK, its_passed == 1 and 0 or own, again)
      if its_passed == 1 then
        code, retry = ADMIT, 0
      elseif code == ADMIT then
        code, remaining, retry, reset = step(CHARGE, own)
        put(its_list, member, others, forgotten, its_kept_until, pack(KNOWN, its_kept_until, its_till, its_held,
          its_demand, number, its_lease, its_mark, its_fresh, its_granted, 1))
      end
      if its_till <= now then its_granted = 0 end
      kept, good_for = had - its_granted, its_till - now
      if kept < 0 then kept = 0 end
      if good_for < 0 then good_for = 0 end
      break
    end

    -- `apply_report`.
    kept = still_held
    if had < kept then kept = had end
    local left, returned = kept + back, 0
    if had < left then left = had end
    if left < its_fresh then its_fresh = left end
    if lease == its_lease then
      returned = left - kept
      if its_fresh < returned then returned = its_fresh end
    end
    its_fresh, its_held, its_demand = its_fresh - returned, kept, demand
    if kept < its_fresh then its_fresh = kept end
    if demand < 1 then its_demand = 1 elseif MOST_DEMAND < demand then its_demand = MOST_DEMAND end
    if returned ~= 0 then
      put(its_list, member, others, forgotten, its_kept_until, pack(KNOWN, its_kept_until, its_till, its_held,
        its_demand, number, its_lease, its_mark, its_fresh, its_granted, its_passed))
      refund(its_mark, returned)
    end

    -- `apply_new`: if nothing was charged, the debt of the last step is still valid. A changed debt
    -- is written later, together with the grant.
    if not is_plain then
      if not again or own ~= 0 or back ~= 0 then
        code, remaining, retry, reset = step(again and ASK or CHARGE, own, again)
      end
    elseif remaining < own then
      code = NEVER
      if own <= burst then code, retry = DENY, ceil((debt - (capacity - own * period)) / limit) end
    elseif 0 < own then
      debt, unwritten, remaining = debt + own * period, true, remaining - own
    end
    its_passed, its_granted = 0, 0
    local coupled, has_windows = budget < 0, strategy == 2 or strategy == 3
    if own == 0 or code == ADMIT then
      its_passed = 1

      -- `max_grant`, and `proportional_share`.
      local most, all = 0, its_demand + others_demand
      if others < MOST_MEMBERS then
        local product = remaining * its_demand
        most = (product - product % all) / all
        if not coupled then
          product = budget * its_demand
          local of_budget, unused = (product - product % all) / all - its_held, budget - out - its_held
          if of_budget < most then most = of_budget end
          if unused < most then most = unused end
        elseif not has_windows then
          most = 0
        end
      end

      -- `grant`.
      local hits = want
      if most < hits then hits = most end
      if again and 0 < hits then
        its_fresh = (its_mark == 0 and its_fresh or 0) + hits
        its_mark, its_lease, its_granted, its_held = 0, number, hits, its_held + hits
        debt, unwritten, remaining = debt + hits * period, true, remaining - hits
      elseif 0 < hits then
        local its_code, its_remaining, _, its_reset = step(CHARGE, hits)
        if its_code == ADMIT then
          local charged_at = mark()
          its_fresh = (its_mark == charged_at and its_fresh or 0) + hits
          its_mark, its_lease, its_granted, its_held = charged_at, number, hits, its_held + hits
          remaining, reset = its_remaining, its_reset
        end
      end
    end
    if again and unwritten then
      local part = debt % limit
      reset = (debt - part) / limit
      if 0 < part then reset = reset + 1 end
    end
    if not is_plain then
      if again and unwritten then step(CHARGE, 0, again) end
    elseif unwritten then
      local ends, state = at + reset, pack('<Bddc20', 103, at, debt, under)
      -- One SET writes the state and the expiry. A separate command for a changed expiry would cost
      -- more than leaving out an unchanged one saves.
      ends = expiry_at((ends + -ends % tenth) * tick / 1000)
      if not call('SET', its_counter, state, 'PXAT', ends, lives_there and 'XX' or 'NX') then code = NOT_UNDERSTOOD end
    elseif not lives_there then
      if try('GET', its_counter) then code = NOT_UNDERSTOOD end
    elseif debt == 0 then
      call('DEL', its_counter)
    end
    if code == NOT_UNDERSTOOD then
      remaining, retry, reset, its_granted, kept, out = 0, 0, 0, 0, 0, 0
      break
    end

    -- `lease_duration`.
    good_for = term
    if coupled and has_windows and reset < term then good_for = reset end
    local kept_until = now + term
    local known = pack(KNOWN, kept_until, now + good_for, its_held, its_demand, number, its_lease, its_mark, its_fresh,
      its_granted, its_passed)
    if not is_plain then
      put(its_list, member, others, forgotten, kept_until, known)
    elseif place and not is_stale and kept_until <= lasts then
      -- The offset of the record's fields after the replica, from 0, as text. It is 17 for the
      -- first record, which is usually the only one.
      call('SETRANGE', its_list, place == BEGUN + 1 and '17' or format('%d', place + 7), known)
    else
      if term ~= its_term then its_term, its_end = term, expiry(term + term) end
      list = pack(HEAD, LIST, kept_until + term) .. member .. known
      call('SET', its_list, list, 'PXAT', its_end)
    end
  until true

  written[its_list] = true
  lent[m] = pack('<dddddddd', code, remaining, retry, reset, its_granted, kept, out, good_for)
end
return table.concat(lent)
