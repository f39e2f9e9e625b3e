------------------------------- MODULE Budget -------------------------------
(* Requests that reserve an estimate in two budgets, and settle the actual amount when they end.

   Covered: messages that are lost, late, repeated and reordered; requests that never end; holds that
   expire or are renewed; budgets with periods of different lengths; a store that fails over.

   A message may arrive at any time, again, or never. The network therefore needs no variable. But no
   message arrives later than Late ticks after its request ended: the store has then forgotten the
   request.

   A hold is charged once. The first settle of a request is its last word. Expiries and cancels before
   it are provisional: a cancel may race with the request, which then runs and settles.

   Timers are ticks left. Expiries happen at the tick; the code applies them with its next step, with
   the same result.

   Ghost variables: `law` is the history of each request, from which the invariants compute each
   amount. `told` is the knowledge of the clients. A failover returns `store` and `law` to an older
   state, but never `told`. *)
EXTENDS Integers, FiniteSets

CONSTANTS
    Requests,
    Amount1, Amount2,   \* the amount of each budget in each of its periods
    Length1, Length2,   \* ticks per period
    Horizon,            \* ticks until the model ends
    TimeLimit,          \* ticks until a hold expires; a request that ended is known for as long
    Late,               \* ticks after the end of a request in which its messages may arrive
    Estimates, Costs,
    Charges,            \* TRUE: an expiry charges the held amount. FALSE: it releases it
    Strangers,          \* TRUE: a request without a hold may settle
    Failovers,          \* maximum failovers of the store
    Lag,                \* maximum steps that the copy of the store lacks
    Waits,              \* TRUE: the store replies after the copy has the step
    Flaw                \* a flawed design; "none" is the real one

VARIABLES
    now,
    store,      \* the store's state: the entries, settled amounts and excess of each budget
    law,        \* see above
    copy,       \* the store's state, and `law`, after a failover
    behind,     \* steps that the copy lacks
    faults,     \* failovers so far
    told        \* see above

vars == <<now, store, law, copy, behind, faults, told>>

Budgets == {1, 2}
Amount == <<Amount1, Amount2>>
Length == <<Length1, Length2>>
Periods(b) == 0 .. (Horizon \div Length[b])
Period(b) == now \div Length[b]

Max(a, b) == IF a < b THEN b ELSE a

RECURSIVE Sum(_, _)
Sum(S, f) == IF S = {} THEN 0 ELSE LET x == CHOOSE x \in S : TRUE IN f[x] + Sum(S \ {x}, f)

NoEntry == [state |-> "none", amount |-> 0, period |-> 0, left |-> 0]
NoHistory == [phase |-> "new", held |-> 0, bill |-> 0, over |-> 0, took |-> <<0, 0>>, left |-> 0,
              canceled |-> FALSE]
NoReply == [held |-> 0, canceled |-> FALSE, ended |-> FALSE, cost |-> 0]

Init ==
    /\ now = 0
    /\ store = [b \in Budgets |-> [book |-> [r \in Requests |-> NoEntry],
                                   settled |-> [p \in Periods(b) |-> 0],
                                   excess |-> [p \in Periods(b) |-> 0]]]
    /\ law = [r \in Requests |-> NoHistory]
    /\ copy = [store |-> store, law |-> law]
    /\ behind = 0
    /\ faults = 0
    /\ told = [r \in Requests |-> NoReply]

-----------------------------------------------------------------------------
(* The replies. *)

\* A client keeps the first settle that it learns.
Learnt(t, l) ==
    IF t.ended THEN t
    ELSE IF l.phase \in {"ended", "over"} THEN [NoReply EXCEPT !.ended = TRUE, !.cost = l.bill]
    ELSE IF l.canceled THEN [NoReply EXCEPT !.canceled = TRUE]
    ELSE IF l.phase = "open" /\ ~t.canceled THEN [t EXCEPT !.held = l.held]
    ELSE t

AllLearnt(l) == [r \in Requests |-> Learnt(told[r], l[r])]

\* A step of the store. A step that changes nothing is left out.
Step(s, l) ==
    /\ <<s, l>> # <<store, law>>
    /\ Failovers = 0 \/ behind < Lag
    /\ store' = s /\ law' = l
    /\ behind' = (IF Failovers = 0 THEN 0 ELSE behind + 1)
    /\ told' = (IF Failovers = 0 \/ Waits THEN told ELSE AllLearnt(l))
    /\ UNCHANGED <<now, copy, faults>>

Copy ==
    /\ 0 < behind
    /\ copy' = [store |-> store, law |-> law]
    /\ behind' = 0
    /\ told' = (IF Waits THEN AllLearnt(law) ELSE told)
    /\ UNCHANGED <<now, store, law, faults>>

FailOver ==
    /\ faults < Failovers
    /\ faults' = faults + 1
    /\ store' = copy.store /\ law' = copy.law
    /\ behind' = 0
    /\ UNCHANGED <<now, copy, told>>

