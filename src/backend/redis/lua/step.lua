-- What is done to one counter, KEYS[1], by the record ARGV[3]: the strategies as one function, for the scripts
-- that do more to a counter than charge it.

-- What the record of a GCRA comes to, as in `charge.lua`.
local worked_out, capacity, at, under

-- What stood under the key of a GCRA at the last step.
local stood

-- Puts `hits` to the counter: code, remaining, retry after, reset after. Told what stood under a GCRA's key when 0 hits
-- were put to it, it does not read that: what was converted then is converted again, and comes to the same.
local function step(act, hits, value)
  local key, from, last = KEYS[1], 1, 1
  local code, remaining, retry, reset, through = NOT_UNDERSTOOD, 0, 0, 0, nil
  repeat
