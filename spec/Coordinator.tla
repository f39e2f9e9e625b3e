---------------------------- MODULE Coordinator ----------------------------
(* One ceiling for a fleet: the occupancy cap, acknowledgement by number,   *)
(* self-fencing, lives of members and of the coordinator, and the grace     *)
(* after a loss, as in src/kernel/coordinator.                              *)
(*                                                                          *)
(* What is fair is left open: a grant may be anything up to what the cap    *)
(* allows, so that what holds here holds for every split.                   *)
(*                                                                          *)
(* Timers count down, in ticks of the store's clock. A member's clock may   *)
(* stand still for Drift ticks over the life of a grant; a member that does *)
(* nothing is one that is paused. Messages are never lost by name: what is  *)
(* not delivered is lost, or late. With Late they stay, so that they also   *)
(* come twice and out of order.                                             *)
EXTENDS Naturals, FiniteSets

CONSTANTS
    N,          \* members are 1 to N
    Ceilings,   \* the ceilings it may be set to; it starts at the largest
    Beats,      \* heartbeats of a life, at most
    Lives,      \* lives of a member, at most
    Losses,     \* how often the coordinator forgets, at most
    Moves,      \* how often the ceiling is set, at most
    Leaving,    \* members may leave in order
    Late,       \* messages stay in the network
    Clocks,     \* time passes
    Term, Margin, MaxDuration, Drift,
    Variant     \* "none", or the rule that is left out

VARIABLES
    cap,    \* the ceiling
    moves,  \* how often it was set
    falls,  \* how often it was set lower
    bound,  \* what may be in use: the ceiling, or what was in use when it fell
    co,     \* the coordinator: its incarnation, generation, whether its grace is over, ticks until it is
    seat,   \* what it knows of each member
    ghost,  \* what it reserves for each member's earlier lives
    under,  \* the fleet's table: the incarnation under which all is that a member holds
    mem,    \* the members
    orphan, \* requests whose replica is gone
    net     \* messages

vars == <<cap, moves, falls, bound, co, seat, ghost, under, mem, orphan, net>>

Members == 1..N
Max(a, b) == IF a < b THEN b ELSE a
Min(a, b) == IF a < b THEN a ELSE b
Less(a, b) == IF a < b THEN 0 ELSE a - b
Largest(S) == CHOOSE a \in S : \A b \in S : b <= a

Sum(f) == LET S[i \in 0..N] == IF i = 0 THEN 0 ELSE S[i - 1] + f[i] IN S[N]

Longest == Term + MaxDuration
Usable == Term - Margin

NoSeat == [known |-> FALSE, life |-> 0, num |-> 0, hg |-> 0, hs |-> 0, gg |-> 0, gs |-> 0,
           told |-> 0, i |-> 0, left |-> 0]
NoGhost == [most |-> 0, left |-> 0]

\* c = 0: holds nothing. left: ticks of the share, pend: of the newest heartbeat. lag, plag: how long
\* the clock stood still since the heartbeat of the share, since the newest. tail: ticks in which
\* its last requests end. snap: in flight when the last heartbeat was made, for the torn one.
Cold(life) == [up |-> TRUE, leaves |-> FALSE, life |-> life, num |-> 0, awaits |-> FALSE,
               c |-> 0, g |-> 0, s |-> 0, e |-> 0, left |-> 0, pend |-> 0, lag |-> 0, plag |-> 0,
               i |-> 0, tail |-> 0, snap |-> 0]

Init ==
    /\ cap = Largest(Ceilings)
    /\ moves = 0
    /\ falls = 0
    /\ bound = Largest(Ceilings)
    /\ co = [inc |-> 1, gen |-> 0, open |-> TRUE, left |-> 0]
    /\ seat = [m \in Members |-> NoSeat]
    /\ ghost = [m \in Members |-> NoGhost]
    /\ under = [m \in Members |-> 0]
    /\ mem = [m \in Members |-> Cold(1)]
    /\ orphan = [m \in Members |-> [n |-> 0, tail |-> 0]]
    /\ net = {}

(* ------------------------------ the member ------------------------------ *)

InForce(r) == IF r.up /\ ~r.leaves /\ r.c # 0 /\ (~Clocks \/ r.left > 0) THEN r.s ELSE 0

Admit(m) ==
    /\ mem[m].i < InForce(mem[m])
    /\ mem' = [mem EXCEPT ![m].i = @ + 1, ![m].tail = MaxDuration]
    /\ UNCHANGED <<cap, moves, falls, co, seat, ghost, under, orphan, net>>

End(m) ==
    /\ mem[m].i > 0
    /\ mem' = [mem EXCEPT ![m].i = @ - 1]
    /\ UNCHANGED <<cap, moves, falls, co, seat, ghost, under, orphan, net>>