\* The flaw that the store replies to a repeated message at once, because it changes nothing.
ReplyEarly(r) ==
    /\ Flaw = "early_reply"
    /\ told' = [told EXCEPT ![r] = Learnt(@, law[r])]
    /\ UNCHANGED <<now, store, law, copy, behind, faults>>

-----------------------------------------------------------------------------
(* The requests. *)

Comes(r) == law[r].phase # "over"

Open(s, b, p) == {r \in Requests : s[b].book[r].state = "open" /\ s[b].book[r].period = p}
HeldIn(s, b, p) == Sum(Open(s, b, p), [r \in Requests |-> s[b].book[r].amount])

Free(b) == Amount[b] - store[b].settled[Period(b)]
               - IF Flaw \in {"unchecked", "counter"} THEN 0 ELSE HeldIn(store, b, Period(b))

Hold(b, r, a) ==
    [store[b] EXCEPT !.book[r] = [state |-> "open", amount |-> a, period |-> Period(b), left |-> TimeLimit],
                     !.settled[Period(b)] = @ + IF Flaw = "counter" THEN a ELSE 0]

\* A denied reserve changes nothing. A reserve of a known request changes nothing.
Reserve(r, a) ==
    \E fits \in {{b \in Budgets : a <= Free(b)}} :
        /\ Comes(r)
        /\ \A b \in Budgets : store[b].book[r].state = "none"
        /\ \/ /\ fits = Budgets
              /\ Step([b \in Budgets |-> Hold(b, r, a)],
                      [law EXCEPT ![r] = [NoHistory EXCEPT !.phase = "open", !.held = a, !.left = TimeLimit,
                                                           !.took = <<Period(1), Period(2)>>]])
           \/ /\ fits = {1} /\ Flaw = "first"
              /\ Step([store EXCEPT ![1] = Hold(1, r, a)], law)

Renew(r) ==
    /\ Comes(r)
    /\ \A b \in Budgets : store[b].book[r].state = "open"
    /\ Step([b \in Budgets |-> [store[b] EXCEPT !.book[r].left = TimeLimit]],
            [law EXCEPT ![r].left = TimeLimit])

\* The amount that counts for an entry in the settled amount.
Counted(e) == IF e.state = "correctable" \/ (e.state = "open" /\ Flaw = "counter") THEN e.amount ELSE 0

\* Ends a hold with the charge c. Only a settle is final.
Ended(b, r, c, settles) ==
    LET e == store[b].book[r]
        p == IF e.state = "none" \/ Flaw = "period" THEN Period(b) ELSE e.period
        s == IF settles \/ Flaw = "final" THEN "final" ELSE "correctable"
    IN
    IF e.state = "final"
    THEN [store[b] EXCEPT !.settled[p] = @ + IF Flaw = "twice" THEN c ELSE 0]
    ELSE [store[b] EXCEPT !.settled[p] = @ + c - Counted(e),
                          !.excess[p] = @ + Max(0, c - e.amount),
                          !.book[r] = [state |-> s, amount |-> c, period |-> p, left |-> TimeLimit]]

\* The first settle counts. The second one is a late or repeated message, or another client.
History(r, c, settles) ==
    LET l == law[r] IN
    IF l.phase \in {"ended", "over"} THEN l
    ELSE [l EXCEPT !.phase = IF settles THEN "ended" ELSE "correctable",
                   !.held = 0, !.bill = c, !.left = Late, !.canceled = @ \/ ~settles,
                   !.over = Max(0, c - IF l.phase = "correctable" THEN l.bill ELSE l.held),
                   !.took = IF l.phase = "new" THEN <<Period(1), Period(2)>> ELSE @]

