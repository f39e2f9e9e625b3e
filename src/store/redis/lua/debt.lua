-- Variables that borrow.lua and hold.lua share with the functions in step.lua and counter.lua.
-- The functions are created at first use, because creating them costs more than a plain message.

-- Values derived from the record of a GCRA limit, as in plan.lua.
local worked_out, capacity, at, under, tenth

-- AGAIN as the argument `value` of `step` continues a GCRA counter from the previous step. The
-- others are the results of that step: the debt, true if the debt is not yet written, and the
-- expiry of the stored state.
local AGAIN, debt, unwritten, lived = {}, nil, nil, nil

local step, mark, refund, put

