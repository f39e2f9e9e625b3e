-- Variables that borrow.lua shares with the functions in charge_counter.lua and counter.lua.
-- The functions are created at first use, because creating them costs more than a plain message.

-- Values derived from the record of a GCRA limit, as in plan.lua.
local derived_for, capacity, at, limit_bytes, tenth, most_debt, tag

-- CONTINUE as the argument `value` of `charge_counter` continues a GCRA counter from the previous
-- step. The others are the results of that step: the debt, true if the debt is not yet written, and
-- the expiry of the stored state.
local CONTINUE, debt, is_unwritten, stored_expiry = {}, nil, nil, nil

local charge_counter, locate_charge, refund, put_record, charge_own, headroom_beside, remove_expired

