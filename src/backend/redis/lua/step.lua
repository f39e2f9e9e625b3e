-- What is done to one counter, KEYS[1], by the record ARGV[3]: the strategies as one function, for the scripts
-- that do more to a counter than charge it.

-- What the record of a GCRA comes to, as in `plan.lua`.
local worked_out, capacity, at, under, tenth

-- What asks to go on from the last step, and of a GCRA after it: what the debt came to, whether that has yet to be written,
-- and until when lives what has been.
local AGAIN, debt, unwritten, lived = {}, nil, nil, nil

-- Puts `hits` to the counter: code, remaining, retry after, reset after. With AGAIN for its value a GCRA is taken up where the
-- step before left it, what was only asked among it: so that several are one step to the store, which the last writes.
local function step(act, hits, value)
  local key, from, last = KEYS[1], 1, 1
  local ahead, changed, lives
  local code, remaining, retry, reset, through = NOT_UNDERSTOOD, 0, 0, 0, nil
  repeat
