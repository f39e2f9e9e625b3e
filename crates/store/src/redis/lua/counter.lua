-- Ends the function `charge_counter`, which charge_counter.lua begins. Then defines `locate_charge`
-- (the charge of the newest hits) and `refund`.
  until true
  debt, is_unwritten, stored_expiry = ahead, changed and act == QUERY, expires_at
  return code, remaining, retry, reset
end

local function min(a, b) if b < a then return b end return a end

-- `locate_charge`, crates/kernel/src/lease/counter.rs.
function locate_charge()
  if strategy == 1 then return 0 end
  if strategy == 5 then return now end
  local value = call('GET', KEYS[1])
  if not value then return -1 end
  if strategy == 4 then
    local _, began = unpack('<Bd', value)
    return began
  end
  local start = match(value, '^(%d+):')
  if start then return tonumber(start) end
  local sum = tonumber(value)
  return sum - sum % period
end

-- `refund_at`, crates/kernel/src/rate/sliding_log.rs. It also lowers the totals of all later log
-- entries, so it costs O(later entries). These are few, because the hits of a lease are among the
-- newest.
local function refund_at(instant, hits)
  local size = call('LLEN', KEYS[1])
  local low, high = 0, size
  while low < high do
    local middle = floor((low + high) / 2)
    if unpack('<d', call('LINDEX', KEYS[1], middle)) < instant then
      low = middle + 1
    else
      high = middle
    end
  end
  local runs = call('LRANGE', KEYS[1], low, -1)
  if not runs[1] then return end
  local its_at, _, its_own = unpack('<ddI4', runs[1])
  if its_at ~= instant then return end
  local taken = min(hits, its_own)
  if low == 0 then
    call('DEL', KEYS[1])
  else
    call('LTRIM', KEYS[1], 0, low - 1)
  end
  for i = 1, #runs do
    local ran_at, total, ran = unpack('<ddI4', runs[i])
    if i == 1 then ran = ran - taken end
    if 0 < ran then
      call('RPUSH', KEYS[1], pack('<ddI4', ran_at, (total - taken) % 4503599627370496, ran))
    end
  end
end

-- `refund`, crates/kernel/src/lease/counter.rs.
function refund(charged_at, hits)
  -- A charge of 0 hits moves the counter to its current window. The start of that window then shows
  -- whether `charged_at` is still counted.
  charge_counter(CHARGE, 0)
  if strategy == 5 then
    refund_at(charged_at, hits)
  elseif locate_charge() == charged_at then
    charge_counter(REFUND, hits)
  end
end

