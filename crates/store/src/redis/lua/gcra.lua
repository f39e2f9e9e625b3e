    -- GCRA, a block in the charge loop: crates/kernel/src/rate/gcra.rs.
    --
    -- State, 37 bytes: 'g', since, debt, N, P, B, tick; 'G' if the limit charges excess hits. At
    -- the tick `since` the counter had this debt in hit-ticks, under the limit N, P, B, tick. This
    -- is the TAT, `since + debt / N`, without a division and an instant beyond 2^53. The key's
    -- expiry follows from the state, as in head.lua, so the next charge computes it instead of
    -- reading it.
    if strategy == 1 then
      if derived_for ~= current_record then
        derived_for, capacity, at = current_record, burst * period, (now - now % tick) / tick
        limit_bytes = pack('<I4dI4I4', limit, period, burst, tick)
        tenth = tick < 100000 and 100000 / tick or 1
        most_debt, tag = capacity, 103
        if 2 <= flags then -- `max_debt`
          most_debt, tag = 1000 * capacity, 71
          if EXACT <= most_debt then most_debt = EXACT - 1 end
        end
      end
      -- Several keys with equal records: charges counters that were written under this limit and
      -- allow the hits, the usual case, in a tight loop.
      if not from and act == CHARGE and 0 < hits then
        local costs = hits * period
        local most = capacity - costs
        while keys < alike and value and #value == 37 do
          local its_tag, since, stored_debt, its = unpack('<Bddc20', value)
          if its ~= limit_bytes or its_tag ~= tag or not (0 < stored_debt
            and stored_debt < EXACT and 0 <= since and since < EXACT) then
            break
          end
          ahead = stored_debt - (at - since) * limit
          if ahead < 0 then ahead = 0 end
          if most < ahead then break end
          ahead = ahead + costs
          local part = ahead % limit
          reset = (ahead - part) / limit
          if 0 < part then reset = reset + 1 end
          if call('SETRANGE', key, '1', pack('<dd', at, ahead)) ~= 37 then break end
          part = stored_debt % limit
          local lifetime = (stored_debt - part) / limit
          if 0 < part then lifetime = lifetime + 1 end
          expires_at = since + lifetime
          local ends = at + reset
          ends = ends + -ends % tenth
          if expires_at + -expires_at % tenth ~= ends then
            call('PEXPIREAT', key, expiry_at(ends * tick / 1000))
          end
          local room = capacity - ahead
          if reset == its_reset then
            length = length + 1
            reply[length] = 16 * (room - room % period) / period + 8
          else
            reply[length + 1], reply[length + 2] = 16 * (room - room % period) / period, reset
            length, its_reset = length + 2, reset
          end
          keys = keys + 1
          key, value = KEYS[keys], values[keys]
        end
      end

      ahead, reset = 0, 0
      changed, expires_at = false, nil
      value = value or try('GET', key)
      if value then
        if #value ~= 37 then
          -- An error reply and CONTINUE are Lua tables, so their length is 0.
          if value ~= CONTINUE then break end
          ahead, changed, expires_at = debt, is_unwritten, stored_expiry
        else
          local its_tag, since, stored_debt, its = unpack('<Bddc20', value)
          if (its_tag ~= 103 and its_tag ~= 71) or not (0 < stored_debt
            and stored_debt < EXACT and 0 <= since and since < EXACT) then
            break
          end
          if its == limit_bytes and its_tag == tag then
            local part = stored_debt % limit
            local lifetime = (stored_debt - part) / limit
            if 0 < part then lifetime = lifetime + 1 end
            expires_at = since + lifetime
            expires_at = expires_at + -expires_at % tenth
            ahead = stored_debt - (at - since) * limit
            if most_debt < ahead then ahead, changed = most_debt, true end
          else -- convert the debt to this limit
            local n, p, b, t = unpack('<I4dI4I4', its)
            if n < 1 or b < 1 or not (1 <= p and b * p < EXACT)
              or (t ~= 1 and t ~= 1000 and t ~= 1000000) then
              break
            end
            local left = stored_debt - ((now - now % t) / t - since) * n
            local most = b * p
            if its_tag == 71 then
              most = 1000 * most
              if EXACT <= most then most = EXACT - 1 end
            end
            if most < left then left = most end
            ahead, changed = ceil(left / p) * period, true
            if most_debt < ahead then ahead = most_debt end
          end
        end
        if ahead < 0 then ahead = 0 end
      end

      while true do
        local room = capacity - ahead
        local free = (room - room % period) / period
        if free < 0 then free = 0 end
        -- `OnExcess::needed`
        local needed = 2 <= flags and hits == 0 and 1 or hits
        code, remaining, retry = ALLOW, free, 0
        if act == REFUND then
          local left = ahead - hits * period
          if left < 0 then left = 0 end
          code, changed, ahead = REFUNDED, changed or left ~= ahead, left
          room = capacity - ahead
          remaining = (room - room % period) / period
          if remaining < 0 then remaining = 0 end
        elseif needed <= free then
          remaining = free - hits
          if hits ~= 0 then ahead, changed = ahead + hits * period, true end
        else
          if 2 <= flags and hits ~= 0 then
            ahead, remaining, changed = ahead + hits * period, 0, true
            if most_debt < ahead then ahead = most_debt end
          end
          if burst < needed then
            code = NEVER
          else
            -- This order of the operations keeps every sum below 2^53.
            code, retry = DENY, ceil((ahead - (capacity - needed * period)) / limit)
          end
        end
        -- Rounds the quotient up. This is faster than a call of `ceil`.
        local part = ahead % limit
        reset = (ahead - part) / limit
        if 0 < part then reset = reset + 1 end
        if from == last then break end

        add_reply(code, remaining, retry, reset)
        from = from + 1
        if plan[from] ~= current_record then
          local n, p, b, t, its_tag = limit, period, burst, tick, tag
          current_record = plan[from]
          strategy, its_act, group, flags, its_hits, limit, period, burst, tick =
            unpack(RECORD, ARGV[current_record + 2])
          act, hits = its_act, its_hits
          tag = 2 <= flags and 71 or 103
          if n ~= limit or p ~= period or b ~= burst or t ~= tick or tag ~= its_tag then -- convert
            derived_for, capacity, at = current_record, burst * period, (now - now % tick) / tick
            limit_bytes = pack('<I4dI4I4', limit, period, burst, tick)
            tenth, expires_at = tick < 100000 and 100000 / tick or 1, nil
            most_debt = capacity
            if tag == 71 then
              most_debt = 1000 * capacity
              if EXACT <= most_debt then most_debt = EXACT - 1 end
            end
            ahead, changed = ceil(ahead / p) * period, true
            if most_debt < ahead then ahead = most_debt end
          end
        end
      end

      if act ~= QUERY then
        if ahead == 0 then
          if value then call('DEL', key) end
          expires_at = nil
        elseif changed then
          -- A denial also writes the state: a debt that was reduced to `most_debt` must shrink from
          -- now on.
          local ends = at + reset
          ends = ends + -ends % tenth
          -- A stored state under the same limit differs only in the first two numbers, which
          -- SETRANGE replaces. Its expiry is often in the same tenth of a second.
          if not expires_at or call('SETRANGE', key, '1', pack('<dd', at, ahead)) ~= 37 then
            local state = pack('<Bddc20', tag, at, ahead, limit_bytes)
            call('SET', key, state, 'PXAT', expiry_at(ends * tick / 1000))
          elseif expires_at ~= ends then
            call('PEXPIREAT', key, expiry_at(ends * tick / 1000))
          end
          expires_at = ends
        end
      end
    end

