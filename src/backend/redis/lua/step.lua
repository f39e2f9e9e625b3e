-- Takes a member's message about a leased key: what it reports and gives back, the hits of a question,
-- and a grant, by the same arithmetic as kernel/lease/book.rs.
--
-- KEYS[1]  the counter
-- KEYS[2]  a hash in the counter's slot: member -> what is known of it, little-endian, packed, 57 bytes
--            double number      of the last message taken
--            double lease       of the last message granted anything
--            double until       the microsecond at which its lease ends
--            double kept_until  the microsecond at which this is forgotten
--            double mark        where the newest part of `held` was charged: the microsecond at which the
--                               window began, or of the log's entry; 0 for GCRA
--            uint32 held        hits that it may still spend
--            uint32 fresh       how many of these are the newest part
--            uint32 granted     by the last message taken
--            uint32 demand
--            byte   passed      1 when the hits of that message passed
-- ARGV[1]  the instant, as at the top
-- ARGV[2]  the message, little-endian, packed
--            double number, hits, want, demand, held, returned, lease
--            double budget      hits that may be out; -1 when leases end with their window
--            double term        microseconds
--            8 bytes            the member
-- ARGV[3]  the record of the limit, as at the top; its act and hits are not read
--
-- Reply: {code, remaining, retry after, reset after, granted, kept, parked, good for}. Codes and the
-- first four are as at the top; times among those are in ticks of the limit; hits are hits, and good for
-- is microseconds. Beside 3 and 5 all but retry after is 0. Code 6: a later message was taken before.
--
-- Exact: demand is at most 2^20, and budgets and what is left are below 2^32, so that products are below 2^53.
-- The hash expires when the last of its records is to be forgotten. What is given back is listed as given
-- back before it is: a store that has no memory to list it does not give it back either.
-- Commands: those at the top, and HGETALL, HSET, HDEL, LRANGE.

-- What the record of a GCRA comes to, as in `charge.lua`.
local worked_out, capacity, at

-- Puts `hits` to the counter: code, remaining, retry after, reset after.
local function step(act, hits)
  local key, from, last, value = KEYS[1], 1, 1, nil
  local code, remaining, retry, reset, through = NOT_UNDERSTOOD, 0, 0, 0, nil
  repeat
