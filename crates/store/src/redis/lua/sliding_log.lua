    -- Sliding logs, a block in the charge loop: crates/kernel/src/rate/sliding_log.rs.
    --
    -- State: a list of at most N runs, the oldest first. A run is at, total, hits: its arrival in
    -- microseconds, all hits up to and including it, modulo 2^52, and its own hits. With totals,
    -- the hits between two runs are a difference, so a binary search finds every position. A charge
    -- reads the two ends and a few runs between them: O(log N) Redis calls.
    --
    -- A run takes 20 bytes, plus 2 bytes in the Redis list. The state is not a string, because each
    -- charge would copy it in and out, which takes half a millisecond for 10,000 runs.
    if strategy == 5 then
      local TOTALS = 4503599627370496
      local size = try('LLEN', key)
      if type(size) ~= 'number' then break end
      local origin, is_readable = 0, true
      -- With a limit of 0 one hit is kept, so that the reset after stays known.
      local most_kept = limit < 1 and 1 or limit

      -- Returns the arrival, the total since `origin`, and the hits of a run.
      local function run(index)
        local value = call('LINDEX', key, index)
        if value and #value == 20 then
          local at, total, own = unpack('<ddI4', value)
          if 0 <= at and at < EXACT and 0 <= total and total < TOTALS and 0 < own then
            return at, (total - origin) % TOTALS, own
          end
        end
        is_readable = false
        return 0, 0, 0
      end

      -- Returns the first run from `low` that arrived after `at`, or whose total is above `total`.
      local function first(low, at, total)
        local high, stride = low, 1
        while high < size do
          local its_at, its_total = run(high)
          if at and at < its_at or total and total < its_total then break end
          low, high, stride = high + 1, high + stride, stride * 2
        end
        if size < high then high = size end
        while low < high do
          local middle = floor((low + high) / 2)
          local its_at, its_total = run(middle)
          if at and at < its_at or total and total < its_total then
            high = middle
          else
            low = middle + 1
          end
        end
        return low
      end

      -- Runs `low` to size - 1 contain the hits after the total `base`, up to the total `total`.
      -- The newest run arrived at `newest`.
      local low, base, total, newest = 0, 0, 0, 0
      local past = now - period
      if 0 < size then
        local oldest, own
        oldest, total, own = run(0)
        origin = total - own
        newest, total = run(-1)
        -- `normalize`: `drop_oldest`, then drops the expired runs. The change is written below,
        -- unless this charge is only a query.
        local surplus = total - most_kept
        if 0 < surplus then
          low, base = first(0, nil, surplus), surplus
        end
        if newest <= past then
          low, base, total = size, 0, 0
        elseif low ~= 0 or oldest <= past then
          local young = first(low, past)
          if low < young then
            local _, its_total, its_own = run(young)
            low, base = young, its_total - its_own
          end
        end
      end
      local hits_in_period = total - base
      local stays = 0
      if hits_in_period ~= 0 then stays = (newest < now and newest or now) - past end

      -- `decide`; simultaneous charges under one limit become one run.
      local pushed, replies_before, integers = 0, reply_count, length
      local function undo_replies()
        while integers < length do
          reply[length] = nil
          length = length - 1
        end
        reply_count, its_reset = replies_before, nil
        code, remaining, retry, reset, through = UNREADABLE, 0, 0, 0, nil
      end
      while true do
        code, remaining, retry = ALLOW, limit - hits_in_period - pushed, 0
        if remaining < 0 then remaining = 0 end
        -- `OnExcess::needed`
        local needed = 2 <= flags and hits == 0 and 1 or hits
        if act == REFUND then
          code, pushed = REFUNDED, hits < hits_in_period and -hits or -hits_in_period
          remaining = limit - hits_in_period - pushed
          if remaining < 0 then remaining = 0 end
        elseif needed <= remaining then
          remaining, pushed = remaining - hits, pushed + hits
        else
          code = NEVER
          -- Only the newest hits up to the limit change a result.
          if 2 <= flags and hits ~= 0 then
            remaining, pushed = 0, pushed + hits
            if most_kept < pushed then pushed = most_kept end
          end
          if needed <= limit then -- `time_until_freed`
            local freed = first(low, nil, base + hits_in_period + pushed + needed - limit - 1)
            local at = now
            if freed < size then at = run(freed) end
            code, retry = DENY, (at < now and at or now) - past
          end
        end
        reset = 0 < pushed and period or stays
        if from == last or act ~= CHARGE then break end

        local its_limit, its_period, its_flags = limit, period, flags
        current_record = plan[from + 1]
        strategy, its_act, group, flags, its_hits, limit, period, burst, tick =
          unpack(RECORD, ARGV[current_record + 2])
        if its_act ~= CHARGE or limit ~= its_limit or period ~= its_period
          or flags - flags % 2 ~= its_flags - its_flags % 2 then
          break
        end
        add_reply(code, remaining, retry, reset)
        from, hits = from + 1, its_hits
      end
      through = from
      if not is_readable then undo_replies() break end
      if act == QUERY then break end
      if low == 0 and base == 0 and pushed == 0 and newest <= now then
        -- Set the expiry anew, because this limit may have a longer period than that of the last
        -- write.
        if hits_in_period ~= 0 then call('PEXPIREAT', key, expiry(reset)) end
        break
      end

      -- `push` keeps the newest hits up to the limit.
      if 0 < pushed and base < total + pushed - most_kept then
        base = total + pushed - most_kept
        low = first(low, nil, base)
      end

      -- The runs `low` to keep - 1 stay, perhaps followed
      -- by one run: at, up to total, since `before`.
      local keep, at, before = size, nil, nil
      if hits_in_period ~= 0 and now < newest then
        -- If the clock of Redis was set back, hits that arrived in the future count as arrived now.
        keep, at = first(low, now), now
      elseif 0 < pushed then
        at = now
      end
      total = total + pushed
      if at then
        before = base
        if low < keep then
          local its_at, its_total, its_own = run(keep - 1)
          before = its_total
          if its_at == now then keep, before = keep - 1, its_total - its_own end
          if before < base then before = base end
        end
        if total <= before then at = nil end
      end
      if pushed < 0 and not at and base < total then -- drop_newest
        keep = first(low, nil, total - 1)
        local its_at, its_total, its_own = run(keep)
        at, before = its_at, its_total - its_own
        if before < base then before = base end
      end
      if total == base then
        if not is_readable then undo_replies() break end
        if 0 < size then call('DEL', key) end
        reset = 0
        break
      end
      local cut, cut_at, cut_total, cut_own = false, 0, 0, 0
      if low < keep and base ~= 0 then
        cut_at, cut_total, cut_own = run(low)
        cut = cut_total - cut_own < base
      end
      if not is_readable then undo_replies() break end

      if keep <= low then
        if 0 < size then call('DEL', key) end
      elseif low ~= 0 or keep ~= size then
        call('LTRIM', key, low, keep - 1)
      end
      if cut then
        call('LSET', key, 0, pack('<ddI4', cut_at, (cut_total + origin) % TOTALS, cut_total - base))
      end
      if at then
        call('RPUSH', key, pack('<ddI4', at, (total + origin) % TOTALS, total - before))
        newest = at
      end
      reset = newest - past
      call('PEXPIREAT', key, expiry(reset))
    end

