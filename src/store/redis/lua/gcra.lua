    -- GCRA, a block in the charge loop: crates/kernel/src/rate/gcra.rs.
    --
    -- State, 37 bytes: 'g', since, owed, N, P, B, tick. At the tick `since` the debt was `owed`
    -- hit-ticks, under the limit N, P, B, tick. This is the TAT, `since + owed / N`, without a
    -- division and without an instant beyond 2^53. The key's expiry follows from the state, as in
    -- head.lua, so the next charge computes it instead of reading it.
    if strategy == 1 then
      if worked_out ~= in_hand then
        worked_out, capacity, at = in_hand, burst * period, (now - now % tick) / tick
        under = pack('<I4dI4I4', limit, period, burst, tick)
        tenth = tick < 100000 and 100000 / tick or 1
      end
      -- Several keys with equal records: charges counters that were written under this limit and
      -- allow the hits, the usual case, in a tight loop.
      if not from and act == CHARGE and 0 < hits then
        local costs = hits * period
        local most = capacity - costs
        while keys < alike and value and #value == 37 do
          local mark, since, owed, its = unpack('<Bddc20', value)
          if its ~= under or mark ~= 103 or not (0 < owed and owed < EXACT and 0 <= since and since < EXACT) then
            break
          end
          ahead = owed - (at - since) * limit
          if ahead < 0 then ahead = 0 end
          if most < ahead then break end
          ahead = ahead + costs
          local part = ahead % limit
          reset = (ahead - part) / limit
          if 0 < part then reset = reset + 1 end
          if call('SETRANGE', key, '1', pack('<dd', at, ahead)) ~= 37 then break end
          part = owed % limit
          local rests = (owed - part) / limit
          if 0 < part then rests = rests + 1 end
          lives = since + rests
          local ends = at + reset
          ends = ends + -ends % tenth
          if lives + -lives % tenth ~= ends then
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
          key, value = KEYS[keys], held[keys]
        end
      end

      ahead, reset = 0, 0
      changed, lives = false, nil
      value = value or try('GET', key)
      if value then
        if #value ~= 37 then
          -- An error reply and AGAIN are Lua tables, so their length is 0.
          if value ~= AGAIN then break end
          ahead, changed, lives = debt, unwritten, lived
        else
          local mark, since, owed, its = unpack('<Bddc20', value)
          if mark ~= 103 or not (0 < owed and owed < EXACT and 0 <= since and since < EXACT) then
            break
          end
          if its == under then
            local part = owed % limit
            local rests = (owed - part) / limit
            if 0 < part then rests = rests + 1 end
            lives = since + rests
            lives = lives + -lives % tenth
            ahead = owed - (at - since) * limit
            if capacity < ahead then ahead, changed = capacity, true end
          else -- convert the debt to this limit
            local n, p, b, t = unpack('<I4dI4I4', its)
            if n < 1 or b < 1 or not (1 <= p and b * p < EXACT)
              or (t ~= 1 and t ~= 1000 and t ~= 1000000) then
              break
            end
            local left = owed - ((now - now % t) / t - since) * n
            if b * p < left then left = b * p end
            local carried = ceil(left / p)
            if burst < carried then carried = burst end
            ahead, changed = carried * period, true
          end
        end
        if ahead < 0 then ahead = 0 end
      end

      while true do
        local room = capacity - ahead
        local free = (room - room % period) / period
        code, remaining, retry = ADMIT, free, 0
        if act == REFUND then
          local left = ahead - hits * period
          if left < 0 then left = 0 end
          code, changed, ahead = REFUNDED, changed or left ~= ahead, left
          room = capacity - ahead
          remaining = (room - room % period) / period
        elseif hits <= free then
          remaining = free - hits
          if hits ~= 0 then ahead, changed = ahead + hits * period, true end
        elseif burst < hits then
          code = NEVER
        else
          -- This order of the operations keeps every sum below 2^53.
          code, retry = DENY, ceil((ahead - (capacity - hits * period)) / limit)
        end
        -- Rounds the quotient up. This is faster than a call of `ceil`.
        local part = ahead % limit
        reset = (ahead - part) / limit
        if 0 < part then reset = reset + 1 end
        if from == last then break end

        say(code, remaining, retry, reset)
        from = from + 1
        if plan[from] ~= in_hand then
          local n, p, b, t = limit, period, burst, tick
          in_hand = plan[from]
          strategy, its_act, group, shadow, its_hits, limit, period, burst, tick =
            unpack(RECORD, ARGV[in_hand + 2])
          act, hits = its_act, its_hits
          if n ~= limit or p ~= period or b ~= burst or t ~= tick then -- convert
            worked_out, capacity, at = in_hand, burst * period, (now - now % tick) / tick
            under = pack('<I4dI4I4', limit, period, burst, tick)
            tenth, lives = tick < 100000 and 100000 / tick or 1, nil
            local carried = ceil(ahead / p)
            if burst < carried then carried = burst end
            ahead, changed = carried * period, true
          end
        end
      end

      if act ~= ASK then
        if ahead == 0 then
          if value then call('DEL', key) end
          lives = nil
        elseif changed then
          -- A denial also writes the state: a debt that was reduced to one burst must shrink from
          -- now on.
          local ends = at + reset
          ends = ends + -ends % tenth
          -- A stored state under the same limit differs only in the first two numbers, which
          -- SETRANGE replaces. Its expiry is often in the same tenth of a second.
          if not lives or call('SETRANGE', key, '1', pack('<dd', at, ahead)) ~= 37 then
            local state = pack('<Bddc20', 103, at, ahead, under)
            call('SET', key, state, 'PXAT', expiry_at(ends * tick / 1000))
          elseif lives ~= ends then
            call('PEXPIREAT', key, expiry_at(ends * tick / 1000))
          end
          lives = ends
        end
      end
    end

