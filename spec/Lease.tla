-------------------------------- MODULE Lease --------------------------------
(* Hits that several replicas lease from one counter and spend without a store call.

   Covered: messages that are lost, duplicated, late and reordered; replicas that crash; leases that
   expire on two clocks; partial grants; hits above 1; hits returned alone or with a check; a window
   that rolls over, or a debt that drains.

   Time is counted in ticks, and all durations are ticks left. Behaviors therefore have no end, and
   states are finite. A replica may use any expiry up to the latest on its clock. The model uses the
   latest, because an earlier expiry only allows less.

   A received message stays in its set: it may arrive again at any time, or never.

   Ghost variable: `room` counts the hits that the limit and the hits outstanding at the start of an
   interval still allow. It is the minimum over all intervals from a tick until now. If leases end
   with their window, outstanding hits allow nothing. The theorem: `room` is never negative. *)
EXTENDS Integers, FiniteSets

CONSTANTS
    Members,    \* replicas; a crashed one is not reused, so a restart is another replica
    Limit,      \* hits per window, or the burst
    Budget,     \* max_overshoot; not used if Coupled
    Bucket,     \* TRUE: a debt that drains by one hit per tick. FALSE: windows
    Coupled,    \* leases end with their window
    Occupying,      \* outstanding hits occupy the limit, and are charged when they are reported
    Length,     \* ticks per window
    Term,       \* lifetime of a lease in ticks
    Messages,   \* maximum messages per replica
    MostHits,   \* maximum hits per check
    Want,       \* hits to lease beyond the check's own
    Doubled,    \* messages may arrive again
    Less,       \* claimed reduction of the budget; 0 claims the theorem
    Flaw        \* a flawed design; "none" is the real one

VARIABLES
    pos,        \* ticks since the window began
    count,      \* charged hits: in this window, or in debt
    room,       \* see above
    book,       \* the store's record of each replica
    ledger,     \* each replica's own record
    asks,       \* messages to the store
    answers     \* messages to the replicas

vars == <<pos, count, room, book, ledger, asks, answers>>

Min(a, b) == IF a < b THEN a ELSE b
Max(a, b) == IF a < b THEN b ELSE a

RECURSIVE Sum(_, _)
Sum(S, f) == IF S = {} THEN 0 ELSE LET m == CHOOSE m \in S : TRUE IN f[m] + Sum(S \ {m}, f)

Held == [m \in Members |-> book[m].held]
Balances == [m \in Members |-> ledger[m].balance]
Out == Sum(Members, Held)

NoRecord == [num |-> 0, lease |-> 0, held |-> 0, fresh |-> 0, granted |-> 0, passed |-> TRUE,
             left |-> 0, kept |-> 0]
NoHits == [balance |-> 0, left |-> 0, lease |-> 0, flight |-> 0, age |-> 0, next |-> 1]

\* Hits that an interval from now on allows at once. If leases end with their window, outstanding
\* hits allow nothing: they would exceed the limit.
Allowed(out) == Limit + (IF Coupled \/ Occupying THEN 0 ELSE IF Less = 0 THEN out ELSE Budget - Less)

Init ==
    /\ pos = 0 /\ count = 0
    /\ room = Allowed(0)
    /\ book = [m \in Members |-> NoRecord]
    /\ ledger = [m \in Members |-> NoHits]
    /\ asks = {} /\ answers = {}

-----------------------------------------------------------------------------
(* A replica. *)

\* The balance includes the hits of an undecided check, which other checks cannot spend.
Spend(m, h) ==
    /\ h <= ledger[m].balance
    /\ ledger' = [ledger EXCEPT ![m].balance = @ - h]
    /\ room' = room - h
    /\ UNCHANGED <<pos, count, book, asks, answers>>

\* Pending replies. Other replies are never applied, so they are dropped.
Awaited(all, l) == {a \in all : Flaw = "old_answer" \/ l[a.m].flight = a.num}

Send(m, hits, want, held, returned, flight) ==
    \E l \in {ledger[m]} :
    /\ l.next <= Messages
    /\ asks' = asks \cup {[m |-> m, num |-> l.next, hits |-> hits, want |-> want, held |-> held,
                           returned |-> returned, lease |-> l.lease]}
    /\ ledger' = [ledger EXCEPT ![m] = [l EXCEPT !.balance = held, !.next = @ + 1, !.age = 0,
                                                 !.flight = IF flight THEN l.next ELSE 0]]
    /\ answers' = Awaited(answers, ledger')
    /\ UNCHANGED <<pos, count, room, book>>

\* A check that exceeds the balance. The message returns the balance.
Borrow(m, h) ==
    /\ ledger[m].flight = 0 /\ ledger[m].balance < h
    /\ Send(m, h, Want, 0, ledger[m].balance, TRUE)

