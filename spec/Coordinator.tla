---------------------------- MODULE Coordinator ----------------------------
(* One concurrency limit for a fleet: the cap on shares, acknowledgement by number,
   self-fencing, incarnations of the replicas and the coordinator, and the grace after a loss
   of state, as in crates/kernel/src/coordinator.

   Fairness is left open: a grant may be any share that the cap allows. The invariants
   therefore cover every split.

   A grant has the number of the heartbeat that it answers. No number is granted twice in one
   incarnation of the coordinator.

   Timers count down in ticks of the store's clock. A replica's clock may stop for Drift ticks
   over the life of a grant. A replica without actions is paused. No action loses a message:
   an undelivered message is lost or late. With Late, messages stay in the network, so they
   can also arrive twice and out of order. *)
EXTENDS Naturals, FiniteSets

CONSTANTS
    N,          \* replicas are 1 to N
    Ceilings,   \* values of the limit; it starts at the largest
    Beats,      \* maximum heartbeats of an incarnation of replica 1
    Others,     \* maximum heartbeats of any other replica
    Requests,   \* TRUE: requests start and end. FALSE: shares alone
    Lives,      \* maximum incarnations of replica 1; the others have one
    Losses,     \* maximum losses of the coordinator's state
    Moves,      \* maximum changes of the limit
    Leaving,    \* replica 1 may shut down
    Returning,  \* and return in the same incarnation
    Late,       \* messages stay in the network
    Clocks,     \* time passes
    Term, Margin, MaxDuration, Drift,
    Variant     \* "none", or the omitted rule

VARIABLES
    cap,    \* the limit
    moves,  \* changes of the limit
    falls,  \* reductions of the limit
    bound,  \* maximum use: the limit, or the use at its last reduction
    co,     \* the coordinator: its incarnation, the end of its grace, ticks until then
    seat,   \* the share state of each replica
    ghost,  \* reservations for earlier incarnations of each replica
    under,  \* the fleet's table: the coordinator's incarnation behind each replica's shares
    mem,    \* the replicas
    orphan, \* requests of a crashed replica
    net     \* messages

vars == <<cap, moves, falls, bound, co, seat, ghost, under, mem, orphan, net>>

Members == 1..N
Max(a, b) == IF a < b THEN b ELSE a
Min(a, b) == IF a < b THEN a ELSE b
Less(a, b) == IF a < b THEN 0 ELSE a - b
Largest(S) == CHOOSE a \in S : \A b \in S : b <= a

Longest == Term + MaxDuration
Usable == Term - Margin

NoSeat == [known |-> FALSE, life |-> 0, num |-> 0, hg |-> 0, hs |-> 0, gg |-> 0, gs |-> 0,
           told |-> 0, i |-> 0, left |-> 0]
NoGhost == [most |-> 0, left |-> 0]
NoLine == Losses + 2

\* c = 0: no share. left: ticks of the share; pend: ticks of a grant for the newest heartbeat.
\* lag: stopped ticks of the clock since the heartbeat of the share; plag: since the newest.
\* tail: ticks until the last requests end. snap: requests in flight at the last heartbeat, for the
\* variant "torn".
Cold(life) == [up |-> TRUE, leaves |-> FALSE, life |-> life, num |-> 0, awaits |-> FALSE,
               c |-> 0, g |-> 0, s |-> 0, e |-> 0, left |-> 0, pend |-> 0, lag |-> 0, plag |-> 0,
               i |-> 0, tail |-> 0, snap |-> 0]

Init ==
    /\ cap = Largest(Ceilings)
    /\ moves = 0
    /\ falls = 0
    /\ bound = Largest(Ceilings)
    /\ co = [inc |-> 1, open |-> TRUE, left |-> 0]
    /\ seat = [m \in Members |-> NoSeat]
    /\ ghost = [m \in Members |-> NoGhost]
    /\ under = [m \in Members |-> [l \in 1..Lives |-> IF l = 1 THEN 0 ELSE NoLine]]
    /\ mem = [m \in Members |-> Cold(1)]
    /\ orphan = [m \in Members |-> [n |-> 0, tail |-> 0]]
    /\ net = {}

