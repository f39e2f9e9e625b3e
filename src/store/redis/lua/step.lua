-- The strategies as one function, for scripts that do more than charge
-- a counter. It works on the counter KEYS[1] under the record ARGV[3].

-- Charges `hits` and returns code, remaining, retry after and reset
-- after. With AGAIN as value, a GCRA continues from the step before,
-- even from a trial. Several steps then cost one write, by the last.
function step(act, hits, value)
  local key, from, last = KEYS[1], 1, 1
  local ahead, changed, lives
  local code, remaining, retry, reset, through = NOT_UNDERSTOOD, 0, 0, 0, nil
  repeat