\* A refill before the balance is empty.
Ahead(m) ==
    /\ ledger[m].flight = 0 /\ 0 < ledger[m].balance
    /\ Send(m, 0, Want, ledger[m].balance, 0, TRUE)

\* Returns some or all hits, without waiting for the reply. Supersedes pending messages.
GiveBack(m, k) ==
    /\ 0 < k /\ k <= ledger[m].balance
    /\ Send(m, 0, 0, ledger[m].balance - k, k, FALSE)

Lost(m) ==
    /\ ledger[m].flight # 0
    /\ ledger' = [ledger EXCEPT ![m].flight = 0, ![m].age = 0]
    /\ answers' = Awaited(answers, ledger')
    /\ UNCHANGED <<pos, count, room, book, asks>>

Crash(m) ==
    /\ ledger[m].next <= Messages
    /\ ledger' = [ledger EXCEPT ![m] = [NoHits EXCEPT !.next = Messages + 1]]
    /\ answers' = Awaited(answers, ledger')
    /\ UNCHANGED <<pos, count, room, book, asks>>

\* The lifetime of the lease on the replica: it counts from the time of sending.
Taken(a, l) == LET late == IF Flaw = "members_clock" THEN 1 ELSE 0 IN Max(0, a.good - l.age + late)

Settle(a) ==
    \E l \in {ledger[a.m]} :
    \E left \in {Taken(a, l)} :
    \E credit \in {IF Flaw = "each_waiter" THEN 2 * a.granted ELSE a.granted} :
    \E balance \in {IF left = 0 THEN 0 ELSE Min(l.balance, a.kept) + credit} :
        /\ IF Flaw = "old_answer" THEN l.flight # 0 /\ a.num <= l.flight ELSE a.num = l.flight
        /\ ledger' = [ledger EXCEPT ![a.m] =
                [l EXCEPT !.balance = balance, !.left = IF balance = 0 THEN 0 ELSE left,
                          !.flight = 0, !.age = 0, !.lease = IF a.granted = 0 THEN @ ELSE a.num]]
        /\ answers' = Awaited(answers, ledger')
        /\ UNCHANGED <<pos, count, room, book, asks>>

-----------------------------------------------------------------------------
(* The store. *)

Reply(q, granted, kept, good) ==
    answers' = Awaited(answers \cup {[m |-> q.m, num |-> q.num, granted |-> granted, kept |-> kept,
                                       good |-> good]}, ledger)

Good == IF Coupled /\ Flaw # "outlives_window" THEN Min(Term, Length - pos) ELSE Term

\* The returned hits that are uncharged.
Back(q, r, kept, fresh) ==
    LET listed == Min(r.held, kept + q.returned) - kept
        ours == IF q.lease = r.lease THEN Min(fresh, listed) ELSE 0
    IN
    IF Flaw = "back_too_late" /\ r.held = 0 THEN Min(q.returned, count) ELSE ours

\* The hits that the limit and the budget leave for a lease, with `charged` hits charged.
Most(q, r, kept, charged) ==
    LET law == Limit - charged - IF Occupying /\ Flaw # "unseen" THEN Out - r.held + kept ELSE 0
        budget == Budget - (Out - r.held) - kept
    IN Max(0, Min(q.want, IF Coupled THEN law ELSE Min(law, budget)))

\* Messages stay if they may arrive again. Otherwise a denied one stays until it is allowed.
Keep(q, passed) == asks' = IF Doubled \/ ~passed THEN asks ELSE asks \ {q}

\* The hits that were spent, or may have been, since the last report. A grant that the replica has not
\* settled is not spent, because the replica ignores the reply from now on.
Spent(q, r, kept) ==
    LET unsettled == IF q.lease # r.lease THEN r.granted ELSE 0 IN
    IF Flaw = "never_charged" THEN 0
    ELSE Max(0, r.held - kept - q.returned - (IF Flaw = "frees_all" THEN r.granted ELSE unsettled))

\* The outstanding hits that the sender of a message does not report as spent or returned.
Occupied(r, kept) == IF Occupying /\ Flaw # "unseen" THEN Out - r.held + kept ELSE 0

\* A new message. \E binds the values, so each is computed once.
Turn(q, r) ==
    \E kept \in {Min(r.held, q.held)} :
    \E fresh \in {Min(r.fresh, Min(r.held, kept + q.returned))} :
    \E back \in {IF Occupying THEN 0 ELSE Back(q, r, kept, fresh)} :
    \E before \in {IF Occupying THEN count + Spent(q, r, kept) ELSE Max(0, count - back)} :
    \E passed \in {before + q.hits + Occupied(r, kept) <= Limit} :
    \E own \in {IF passed THEN q.hits ELSE 0} :
    \E most \in {IF passed THEN Most(q, r, kept, before + own) ELSE 0} :
    \E g \in 0 .. most :
        /\ count' = before + own + IF Occupying THEN 0 ELSE g
        /\ room' = room - own
        /\ book' = [book EXCEPT ![q.m] =
                [num |-> q.num, lease |-> IF g = 0 THEN r.lease ELSE q.num, held |-> kept + g,
                 fresh |-> Min(Max(0, fresh - back), kept) + g, granted |-> g, passed |-> passed,
                 left |-> Good, kept |-> Term]]
        /\ Reply(q, g, kept, Good)
        /\ Keep(q, passed)