(* ----------------------------- a replica ------------------------------ *)

InForce(r) == IF r.up /\ ~r.leaves /\ r.c # 0 /\ (~Clocks \/ r.left > 0) THEN r.s ELSE 0

Admit(m) ==
    /\ Requests /\ mem[m].i < InForce(mem[m])
    /\ mem' = [mem EXCEPT ![m].i = @ + 1, ![m].tail = MaxDuration]
    /\ UNCHANGED <<cap, moves, falls, co, seat, ghost, under, orphan, net>>

End(m) ==
    /\ mem[m].i > 0
    /\ mem' = [mem EXCEPT ![m].i = @ - 1]
    /\ UNCHANGED <<cap, moves, falls, co, seat, ghost, under, orphan, net>>

\* A fence ends the share and cancels the pending heartbeat.
Fenced(r) == IF Clocks /\ r.c # 0 /\ r.left = 0
             THEN [r EXCEPT !.c = 0, !.g = 0, !.s = 0, !.e = 0, !.awaits = FALSE]
             ELSE r

\* Drops messages without any effect: grants for older heartbeats and, without Late, older
\* heartbeats.
Kept(msgs, m, life, num) ==
    IF Variant = "value" THEN msgs
    ELSE {x \in msgs : ~(x.m = m /\ x.n < num /\ x.life = life /\ (~Late \/ x.t = "g"))}

Send(m) ==
    /\ mem[m].up /\ mem[m].num < IF m = 1 THEN Beats ELSE Others
    /\ \E r \in {Fenced(mem[m])} :
        /\ mem' = [mem EXCEPT ![m] = [r EXCEPT !.num = r.num + 1, !.awaits = ~r.leaves,
                                               !.pend = IF Clocks THEN Usable ELSE 0, !.plag = 0,
                                               !.lag = IF r.c = 0 /\ r.i = 0 THEN 0 ELSE r.lag,
                                               !.snap = IF Variant = "torn" THEN r.i ELSE 0]]
        /\ net' = Kept(net, m, r.life, r.num + 1) \cup
            {[t |-> "b", m |-> m, life |-> r.life, n |-> r.num + 1, c |-> r.c, g |-> r.g,
              s |-> r.s, i |-> IF Variant = "torn" THEN Min(r.snap, r.i) ELSE r.i,
              leaves |-> r.leaves, e |-> 0]}
    /\ UNCHANGED <<cap, moves, falls, co, seat, ghost, under, orphan>>

Apply(m, msg) ==
    /\ msg.t = "g" /\ mem[m].up /\ ~mem[m].leaves /\ msg.life = mem[m].life
    /\ \E r \in {Fenced(mem[m])} :
        /\ Variant = "value" \/ (msg.n = r.num /\ r.awaits)
        /\ ~Clocks \/ r.pend > 0
        /\ mem' = [mem EXCEPT ![m] = [r EXCEPT !.c = msg.c, !.g = msg.g, !.s = msg.s,
                       !.e = msg.e, !.left = r.pend, !.lag = r.plag, !.awaits = FALSE]]
    /\ net' = IF Variant = "value" THEN net ELSE net \ {msg}
    /\ UNCHANGED <<cap, moves, falls, co, seat, ghost, under, orphan>>

Leave(m) ==
    /\ m = 1 /\ Leaving /\ mem[m].up /\ ~mem[m].leaves
    /\ mem' = [mem EXCEPT ![m].leaves = TRUE, ![m].c = 0, ![m].g = 0, ![m].s = 0,
                          ![m].e = 0, ![m].awaits = FALSE]
    /\ UNCHANGED <<cap, moves, falls, co, seat, ghost, under, orphan, net>>