\* A fence lets go of the share and voids the heartbeat under way.
Fenced(r) == IF Clocks /\ r.c # 0 /\ r.left = 0
             THEN [r EXCEPT !.c = 0, !.g = 0, !.s = 0, !.e = 0, !.awaits = FALSE, !.lag = 0]
             ELSE r

\* A message that can change nothing any more is taken out of the network.
Void(msg, r) == msg.m = r.m /\ (msg.life # r.life \/ msg.n < r.num)
Kept(msgs, m, life, num) ==
    IF Variant = "value" THEN msgs
    ELSE {x \in msgs : ~(x.m = m /\ x.n < num /\ x.life = life /\ (~Late \/ x.t = "g"))}

Send(m) ==
    LET r == Fenced(mem[m])
        num == r.num + 1
        i == IF Variant = "torn" THEN Min(r.snap, r.i) ELSE r.i
        beat == [t |-> "b", m |-> m, life |-> r.life, n |-> num, c |-> r.c, g |-> r.g,
                 s |-> r.s, i |-> i, leaves |-> r.leaves, e |-> 0]
    IN  /\ r.up /\ num <= Beats
        /\ mem' = [mem EXCEPT ![m] = [r EXCEPT !.num = num, !.awaits = ~r.leaves,
                                               !.pend = Usable, !.plag = 0, !.snap = r.i]]
        /\ net' = Kept(net, m, r.life, num) \cup {beat}
        /\ UNCHANGED <<cap, moves, falls, co, seat, ghost, under, orphan>>

Apply(m, msg) ==
    LET r == Fenced(mem[m]) IN
    /\ msg.t = "g" /\ r.up /\ ~r.leaves /\ msg.life = r.life
    /\ Variant = "value" \/ (msg.n = r.num /\ r.awaits)
    /\ ~Clocks \/ r.pend > 0
    /\ mem' = [mem EXCEPT ![m] = [r EXCEPT !.c = msg.c, !.g = msg.g, !.s = msg.s, !.e = msg.e,
                                           !.left = r.pend, !.lag = r.plag, !.awaits = FALSE]]
    /\ net' = IF Variant = "value" THEN net ELSE net \ {msg}
    /\ UNCHANGED <<cap, moves, falls, co, seat, ghost, under, orphan>>

Leave(m) ==
    /\ Leaving /\ mem[m].up /\ ~mem[m].leaves
    /\ mem' = [mem EXCEPT ![m].leaves = TRUE, ![m].c = 0, ![m].g = 0, ![m].s = 0,
                          ![m].e = 0, ![m].awaits = FALSE]
    /\ UNCHANGED <<cap, moves, falls, co, seat, ghost, under, orphan, net>>

\* Its requests go on in the proxy.
Crash(m) ==
    /\ mem[m].up /\ mem[m].life < Lives
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

Reserved(seats, ghosts, m) ==
    Sum([k \in Members |-> IF k = m THEN ghosts[k].most ELSE Exposure(seats[k]) + ghosts[k].most])

\* What is left by those who were told a ceiling as low as this, and by those not heard any more.
LeftByLowered(seats, ghosts, m) ==
    Less(cap, Sum([k \in Members |-> ghosts[k].most +
        IF k = m THEN 0
        ELSE IF ~IsLive(seats[k]) THEN Exposure(seats[k])
        ELSE IF seats[k].told <= cap THEN seats[k].gs ELSE 0]))

InGrace == ~co.open /\ (~Clocks \/ co.left > 0)

\* What the member held when it sent the heartbeat.
Held(b) ==
    LET s == seat[b.m]
        mine == s.known /\ s.life = b.life
        claim == [g |-> 0, s |-> b.s]
        none == [g |-> 0, s |-> 0]
    IN  IF b.c = 0 THEN none
        ELSE IF Variant = "value" THEN
            IF mine /\ b.s = s.gs THEN [g |-> s.gg, s |-> s.gs]
            ELSE IF mine THEN [g |-> s.hg, s |-> s.hs] ELSE none
        ELSE IF Variant = "noincarnation" /\ mine /\ b.g >= s.gg THEN [g |-> s.gg, s |-> s.gs]
        ELSE IF b.c = co.inc \/ Variant = "noincarnation" THEN
            IF mine /\ b.g = s.gg THEN [g |-> s.gg, s |-> s.gs]
            ELSE IF mine /\ b.g = s.hg THEN [g |-> s.hg, s |-> s.hs] ELSE none
        ELSE IF InGrace THEN claim ELSE none

Heard(b) ==
    LET s == seat[b.m] IN
    ~s.known \/ s.life < b.life \/ (s.life = b.life /\ (s.num < b.n \/ Variant = "value"))

