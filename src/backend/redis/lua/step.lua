-- What is done to one counter, KEYS[1], by the record ARGV[3]: the strategies as one function, for the scripts
-- that do more to a counter than charge it.

-- What the record of a GCRA comes to, as in `charge.lua`.
local worked_out, capacity, at, under

-- Puts `hits` to the counter: code, remaining, retry after, reset after.
local function step(act, hits)
  local key, from, last, value = KEYS[1], 1, 1, nil
  local code, remaining, retry, reset, through = NOT_UNDERSTOOD, 0, 0, 0, nil
  repeat
