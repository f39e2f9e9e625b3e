    -- Sliding windows, a block in the charge loop: crates/kernel/src/rate/sliding_window.rs.
    --
    -- State, 17 bytes: 's', start, prev, cur. They are the start of the current window in
    -- microseconds, and the hits in the previous and in the current window.
    if strategy == 4 then
      local start_micros, prev, cur, changed = 0, 0, 0, false
      value = value or try('GET', key)
      if value then
        if #value ~= 17 then break end
        local tag
        tag, start_micros, prev, cur = unpack('<BdI4I4', value)
        if tag ~= 115 or not (0 <= start_micros and start_micros < EXACT) then break end
      end

      while true do
        -- `advance`
        local held_prev, held_cur = prev, cur
        local since = (start_micros - start_micros % tick) / tick
        local at_now = (now - now % tick) / tick
        local at = at_now
        if at < since then at = since end
        local elapsed = at % period
        local start, left = at - elapsed, period - elapsed
        if since < start then
          if start - since <= period then prev, cur = cur, 0 else prev, cur = 0, 0 end
          since = start
        end
        -- This time and all times below are relative to now, because an instant two periods ahead
        -- may exceed 2^53.
        local finish = start - at_now + period

        local faded = ceil(prev * left / period)
        remaining = limit - faded - cur
        if remaining < 0 then remaining = 0 end
        code, retry = ALLOW, 0
        -- `OnExcess::needed`
        local needed = 2 <= flags and hits == 0 and 1 or hits
        if act == REFUND then
          code, cur = REFUNDED, cur - hits
          if cur < 0 then cur = 0 end
          remaining = limit - faded - cur
          if remaining < 0 then remaining = 0 end
        elseif needed <= remaining then
          cur, remaining = cur + hits, remaining - hits
        else
          if 2 <= flags and hits ~= 0 then
            cur, remaining = cur + hits, 0
            if 4294967295 < cur then cur = 4294967295 end
          end
          code = NEVER
        end
        if code == NEVER and needed <= limit then -- allowed_at
          local after = limit - needed
          local count, fades_at, spare = cur, finish + period, after
          if cur <= after then count, fades_at, spare = prev, finish, after - cur end
          code, retry = DENY, fades_at - (count == 0 and period or floor(spare * period / count))
          if retry < 0 then retry = 0 end
        end

        reset = 0
        if cur ~= 0 then reset = finish + period elseif prev ~= 0 then reset = finish end
        if reset == 0 then
          -- An empty counter gets the state of a new counter.
          start_micros, prev, cur, changed = 0, 0, 0, true
        elseif since * tick ~= start_micros or prev ~= held_prev or cur ~= held_cur then
          start_micros, changed = since * tick, true
        end
        if from == last then break end

        add_reply(code, remaining, retry, reset)
        from = from + 1
        current_record = plan[from]
        strategy, its_act, group, flags, its_hits, limit, period, burst, tick =
          unpack(RECORD, ARGV[current_record + 2])
        act, hits = its_act, its_hits
      end

      if act ~= QUERY then
        if reset == 0 then
          if value then call('DEL', key) end
        elseif changed then
          call('SET', key, pack('<BdI4I4', 115, start_micros, prev, cur), 'PXAT',
            expiry(reset * tick))
        end
      end
    end