\* Possible before and after the coordinator received the leave. The replica has no share.
ComeBack(m) ==
    /\ m = 1 /\ Returning /\ mem[m].up /\ mem[m].leaves
    /\ mem' = [mem EXCEPT ![m].leaves = FALSE]
    /\ UNCHANGED <<cap, moves, falls, co, seat, ghost, under, orphan, net>>

\* Its requests continue in the proxy.
Crash(m) ==
    /\ m = 1 /\ mem[m].up /\ mem[m].life < Lives
    /\ orphan[m].n = 0
    /\ orphan' = [orphan EXCEPT ![m] = [n |-> mem[m].i, tail |-> mem[m].tail]]
    /\ mem' = [mem EXCEPT ![m] = [Cold(mem[m].life + 1) EXCEPT !.up = FALSE]]
    /\ UNCHANGED <<cap, moves, falls, co, seat, ghost, under, net>>

Restart(m) ==
    /\ ~mem[m].up
    /\ mem' = [mem EXCEPT ![m].up = TRUE]
    /\ UNCHANGED <<cap, moves, falls, co, seat, ghost, under, orphan, net>>

OrphanEnds(m) ==
    /\ orphan[m].n > 0
    /\ orphan' = [orphan EXCEPT ![m].n = @ - 1]
    /\ UNCHANGED <<cap, moves, falls, co, seat, ghost, under, mem, net>>

(* ---------------------------- the coordinator --------------------------- *)

Exposure(s) ==
    IF ~s.known THEN 0
    ELSE IF Variant = "inflight" /\ Clocks /\ s.left <= MaxDuration THEN s.i
    ELSE IF Variant = "noack" THEN Max(s.gs, s.i)
    ELSE Max(Max(s.hs, s.gs), s.i)

IsLive(s) == s.known /\ (~Clocks \/ s.left > MaxDuration)

\* The maximum use of all share states except that of m.
Reserved(ghosts, m) ==
    LET S[k \in 0..N] == IF k = 0 THEN 0
        ELSE S[k - 1] + ghosts[k].most + IF k = m THEN 0 ELSE Exposure(seat[k])
    IN  S[N]

\* The maximum use of replicas that know of a limit this low, and of silent replicas.
Lowered(ghosts, m) ==
    LET S[k \in 0..N] == IF k = 0 THEN 0
        ELSE S[k - 1] + ghosts[k].most +
            IF k = m THEN 0
            ELSE IF ~IsLive(seat[k]) THEN Exposure(seat[k])
            ELSE IF seat[k].told <= cap THEN Max(seat[k].gs, seat[k].i) ELSE 0
    IN  S[N]

InGrace(open) == ~open /\ (~Clocks \/ co.left > 0)

\* The grant of the replica when it sent the heartbeat.
Held(b, open) ==
    LET s == seat[b.m]
        mine == s.known /\ s.life = b.life
        claim == [g |-> 0, s |-> b.s]
        none == [g |-> 0, s |-> 0]
    IN  IF b.c = 0 THEN none
        ELSE IF Variant = "value" THEN
            IF mine /\ b.s = s.gs THEN [g |-> s.gg, s |-> s.gs]
            ELSE IF mine THEN [g |-> s.hg, s |-> s.hs] ELSE none
        ELSE IF Variant = "noincarnation" /\ mine /\ b.c # co.inc THEN [g |-> s.gg, s |-> s.gs]
        ELSE IF b.c = co.inc THEN
            IF mine /\ b.g = s.gg THEN [g |-> s.gg, s |-> s.gs]
            ELSE IF mine /\ b.g = s.hg THEN [g |-> s.hg, s |-> s.hs] ELSE none
        ELSE IF InGrace(open) THEN claim ELSE none

Heard(b) ==
    LET s == seat[b.m] IN
    ~s.known \/ s.life < b.life \/ (s.life = b.life /\ (s.num < b.n \/ Variant = "value"))

\* A new incarnation gets a new share state. The use of the old one is reserved until it expires.
Buried(b) ==
    LET s == seat[b.m] IN
    IF s.known /\ s.life < b.life /\ Variant # "nolife"
    THEN [most |-> ghost[b.m].most + Exposure(s), left |-> Max(ghost[b.m].left, s.left)]
    ELSE ghost[b.m]