\* A request without a hold ends only if strangers may.
MayEnd(r) == Comes(r) /\ (Strangers \/ law[r].phase # "new" \/ told[r] # NoReply)

End(r, c, settles) ==
    Step([b \in Budgets |-> Ended(b, r, c, settles)], [law EXCEPT ![r] = History(r, c, settles)])

Settle(r, c) == MayEnd(r) /\ End(r, c, TRUE)

Cancel(r) == MayEnd(r) /\ End(r, 0, FALSE)

\* The cost is unknown: an open hold settles with its own amount. After an expiry or a cancel, nothing
\* changes. An unknown id becomes known without a charge, and a later settle still charges.
EndedHeld(b, r) ==
    LET e == store[b].book[r] IN
    CASE e.state = "open" -> Ended(b, r, e.amount, TRUE)
      [] e.state = "none" -> Ended(b, r, 0, FALSE)
      [] OTHER -> IF Flaw = "held_final" THEN [store[b] EXCEPT !.book[r].state = "final"] ELSE store[b]

HistoryHeld(r) ==
    CASE law[r].phase = "open" -> History(r, law[r].held, TRUE)
      [] law[r].phase = "new" -> History(r, 0, FALSE)
      [] OTHER -> law[r]

SettleHeld(r) ==
    /\ MayEnd(r)
    /\ Step([b \in Budgets |-> EndedHeld(b, r)], [law EXCEPT ![r] = HistoryHeld(r)])

-----------------------------------------------------------------------------

Older(e) ==
    IF 1 < e.left THEN [e EXCEPT !.left = @ - 1]
    ELSE IF e.state = "open" /\ Flaw # "forgets"
    THEN [e EXCEPT !.state = "correctable", !.left = TimeLimit, !.amount = IF Charges THEN @ ELSE 0]
    ELSE NoEntry

\* The holds of a period that expire now. Those of the design "counter" are settled already.
Expiring(s, b, p) ==
    IF ~Charges \/ Flaw \in {"forgets", "counter"} THEN {}
    ELSE {r \in Open(s, b, p) : s[b].book[r].left = 1}

Aged(s) == [b \in Budgets |->
    [book |-> [r \in Requests |-> Older(s[b].book[r])],
     settled |-> [p \in Periods(b) |->
        s[b].settled[p] + Sum(Expiring(s, b, p), [r \in Requests |-> s[b].book[r].amount])],
     excess |-> s[b].excess]]

OlderHistory(l) ==
    IF l.phase = "new" THEN l
    ELSE IF 1 < l.left THEN [l EXCEPT !.left = @ - 1]
    ELSE IF l.phase = "open"
    THEN [l EXCEPT !.phase = "correctable", !.left = Late, !.held = 0,
                   !.bill = IF Charges THEN l.held ELSE 0]
    ELSE [l EXCEPT !.phase = "over", !.left = 0]

AgedHistory(all) == [r \in Requests |-> OlderHistory(all[r])]

Tick ==
    /\ now < Horizon
    /\ now' = now + 1
    /\ store' = Aged(store) /\ law' = AgedHistory(law)
    /\ copy' = (IF Failovers = 0 THEN copy ELSE [store |-> Aged(copy.store), law |-> AgedHistory(copy.law)])
    /\ UNCHANGED <<behind, faults, told>>

Next ==
    \/ Tick
    \/ Copy
    \/ FailOver
    \/ \E r \in Requests :
        \/ Renew(r) \/ Cancel(r) \/ SettleHeld(r) \/ ReplyEarly(r)
        \/ \E a \in Estimates : Reserve(r, a)
        \/ \E c \in Costs : Settle(r, c)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------

Took(b, p) == {r \in Requests : law[r].phase # "new" /\ law[r].took[b] = p}

\* The usage of each period is the sum of what its requests settled, or what their expiry charged. So
\* each hold is charged once, in its period: by the first settle, also after an expiry or a cancel.
Bills == \A b \in Budgets : \A p \in Periods(b) :
    store[b].settled[p] = Sum(Took(b, p), [r \in Requests |-> law[r].bill])

\* The exported excess is what requests cost more than they held.
Over(b, p) == Sum(Took(b, p), [r \in Requests |-> law[r].over])
Exported == \A b \in Budgets : \A p \in Periods(b) : store[b].excess[p] = Over(b, p)

\* Settled and held amounts exceed the amount at most by the excess, in each period.
Theorem == \A b \in Budgets : \A p \in Periods(b) :
    store[b].settled[p] + HeldIn(store, b, p) <= Amount[b] + Over(b, p)

\* If no request costs more than it holds, they exceed the amount at most by the cost of requests that
\* were canceled and still settled: a cancel frees the amount for other requests.
Revived(b, p) == Sum(Took(b, p), [r \in Requests |-> IF law[r].canceled THEN law[r].bill ELSE 0])
Exact == \A b \in Budgets : \A p \in Periods(b) :
    store[b].settled[p] + HeldIn(store, b, p) <= Amount[b] + Revived(b, p)

\* A request holds its amount in all budgets or in none.
AllOrNone == \A r \in Requests : \A b \in Budgets :
    LET e == store[b].book[r]  l == law[r] IN
    CASE l.phase = "open" -> e.state = "open" /\ e.amount = l.held /\ e.period = l.took[b] /\ e.left = l.left
      [] l.phase = "new" -> e = NoEntry
      [] OTHER -> e.state # "open"

\* What a client knows is true, also after a failover.
Lost(r) == \/ told[r].ended /\ ~(law[r].phase \in {"ended", "over"} /\ law[r].bill = told[r].cost)
           \/ told[r].canceled /\ ~law[r].canceled
           \/ 0 < told[r].held /\ law[r].phase = "new"
Kept == \A r \in Requests : ~Lost(r)

\* The amount that a client has settled, or may still spend. The next laws are about a budget with one
\* period.
Owed(r) == IF told[r].ended THEN told[r].cost ELSE told[r].held
Owing(S) == Sum(S, [r \in Requests |-> Owed(r)])
Single == {b \in Budgets : Horizon < Length[b]}
Ledger == \A b \in Single : Owing(Requests) <= Amount[b] + Over(b, 0)

\* Of a store that loses steps after its reply: what all clients spend exceeds the amount at most by
\* the excess, and by what the requests with a lost step hold or cost.
WithinLoss == \A b \in Single :
    Owing(Requests) <= Amount[b] + Over(b, 0) + Owing({r \in Requests : Lost(r)})

\* These requests are at most as many as the steps that the copy lacked.
FewLost == Cardinality({r \in Requests : Lost(r)}) <= Failovers * Lag
=============================================================================