\* A new life takes a new seat; what the old one may use is reserved until that is over.
Buried(b) ==
    LET s == seat[b.m] IN
    IF s.known /\ s.life < b.life /\ Variant # "nolife"
    THEN [most |-> ghost[b.m].most + Exposure(s), left |-> Max(ghost[b.m].left, s.left)]
    ELSE ghost[b.m]

Limit(seats, ghosts, m, own) ==
    LET free == Less(cap, Reserved(seats, ghosts, m)) IN
    IF free < own THEN Min(own, LeftByLowered(seats, ghosts, m))
    ELSE IF InGrace THEN own ELSE free

\* The grace ends when all in the table are under this life. One that is gone for good has left it.
Settled(table) == \A k \in Members : table[k] = co.inc

Hear(b) ==
    LET m == b.m
        own == IF b.leaves THEN [g |-> 0, s |-> 0] ELSE Held(b)
        ghosts == [ghost EXCEPT ![m] = Buried(b)]
        told == IF seat[m].known /\ seat[m].life = b.life THEN seat[m].told ELSE 0
        sat == [known |-> ~(b.leaves /\ b.i = 0), life |-> b.life, num |-> b.n, hg |-> own.g,
                hs |-> own.s, gg |-> own.g, gs |-> own.s, told |-> told, i |-> b.i,
                left |-> IF b.leaves THEN MaxDuration ELSE Longest]
        limit == Limit(seat, ghosts, m, own.s)
        named == IF Variant = "noincarnation" /\ b.c # 0 THEN co.inc ELSE b.c
        table == [under EXCEPT ![m] = named]
        rest == IF Late THEN net ELSE net \ {b}
    IN  /\ b.t = "b" /\ Heard(b)
        /\ under' = table
        /\ co' = [co EXCEPT !.open = @ \/ Settled(table),
                            !.gen = IF b.leaves THEN @ ELSE @ + 1]
        /\ ghost' = ghosts
        /\ IF b.leaves
           THEN /\ seat' = [seat EXCEPT ![m] = IF sat.known THEN sat ELSE NoSeat]
                /\ net' = rest
           ELSE \E s \in 0..limit :
                LET same == s = own.s /\ own.g # 0
                    g == IF same THEN own.g ELSE co.gen + 1
                IN  /\ seat' = [seat EXCEPT ![m] = [sat EXCEPT !.gg = g, !.gs = s, !.told = cap]]
                    /\ net' = rest \cup {[t |-> "g", m |-> m, life |-> b.life, n |-> b.n,
                                          c |-> co.inc, g |-> g, s |-> s, i |-> 0,
                                          leaves |-> FALSE, e |-> falls]}
        /\ UNCHANGED <<cap, moves, falls, mem, orphan>>

Forget ==
    /\ co.inc <= Losses
    /\ co' = [inc |-> co.inc + 1, gen |-> 0, open |-> Variant = "nograce", left |-> Longest]
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

\* A tick of a member's clock; or none, if it may lag.
Ages(r) ==
    LET left == Less(r.left, 1)
        tail == IF InForce(r) > 0 /\ left > 0 THEN r.tail ELSE Less(r.tail, 1)
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

Shares == Sum([m \in Members |-> InForce(mem[m])])
InFlight == Sum([m \in Members |-> mem[m].i + orphan[m].n])
InUse == Sum([m \in Members |-> Max(InForce(mem[m]), mem[m].i) + orphan[m].n])
Aware == \A m \in Members : InForce(mem[m]) = 0 \/ mem[m].e = falls

\* After a fall: never above what it was; once all know of it, only downwards.
Watch ==
    bound' = IF bound <= cap' THEN cap'
             ELSE IF Aware' THEN Max(cap', Min(bound, InUse')) ELSE bound

Step ==
    \/ \E m \in Members : Admit(m) \/ End(m) \/ Send(m) \/ Leave(m) \/ Crash(m)
                          \/ Restart(m) \/ OrphanEnds(m)
    \/ \E msg \in net : Hear(msg) \/ Apply(msg.m, msg)
    \/ Forget
    \/ \E c \in Ceilings : Move(c)
    \/ Tick

Next == Step /\ Watch

Spec == Init /\ [][Next]_vars

(* ------------------------------ what holds ------------------------------ *)

SharesFit == Shares <= bound
InFlightFits == InFlight <= bound

\* That the model is about something: each of these must be found false.
NothingMoves == ~\E a, b \in Members : a # b /\ mem[a].g > 0 /\ mem[a].s = 0
                                       /\ InForce(mem[b]) = cap
NothingIsFenced == ~\E m \in Members : mem[m].c # 0 /\ Clocks /\ mem[m].left = 0 /\ mem[m].s > 0
NoLossIsSurvived == ~(co.inc > 1 /\ co.open /\ Shares = cap)
=============================================================================