Fits(s, ghosts, m, own, open) ==
    \E free \in {Less(cap, Reserved(ghosts, m))} :
        IF free < own THEN s <= own /\ s <= Less(cap, Lowered(ghosts, m))
        ELSE s <= IF InGrace(open) THEN own ELSE free

\* The grace ends when all entries of the table have this incarnation. Replicas that left for good
\* have no entry.
Settled(table) == \A k \in Members, l \in 1..Lives : table[k][l] \in {co.inc, NoLine}

\* A coordinator without losses answers none of these messages twice.
Unheard(b) ==
    IF Late /\ (Losses > 0 \/ Variant = "value") THEN net
    ELSE {x \in net : x.t = "g" \/ x.m # b.m \/ x.life # b.life \/ x.n > b.n}

Seated(b, own) ==
    [known |-> TRUE, life |-> b.life, num |-> b.n, hg |-> own.g, hs |-> own.s, gg |-> own.g,
     gs |-> own.s, told |-> IF seat[b.m].known /\ seat[b.m].life = b.life THEN seat[b.m].told ELSE 0,
     i |-> b.i, left |-> Longest]

\* Each incarnation has its own entry. Without losses nothing reads the table, so one entry is
\* enough.
Table(b) ==
    LET said == IF Variant = "noincarnation" /\ b.c # 0 THEN co.inc ELSE b.c
        own == IF Losses = 0 THEN 1 ELSE b.life
        other == IF Variant = "table" THEN [l \in 1..Lives |-> NoLine] ELSE under[b.m]
    IN  [under EXCEPT ![b.m] = [other EXCEPT ![own] = said]]

\* The grant may be any share that the cap allows.
Hear(b) ==
    /\ b.t = "b" /\ ~b.leaves /\ Heard(b)
    /\ under' = Table(b)
    /\ \E open \in {co.open \/ Settled(Table(b))} : \E own \in {Held(b, open)}, ghosts \in {[ghost EXCEPT ![b.m] = Buried(b)]},
          s \in 0..Largest(Ceilings) :
        /\ Fits(s, ghosts, b.m, own.s, open)
        /\ co' = [co EXCEPT !.open = open]
        /\ ghost' = ghosts
        /\ \E g \in {IF s = own.s /\ own.g # 0 THEN own.g ELSE b.n} :
            /\ seat' = [seat EXCEPT ![b.m] =
                    [Seated(b, own) EXCEPT !.gg = g, !.gs = s, !.told = cap]]
            /\ net' = Unheard(b) \cup
                {[t |-> "g", m |-> b.m, life |-> b.life, n |-> b.n, c |-> co.inc, g |-> g,
                  s |-> s, i |-> 0, leaves |-> FALSE, e |-> falls]}
    /\ UNCHANGED <<cap, moves, falls, mem, orphan>>

HearLeave(b) ==
    /\ b.t = "b" /\ b.leaves /\ Heard(b)
    /\ ghost' = [ghost EXCEPT ![b.m] = Buried(b)]
    /\ seat' = [seat EXCEPT ![b.m] = IF b.i = 0 THEN NoSeat
                 ELSE [Seated(b, [g |-> 0, s |-> 0]) EXCEPT !.left = MaxDuration]]
    /\ net' = Unheard(b)
    /\ under' = Table(b)
    /\ co' = [co EXCEPT !.open = co.open \/ Settled(Table(b))]
    /\ UNCHANGED <<cap, moves, falls, mem, orphan>>

Forget ==
    /\ co.inc <= Losses
    /\ co' = [inc |-> co.inc + 1, open |-> Variant = "nograce", left |-> Longest]
    /\ seat' = [m \in Members |-> NoSeat]
    /\ ghost' = [m \in Members |-> NoGhost]
    /\ UNCHANGED <<cap, moves, falls, under, mem, orphan, net>>