\* A known message. A denied check is charged again; otherwise the store only replies.
Repeat(q, r) ==
    \E own \in {IF r.passed THEN 0 ELSE q.hits} :
        /\ count + own + Occupied(r, r.held) <= Limit
        /\ count' = count + own
        /\ room' = room - own
        /\ book' = [book EXCEPT ![q.m].passed = TRUE]
        /\ Reply(q, IF r.left = 0 THEN 0 ELSE r.granted, Max(0, r.held - r.granted), r.left)
        /\ Keep(q, TRUE)

Receive(q) ==
    \E r \in {book[q.m]} :
        /\ \/ r.num < q.num /\ Turn(q, r)
           \/ r.num = q.num /\ (Doubled \/ ~r.passed) /\ (Flaw # "stays_denied" \/ r.passed) /\ Repeat(q, r)
        /\ UNCHANGED <<pos, ledger>>

-----------------------------------------------------------------------------

Older(r) ==
    LET left == Max(0, r.left - 1)
        held == IF left = 0 THEN 0 ELSE r.held
        fresh == IF left = 0 \/ (~Bucket /\ pos + 1 = Length) THEN 0 ELSE r.fresh
    IN
    IF r.kept <= 1 /\ (Flaw # "stays_denied" \/ r.passed) THEN NoRecord
    ELSE [r EXCEPT !.left = left, !.kept = Max(0, @ - 1), !.held = held, !.fresh = fresh,
                   !.granted = IF left = 0 THEN 0 ELSE @]

Aged(l) ==
    LET left == Max(0, l.left - 1) IN
    [l EXCEPT !.left = left, !.balance = IF left = 0 THEN 0 ELSE @,
              !.age = IF l.flight = 0 THEN 0 ELSE Min(@ + 1, Term + 1)]

Tick ==
    \E rolls \in {pos + 1 = Length} :
    \E older \in {[m \in Members |-> Older(book[m])]} :
    \E out \in {Sum(Members, [m \in Members |-> older[m].held])} :
    \E expired \in {IF Occupying /\ Flaw # "expiry_forgets" THEN Out - out ELSE 0} :
        /\ pos' = IF rolls \/ Bucket THEN 0 ELSE pos + 1
        /\ book' = older
        /\ ledger' = [m \in Members |-> Aged(ledger[m])]
        /\ count' = (IF Bucket THEN Max(0, count - 1) ELSE IF rolls THEN 0 ELSE count) + expired
        /\ room' = IF Bucket THEN Min(room + 1, Allowed(out)) ELSE IF rolls THEN Allowed(out) ELSE room
        /\ UNCHANGED <<asks, answers>>

Next ==
    \/ Tick
    \/ \E q \in asks : Receive(q)
    \/ \E a \in answers : Settle(a)
    \/ \E m \in Members :
        \/ Ahead(m) \/ Lost(m) \/ Crash(m)
        \/ \E h \in 1 .. MostHits : Spend(m, h) \/ Borrow(m, h)
        \/ \E k \in 1 .. Limit : GiveBack(m, k)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------

\* In any interval: hits allowed <= hits that the limit allows + hits outstanding at the start.
Theorem == 0 <= room

\* Hits outstanding <= budget.
WithinBudget == Coupled \/ Out <= Budget

\* If leases end with their window, no window allows more hits than the limit.
Admitted == Limit - room
WithinLimit == Coupled => Admitted <= Limit

\* The store lists every hit that a replica may spend, for at least as long.
Listed == \A m \in Members :
    ledger[m].balance <= book[m].held /\ (0 < ledger[m].balance => ledger[m].left <= book[m].left)

\* Every hit that was allowed or can be spent was charged or outstanding. Only returned hits are
\* uncharged.
Charged == Less # 0 \/ Occupying \/ Limit + Sum(Members, Balances) <= count + room

\* With Occupying: the limit has room for all outstanding hits, and they were not charged.
Occupies == ~Occupying \/ count + Out <= Limit
Covered == ~Occupying \/ Limit + Sum(Members, Balances) <= count + room + Out

WithinLaw == 0 <= count /\ count <= Limit

\* A retried check is eventually allowed, if no message arrives twice. Allowed checks leave `asks`.
Waits(m) == \E q \in asks : q.m = m /\ 0 < q.hits
ServedAgain == \A m \in Members : Waits(m) ~> ~Waits(m)

FairSpec == Spec /\ WF_vars(Tick) /\ WF_vars(\E q \in asks : Receive(q))
=============================================================================
