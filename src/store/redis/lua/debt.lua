-- Variables that borrow.lua and hold.lua share with the functions of step.lua and counter.lua.
-- The functions are created at first use, because creating them costs more than a plain message.

-- Values derived from a GCRA record, as in plan.lua.
local worked_out, capacity, at, under, tenth

-- AGAIN, passed as a value, continues a GCRA from the step before. The others are the results of
-- that step: the debt, true if it is not yet written, and the expiry of the stored state.
local AGAIN, debt, unwritten, lived = {}, nil, nil, nil

local step, mark, refund, put

