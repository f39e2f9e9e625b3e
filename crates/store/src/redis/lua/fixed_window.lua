    -- Fixed and calendar windows, a block in the charge loop:
    -- crates/kernel/src/rate/fixed_window.rs.
    --
    -- State of a window of `period`: one integer, the start in microseconds plus the count, while
    -- the count is below half a period. Then INCR or INCRBY alone counts, and its reply also
    -- identifies the window: two such counts together never reach the next window. A larger
    -- count, and a calendar's count, is the string start:count. Both forms are read everywhere.
    if strategy == 2 or strategy == 3 then
      local half, total, counted = period / 2, hits, false
      local small = act == CHARGE and limit < half
      if small and from ~= last then
        for i = from + 1, last do
          if plan[i] ~= current_record then
            current_record = plan[i]
            strategy, its_act, group, flags, its_hits, limit, period, burst, tick =
              unpack(RECORD, ARGV[current_record + 2])
          end
          total = total + its_hits
          small = small and its_act == CHARGE and limit < half
        end
        current_record = plan[from]
        strategy, its_act, group, flags, its_hits, limit, period, burst, tick =
          unpack(RECORD, ARGV[current_record + 2])
      end
      if small and 0 < total and total < half then
        local start, by, sum = now - now % period, total ~= 1 and format('%d', total), nil
        -- Several keys with equal records: INCR counts of the current window, the usual case, in a
        -- tight loop. A failed call ends the loop; the number of replies then shows how many keys
        -- were charged. This saves one comparison for each key.
        if not from and its_reset == start - now + period and hits <= limit then
          local function count(call, KEYS, DENY, at, last, by, reply, length, top, most, least,
            its_reset)
            for i = at, last - 1 do
              local sum
              if by then sum = call('INCRBY', KEYS[i], by) else sum = call('INCR', KEYS[i]) end
              local room = top - sum
              if most < room or room <= least then return i, sum end
              if 0 <= room then
                length = length + 1
                reply[length] = 16 * room + 8
              else
                reply[length + 1], reply[length + 2] = DENY + 8, its_reset
                length = length + 2
              end
            end
            return last, by and call('INCRBY', KEYS[last], by) or call('INCR', KEYS[last])
          end
          local done, at, its_sum = pcall(count, call, KEYS, DENY, keys, alike, by, reply, length,
            start + limit, limit - hits, limit - half, its_reset)
          local answered = length
          length = #reply
          if done then
            keys, sum = at, its_sum
          else
            while answered < length do
              answered, keys = answered + (reply[answered + 1] == DENY + 8 and 2 or 1), keys + 1
            end
          end
          key = KEYS[keys]
        else
          sum = tonumber(by and try('INCRBY', key, by) or try('INCR', key))
        end
        if sum then
          local count = sum - start
          if count < total or half <= count then
            if sum < total or EXACT <= sum then
              call('DECRBY', key, format('%d', total))
              break
            end
            local since = sum - sum % period
            if since < start then
              count = total
              call('SET', key, format('%.0f', start + count), 'PXAT', expiry(start + period - now))
            else
              -- The clock of Redis was set back, or the count is no longer below half a period.
              start, count = since, sum - since
              if half <= count then
                local text = format('%.0f:%.0f', start, count)
                call('SET', key, text, 'PXAT', expiry(start - now + period))
              end
            end
          end
          counted, count, reset = true, count - total, start - now + period
          while true do
            count = count + hits
            code, remaining, retry = ALLOW, limit - count, 0
            -- `OnExcess::needed`
            local needed = 2 <= flags and hits == 0 and 1 or hits
            if remaining < needed - hits then
              code, retry = DENY, reset
              if limit < needed then code, retry = NEVER, 0 end
            end
            if remaining < 0 then remaining = 0 end
            if from == last then break end
            add_reply(code, remaining, retry, reset)
            from = from + 1
            if plan[from] ~= current_record then
              current_record = plan[from]
              strategy, its_act, group, flags, its_hits, limit, period, burst, tick =
                unpack(RECORD, ARGV[current_record + 2])
              hits = its_hits
            end
          end
        end
        -- The code below handles values of the form start:count, and values that INCR must not
        -- change.
      end

      if not counted then
        local since, count = 0, 0
        value = try('GET', key)
        if value then
          if type(value) ~= 'string' then break end
          local its_start, its_count = match(value, '^(%d+):(%d+)$')
          if its_start then
            since, count = tonumber(its_start), tonumber(its_count)
          elseif 0 < period and match(value, '^%d+$') then
            local sum = tonumber(value)
            if EXACT <= sum then break end
            count = sum % period
            since = sum - count
          else
            break
          end
          if EXACT <= since or EXACT <= count or (0 < period and since % period ~= 0) then
            break
          end
        end

        local expires_in -- microseconds from now to the expiry; nil if no state must be written
        while true do
          -- `current`
          local at, start = now, nil
          if at < since then at = since end
          if 0 < period then
            start = at - at % period
            reset = start - now + period
          else
            local first, second, third, fourth = unpack('<dddd', ARGV[current_record + 2], 33)
            if first <= now and now < fourth then
              if at < second then start, reset = first, second - now
              elseif at < third then start, reset = second, third - now
              else start, reset = third, fourth - now end
            end
          end
          if not start then
            code, remaining, retry, reset = STALE, 0, now, 0
          else
            local fresh = since < start
            if fresh then since, count = start, 0 end
            if act == REFUND then
              code, count = REFUNDED, count - hits
              if count < 0 then count = 0 end
            else
              count = count + hits
              if EXACT <= count then count = EXACT - 1 end
              local needed = 2 <= flags and hits == 0 and 1 or hits
              code = limit < needed and NEVER or DENY
              if count + needed - hits <= limit then code = ALLOW end
            end
            if fresh or hits ~= 0 then expires_in = reset end
            remaining, retry = limit - count, code == DENY and reset or 0
            if remaining < 0 then remaining = 0 end
            -- A count of zero is not stored: the key is deleted or not created.
            if count == 0 then since, expires_in = 0, expires_in or 0 end
          end
          if from == last then break end
          add_reply(code, remaining, retry, reset)
          from = from + 1
          current_record = plan[from]
          strategy, its_act, group, flags, its_hits, limit, period, burst, tick =
            unpack(RECORD, ARGV[current_record + 2])
          act, hits = its_act, its_hits
        end

        if act ~= QUERY and expires_in then
          if count == 0 then
            if value then call('DEL', key) end
          else
            local state
            if count < half then
              state = format('%.0f', since + count)
            else
              state = format('%.0f:%.0f', since, count)
            end
            call('SET', key, state, 'PXAT', expiry(expires_in))
          end
        end
      end
    end

