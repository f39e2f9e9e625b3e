-- Begins the function `charge_counter`, which charges one counter by any strategy, for leases. It
-- charges the counter KEYS[1] by the record ARGV[3].

-- Charges `hits` and returns code, remaining, retry after and reset after. If `value` is CONTINUE,
-- a GCRA counter continues from the result of the previous step, even of a query. Several steps
-- then need only one write, that of the last.
function charge_counter(act, hits, value)
  local key, from, last = KEYS[1], 1, 1
  local ahead, changed, expires_at
  local code, remaining, retry, reset, through = UNREADABLE, 0, 0, 0, nil
  repeat
