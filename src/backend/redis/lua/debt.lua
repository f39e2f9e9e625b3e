-- What the scripts that do more to a counter than charge it share with the functions of `step.lua` and `counter.lua`. These
-- are made where they are first needed: it costs the store more than a message that needs none of them.

-- What the record of a GCRA comes to, as in `plan.lua`.
local worked_out, capacity, at, under, tenth

-- What asks to go on from the last step, and of a GCRA after it: what the debt came to, whether that has yet to be written,
-- and until when lives what has been.
local AGAIN, debt, unwritten, lived = {}, nil, nil, nil

local step, mark, refund, put

