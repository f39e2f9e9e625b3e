-- What is done to one counter, KEYS[1], by the record ARGV[3]: the strategies as one function, for the scripts
-- that do more to a counter than charge it.

-- Puts `hits` to the counter: code, remaining, retry after, reset after. With AGAIN for its value a GCRA is taken up where the
-- step before left it, what was only asked among it: so that several are one step to the store, which the last writes.
function step(act, hits, value)
  local key, from, last = KEYS[1], 1, 1
  local ahead, changed, lives
  local code, remaining, retry, reset, through = NOT_UNDERSTOOD, 0, 0, 0, nil
  repeat
