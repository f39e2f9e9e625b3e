  -- kernel/rate/fixed_window.rs.
  --
  -- State, of a window every `period`: one integer, the window's start in microseconds plus the count, as long
  -- as the count is below half a period. So INCRBY alone counts, and its answer says which window it
  -- was: the sum of two halves never reaches the next. Anything larger, and a calendar's count: the
  -- text start:count. Both forms are read wherever they are met.
  if strategy == 2 or strategy == 3 then
    local half = period / 2
    if act == CHARGE and 0 < hits and hits < half and limit < half then
      local sum = try('INCRBY', key, hits == 1 and '1' or format('%d', hits))
      if type(sum) == 'number' then
        local start = now - now % period
        local count = sum - start
        if count < hits or half <= count then
          if sum < hits or EXACT <= sum then
            call('DECRBY', key, format('%d', hits))
            return NOT_UNDERSTOOD, 0, 0, 0
          end
          local since = sum - sum % period
          if since < start then
            count = hits
            call('SET', key, format('%.0f', start + count), 'PXAT', expiry(start + period - now))
          else
            -- The clock stepped back, or the count is no longer small.
            start, count = since, sum - since
            if half <= count then
              local value = format('%.0f:%.0f', start, count)
              call('SET', key, value, 'PXAT', expiry(start - now + period))
            end
          end
        end
        local reset = start - now + period
        if count <= limit then return ADMIT, limit - count, 0, reset end
        if limit < hits then return NEVER, 0, 0, reset end
        return DENY, 0, reset, reset
      end
      -- Whatever INCRBY did not understand, or was not allowed to do, is looked at below.
    end

    local since, before = 0, 0
    local value = try('GET', key)
    if value then
      if type(value) ~= 'string' then return NOT_UNDERSTOOD, 0, 0, 0 end
      local start, count = match(value, '^(%d+):(%d+)$')
      if start then
        since, before = tonumber(start), tonumber(count)
      elseif 0 < period and match(value, '^%d+$') then
        local sum = tonumber(value)
        if EXACT <= sum then return NOT_UNDERSTOOD, 0, 0, 0 end
        before = sum % period
        since = sum - before
      else
        return NOT_UNDERSTOOD, 0, 0, 0
      end
      if EXACT <= since or EXACT <= before or (0 < period and since % period ~= 0) then
        return NOT_UNDERSTOOD, 0, 0, 0
      end
    end

    -- current
    local at, start, reset = now, 0, 0
    if at < since then at = since end
    if 0 < period then
      start = at - at % period
      reset = start - now + period
    else
      local first, second, third, last = unpack('<dddd', record, 33)
      if now < first or last <= now then return STALE, now, 0, 0 end
      if at < second then start, reset = first, second - now
      elseif at < third then start, reset = second, third - now
      else start, reset = third, last - now end
    end
    local fresh, count = since < start, before
    if fresh then since, count = start, 0 end

    local code
    if act == REFUND then
      code, count = REFUNDED, count - hits
      if count < 0 then count = 0 end
    else
      count = count + hits
      if EXACT <= count then count = EXACT - 1 end
      code = (count <= limit and ADMIT) or (limit < hits and NEVER) or DENY
    end
    if act ~= ASK then
      if count == 0 then
        if value then call('DEL', key) end
      elseif fresh or hits ~= 0 then
        local state
        if count < half then
          state = format('%.0f', since + count)
        else
          state = format('%.0f:%.0f', since, count)
        end
        call('SET', key, state, 'PXAT', expiry(reset))
      end
    end
    local remaining = limit - count
    if remaining < 0 then remaining = 0 end
    return code, remaining, code == DENY and reset or 0, reset
  end