Move(c) ==
    /\ moves < Moves /\ c # cap
    /\ cap' = c
    /\ moves' = moves + 1
    /\ falls' = IF c < cap THEN falls + 1 ELSE falls
    /\ UNCHANGED <<co, seat, ghost, under, mem, orphan, net>>

(* -------------------------------- time ---------------------------------- *)

\* A tick of a replica's clock. Lags is a missed tick.
Ages(r) ==
    LET left == Less(r.left, 1)
        \* A request allowed at the end of a tick lasts as long after the next tick.
        tail == IF InForce(r) > 0 THEN r.tail ELSE Less(r.tail, 1)
    IN  [r EXCEPT !.left = left, !.pend = Less(@, 1), !.tail = tail,
                  !.i = IF tail = 0 THEN 0 ELSE @]
Lags(r) == [r EXCEPT !.lag = @ + 1, !.plag = @ + 1]
MayLag(r) == r.up /\ r.lag < Drift /\ r.plag < Drift /\ (r.left > 0 \/ r.pend > 0 \/ r.i > 0)

Aged(s) == IF ~s.known THEN s
           ELSE IF s.left <= 1 \/ (Exposure(s) = 0 /\ s.left <= MaxDuration + 1) THEN NoSeat
           ELSE [s EXCEPT !.left = @ - 1]

Tick ==
    /\ Clocks
    /\ \E late \in SUBSET {m \in Members : MayLag(mem[m])} :
        mem' = [m \in Members |-> IF m \in late THEN Lags(mem[m]) ELSE Ages(mem[m])]
    /\ seat' = [m \in Members |-> Aged(seat[m])]
    /\ ghost' = [m \in Members |-> IF ghost[m].left <= 1 THEN NoGhost
                                   ELSE [ghost[m] EXCEPT !.left = @ - 1]]
    /\ orphan' = [m \in Members |->
        LET tail == Less(orphan[m].tail, 1) IN
        [n |-> IF tail = 0 THEN 0 ELSE orphan[m].n, tail |-> tail]]
    /\ co' = [co EXCEPT !.left = Less(@, 1)]
    /\ UNCHANGED <<cap, moves, falls, under, net>>

(* ------------------------------ the oracle ------------------------------ *)

Shares == LET S[k \in 0..N] == IF k = 0 THEN 0 ELSE S[k - 1] + InForce(mem[k]) IN S[N]
InFlight == LET S[k \in 0..N] == IF k = 0 THEN 0 ELSE S[k - 1] + mem[k].i + orphan[k].n IN S[N]
InUse(members, gone) ==
    LET S[k \in 0..N] == IF k = 0 THEN 0
                         ELSE S[k - 1] + Max(InForce(members[k]), members[k].i) + gone[k].n
    IN  S[N]
Aware(members, fallen) ==
    \A m \in Members : (InForce(members[m]) = 0 /\ ~members[m].awaits) \/ members[m].e = fallen

\* After a reduction, the use never exceeds the old bound. Once all replicas know of the reduction,
\* the use only falls.
Watch ==
    bound' = IF Moves = 0 THEN bound
             ELSE IF bound <= cap' THEN cap'
             ELSE IF Aware(mem', falls') THEN Max(cap', Min(bound, InUse(mem', orphan')))
             ELSE bound

Step ==
    \/ \E m \in Members : Admit(m) \/ End(m) \/ Send(m) \/ Leave(m) \/ ComeBack(m)
                          \/ Crash(m) \/ Restart(m) \/ OrphanEnds(m)
    \/ \E msg \in net : Hear(msg) \/ HearLeave(msg) \/ Apply(msg.m, msg)
    \/ Forget
    \/ \E c \in Ceilings : Move(c)
    \/ Tick

Next == Step /\ Watch

Spec == Init /\ [][Next]_vars

(* ----------------------------- invariants ----------------------------- *)

SharesFit == Shares <= bound
InFlightFits == InFlight <= bound

=============================================================================
