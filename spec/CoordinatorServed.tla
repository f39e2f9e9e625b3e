-------------------------- MODULE CoordinatorServed --------------------------
(* The same coordinator with immediate messages, for liveness: a handoff ends. If the limit is
   smaller than the fleet, every replica with demand gets a turn. The order is as in
   crates/kernel/src/coordinator/split.rs: replicas in their turn, then waiting replicas, longest
   first, then replicas after their turn. Coordinator.tla covers safety, for any split. *)
EXTENDS Naturals, FiniteSets

CONSTANTS
    N, Ceiling,
    Variant     \* "none", or the omitted rule

VARIABLES
    hold,   \* the active share
    i,      \* requests in flight
    held,   \* in the coordinator: the confirmed share, the granted share, and requests in flight
    granted,
    seen,
    place,  \* the position of each replica, longest waiting first
    over    \* its turn is over

vars == <<hold, i, held, granted, seen, place, over>>

Members == 1..N
Max(a, b) == IF a < b THEN b ELSE a
Min(a, b) == IF a < b THEN a ELSE b
Less(a, b) == IF a < b THEN 0 ELSE a - b

\* Replica 1 has the whole limit and uses it.
Init ==
    /\ hold = [m \in Members |-> IF m = 1 THEN Ceiling ELSE 0]
    /\ i = [m \in Members |-> IF m = 1 THEN Ceiling ELSE 0]
    /\ held = hold
    /\ granted = hold
    /\ seen = i
    /\ place = [m \in Members |-> m]
    /\ over = [m \in Members |-> FALSE]

Class(m) == IF granted[m] = 0 THEN 1 ELSE IF over[m] THEN 2 ELSE 0
Ahead(m) == {k \in Members : Class(k) < Class(m) \/ (Class(k) = Class(m) /\ place[k] < place[m])}
Fair(m) ==
    IF Ceiling < N THEN IF Cardinality(Ahead(m)) < Ceiling THEN 1 ELSE 0
    ELSE (Ceiling \div N) + IF m <= Ceiling % N THEN 1 ELSE 0

Exposure(m) == Max(Max(held[m], granted[m]), seen[m])
Reserved(m) ==
    LET S[k \in 0..N] == IF k = 0 THEN 0 ELSE S[k - 1] + IF k = m THEN 0 ELSE Exposure(k)
    IN  S[N]

\* Permits for waiting replicas ahead of m. They are not free for m.
Owed(m) == IF Ceiling < N /\ Variant # "notowed" THEN Cardinality({k \in Ahead(m) : granted[k] = 0}) ELSE 0
Free(m) == Less(Less(Ceiling, Reserved(m)), Owed(m))

\* A heartbeat, its reply, and the application of the reply.
Round(m) ==
    \E share \in {IF Variant = "keeps" THEN Max(hold[m], Min(Fair(m), Free(m))) ELSE Min(Fair(m), Max(hold[m], Free(m)))} :
        /\ held' = [held EXCEPT ![m] = hold[m]]
        /\ granted' = [granted EXCEPT ![m] = share]
        /\ hold' = [hold EXCEPT ![m] = share]
        /\ seen' = [seen EXCEPT ![m] = i[m]]
        /\ IF (share = 0) = (granted[m] = 0)
           THEN UNCHANGED <<place, over>>
           ELSE /\ place' = [k \in Members |-> IF k = m THEN N
                             ELSE IF place[m] < place[k] THEN place[k] - 1 ELSE place[k]]
                /\ over' = [over EXCEPT ![m] = FALSE]
        /\ UNCHANGED i

Admit(m) ==
    /\ i[m] < hold[m]
    /\ i' = [i EXCEPT ![m] = @ + 1]
    /\ UNCHANGED <<hold, held, granted, seen, place, over>>

End(m) ==
    /\ i[m] > 0
    /\ i' = [i EXCEPT ![m] = @ - 1]
    /\ UNCHANGED <<hold, held, granted, seen, place, over>>

TurnEnds(m) ==
    /\ Ceiling < N /\ granted[m] > 0 /\ ~over[m]
    /\ over' = [over EXCEPT ![m] = TRUE]
    /\ UNCHANGED <<hold, i, held, granted, seen, place>>

Next == \E m \in Members : Round(m) \/ Admit(m) \/ End(m) \/ TurnEnds(m)

Fairness == \A m \in Members : WF_vars(Round(m)) /\ WF_vars(End(m)) /\ WF_vars(TurnEnds(m))

Spec == Init /\ [][Next]_vars /\ Fairness

InFlightFits ==
    LET S[k \in 0..N] == IF k = 0 THEN 0 ELSE S[k - 1] + i[k] IN S[N] <= Ceiling

Served == \A m \in Members : []<>(hold[m] > 0)
Handed == <>[](\A m \in Members : hold[m] = Fair(m))
=============================================================================
