//! A fleet and a store on a network that loses, doubles, delays and reorders, with clocks that run
//! wrong and members that crash; all of it from one seed.

use std::collections::{HashMap, HashSet};

use sluicegate::kernel::lease::ledger::{Ledger, Spend};
use sluicegate::kernel::lease::sizer::Size;
use sluicegate::kernel::lease::{Answer, Borrow, Member, Number, Overshoot, Terms};
use sluicegate::kernel::rate::Step;
use sluicegate::kernel::rate::fixed_window::{Count, FixedWindow, Windows};
use sluicegate::kernel::rate::gcra::{Gcra, Tat};
use sluicegate::kernel::rate::sliding_log::{Log, SlidingLog};
use sluicegate::kernel::rate::sliding_window::{Pair, SlidingWindow};
use sluicegate::kernel::units::{Hits, Nanos};

use super::oracle::{self, Admitted};
use super::store::{Counted, Store};
use crate::support::dice::Dice;

/// A clock runs at most this wrong, in millionths.
const DRIFT_PPM: u64 = 1_000;

/// How a strategy counts, and how its leases are bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Gcra,
    FixedWindow,
    CoupledWindow,
    CoupledCalendar,
    SlidingWindow,
    SlidingLog,
}

pub const KINDS: [Kind; 6] = [
    Kind::Gcra,
    Kind::FixedWindow,
    Kind::CoupledWindow,
    Kind::CoupledCalendar,
    Kind::SlidingWindow,
    Kind::SlidingLog,
];

/// What a careless design does. The kernel's own functions are used all the same: the flaw is in
/// how the world uses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    None,
    /// A grant is credited to a second waiter too.
    CreditedToEachWaiter,
    /// A member compares the store's boundary with a clock of its own, which is behind.
    WindowOnMembersClock,
    /// What is given back after its window is taken back into the next.
    GivenBackAfterTheRoll,
    /// What is given back after its lease ended is taken back.
    GivenBackAfterExpiry,
    /// The answer to a message that was given up is taken for the last one's.
    OldAnswerTaken,
    /// Hits of a question that is denied as a whole are put back although the store was told since that they
    /// are not held.
    PutBackAfterAMessage,
    /// They are put back although the lease that they were of is over, or the store lists them no more.
    PutBackThoughVoid,
    /// What went with a message is held again although it left.
    UndoneThoughItLeft,
}

pub struct World {
    pub store: Store,
    now: Nanos,
    nodes: Vec<Node>,
    mail: Vec<(Nanos, Mail)>,
    pub log: Vec<Admitted>,
    dice: Dice,
    flaw: Flaw,
    size: Size,
    /// A length of time in which much happens.
    span: Nanos,
    /// The longest time between two things that happen, mostly.
    pace: Nanos,
    born: u64,
    passed: HashSet<(Member, Number)>,
    lent_in: HashMap<(Member, Number), u64>,
    pub seen: Seen,
    /// What was out when this instant began, and when its window did.
    out: u64,
    out_at_roll: u64,
}

/// What happened at least so often: a quiet world proves nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub lent: u64,
    pub spent: u64,
    pub asked: u64,
    pub denied_here: u64,
    pub superseded: u64,
    pub repeated: u64,
    pub given_back: u64,
    pub voided: u64,
    pub crashed: u64,
    pub ahead: u64,
    pub put_back: u64,
    pub put_back_in_vain: u64,
    pub put_back_after_a_message: u64,
    pub undone: u64,
    pub undone_in_vain: u64,
    pub most_out: u64,
}

type Tally = fn(&Seen) -> u64;

impl Seen {
    pub const ALL: [(&'static str, Tally); 16] = [
        ("lent", |seen| seen.lent),
        ("spent", |seen| seen.spent),
        ("asked", |seen| seen.asked),
        ("denied here", |seen| seen.denied_here),
        ("superseded", |seen| seen.superseded),
        ("repeated", |seen| seen.repeated),
        ("given back", |seen| seen.given_back),
        ("given back in vain", |seen| seen.voided),
        ("crashed", |seen| seen.crashed),
        ("ahead", |seen| seen.ahead),
        ("put back", |seen| seen.put_back),
        ("put back in vain", |seen| seen.put_back_in_vain),
        ("put back after a message", |seen| seen.put_back_after_a_message),
        ("undone", |seen| seen.undone),
        ("undone in vain", |seen| seen.undone_in_vain),
        ("out", |seen| seen.most_out),
    ];
}

struct Node {
    member: Member,
    ledger: Ledger,
    offset: u64,
    ppm: u64,
    /// How far this member's own clock is behind the store's.
    behind: Nanos,
    last: Option<Borrow>,
    /// A message that never left, which its member is not told of yet.
    unsent: Option<Borrow>,
    numbers: u64,
    /// Questions whose hits were taken, and which may yet be denied as a whole.
    undecided: Vec<Undecided>,
}

/// Hits that a question has taken.
#[derive(Clone, Copy)]
struct Undecided {
    hits: Hits,
    /// Of the ledger when they were taken.
    grip: u64,
    /// The last message that had been sent then.
    told: Option<Borrow>,
    /// Where in the log.
    at: usize,
}

#[derive(Clone, Copy)]
enum Mail {
    ToStore(Member, Borrow),
    ToMember(Member, Answer),
    Charge(Hits),
}

impl Node {
    /// What this member's clock shows.
    fn clock(&self, now: Nanos) -> Nanos {
        let scaled = u128::from(now.0) * u128::from(1_000_000 - DRIFT_PPM + self.ppm) / 1_000_000;
        Nanos(self.offset + u64::try_from(scaled).unwrap())
    }

    fn number(&mut self) -> Number {
        self.numbers += 1;
        Number(self.numbers)
    }
}

impl World {
    pub fn new(seed: u64, kind: Kind, flaw: Flaw) -> Self {
        let mut dice = Dice::new(seed);
        let span = Nanos(dice.pick(&[100, 1_000, 7_000]) * Nanos::MILLI.0);
        let now = Nanos(span.0 * 1_000 + dice.up_to(span.0));
        let counted = counted(&mut dice, kind, span);
        let most = counted.most();
        let overshoot = match kind {
            Kind::CoupledWindow | Kind::CoupledCalendar => Overshoot::InWindow,
            _ => Overshoot::AtMost(Hits(1 + dice.up_to(most))),
        };
        let term = Nanos(1_000 * (span.0 * (2 + dice.up_to(30)) / 10_000));
        let size =
            if dice.once_in(2) { Size::Learned } else { Size::Fixed(Hits(1 + dice.up_to(most))) };
        // From three times what the law earns to a tenth.
        let pace = Nanos(span.0 / most * dice.pick(&[1, 3, 10, 30]) / 2);
        let members = 1 + dice.up_to(dice.clone().pick(&[1, 3, 9]));
        let mut world = Self {
            store: Store::new(counted, Terms { overshoot, term, size: Size::Learned }),
            now,
            nodes: Vec::new(),
            mail: Vec::new(),
            log: Vec::new(),
            dice,
            flaw,
            size,
            span,
            pace,
            born: 0,
            passed: HashSet::new(),
            lent_in: HashMap::new(),
            seen: Seen::default(),
            out: 0,
            out_at_roll: 0,
        };
        for _ in 0..members {
            let node = world.birth();
            world.nodes.push(node);
        }
        world
    }

    /// How far the log passes the law, after `events` things happened.
    pub fn run(&mut self, events: usize) -> oracle::Overshoot {
        let mut left = events;
        while 0 < left {
            let phase = usize::try_from(10 + self.dice.up_to(150)).unwrap().min(left);
            match self.dice.up_to(3) {
                0 => self.pass_silently(),
                1 => self.blast(),
                _ => (0..phase).for_each(|_| self.happen()),
            }
            left -= phase;
        }
        oracle::overshoot(&self.store.counted, &self.log)
    }

    fn birth(&mut self) -> Node {
        self.born += 1;
        let (size, term) = (self.size, self.store.terms.term);
        Node {
            member: Member(self.born),
            ledger: Ledger::new(size, term, Hits(self.store.counted.most())),
            offset: self.dice.up_to(1 << 40),
            ppm: self.dice.up_to(2 * DRIFT_PPM),
            behind: Nanos(self.dice.up_to(self.span.0 / 20)),
            last: None,
            unsent: None,
            numbers: self.dice.up_to(1_000),
            undecided: Vec::new(),
        }
    }

    /// Time passes: what is out now is out when the next interval begins.
    fn wait(&mut self, step: Nanos) {
        let window = self.store.counted.window(self.now);
        self.now = self.now.plus(step);
        self.out = self.store.book.out(self.now).0;
        if self.store.counted.window(self.now) != window {
            self.out_at_roll = self.out;
        }
    }

    /// One thing happens.
    fn happen(&mut self) {
        if !self.dice.once_in(4) {
            let longest = if self.dice.once_in(20) { self.span.0 / 5 } else { self.pace.0 };
            let step = self.dice.up_to(longest);
            self.wait(Nanos(step));
        }
        self.deliver();
        let node = usize::try_from(self.dice.up_to(self.nodes.len() as u64 - 1)).unwrap();
        match self.dice.up_to(41) {
            0 => self.crash(node),
            1 | 2 => self.send_again(node),
            3 | 4 => self.give_up(node),
            5 => self.part(node, true),
            6 | 7 => self.part(node, false),
            8..=11 => self.look_ahead(node),
            12..=15 => self.decide(node),
            16..=18 => self.undo(node),
            19 => self.hand_back(node),
            _ => {
                let hits = self.hits();
                self.question(node, hits);
            }
        }
        self.hold_the_invariants();
    }

    fn hits(&mut self) -> Hits {
        let most = self.store.counted.most();
        Hits(match self.dice.up_to(30) {
            0 => self.dice.up_to(most + 2),
            1..=5 => self.dice.up_to(3),
            _ => 1,
        })
    }

    fn question(&mut self, node: usize, hits: Hits) {
        let now = self.nodes[node].clock(self.now);
        match self.nodes[node].ledger.spend(now, hits) {
            Spend::Spent(_) => {
                self.seen.spent += 1;
                if self.dice.once_in(3) {
                    self.hold(node, hits);
                }
                self.admit(hits);
            }
            Spend::Denied { .. } => self.seen.denied_here += 1,
            Spend::Ask => self.ask(node, hits),
        }
    }

    fn ask(&mut self, node: usize, hits: Hits) {
        self.seen.asked += 1;
        let now = self.nodes[node].clock(self.now);
        let number = self.nodes[node].number();
        match self.nodes[node].ledger.borrow(now, number, hits) {
            Some(borrow) => self.send(node, borrow),
            None if self.dice.once_in(2) => self.post(Mail::Charge(hits)),
            None => {}
        }
    }

    /// The question that hits were just spent for is not decided yet.
    fn hold(&mut self, node: usize, hits: Hits) {
        let (at, node) = (self.log.len(), &mut self.nodes[node]);
        if self.flaw != Flaw::PutBackAfterAMessage {
            node.ledger.hold(hits);
        }
        let (grip, told) = (node.ledger.grip(), node.last);
        node.undecided.push(Undecided { hits, grip, told, at });
    }

    /// A question that took hits is decided. One that is denied by another limit puts them back, so that it admitted none.
    /// Those that nobody undoes count as admitted when they were taken.
    fn decide(&mut self, node: usize) {
        let now = self.nodes[node].clock(self.now);
        let node = &mut self.nodes[node];
        let Some(last) = node.undecided.len().checked_sub(1) else { return };
        let which = usize::try_from(self.dice.up_to(last as u64)).unwrap();
        let Undecided { hits, grip, told, at } = node.undecided.swap_remove(which);
        let is_admitted = self.dice.once_in(4);
        if is_admitted {
            return node.ledger.let_go(hits, grip);
        }
        self.log[at].hits = 0;
        node.ledger.expire(now);
        let before = node.ledger.balance(now);
        let grip = match self.flaw {
            Flaw::PutBackAfterAMessage | Flaw::PutBackThoughVoid => node.ledger.grip(),
            _ => grip,
        };
        if self.flaw == Flaw::PutBackAfterAMessage {
            node.ledger.hold(hits);
        }
        node.ledger.put_back(now, hits, grip);
        if before < node.ledger.balance(now) {
            self.seen.put_back += 1;
            self.seen.put_back_after_a_message += u64::from(told != node.last);
        } else if hits != Hits(0) {
            self.seen.put_back_in_vain += 1;
        }
    }

    fn look_ahead(&mut self, node: usize) {
        let now = self.nodes[node].clock(self.now);
        let number = self.nodes[node].number();
        let at_leisure = self.dice.once_in(2);
        let time = Nanos(self.dice.up_to(self.store.terms.term.0));
        let ledger = &mut self.nodes[node].ledger;
        let borrow = if at_leisure {
            ledger.at_leisure(now, number, time)
        } else {
            ledger.ahead(now, number)
        };
        if let Some(borrow) = borrow {
            self.seen.ahead += 1;
            self.send(node, borrow);
        }
    }

    fn part(&mut self, node: usize, with_all: bool) {
        let now = self.nodes[node].clock(self.now);
        let number = self.nodes[node].number();
        let is_quiet = self.dice.once_in(2);
        let quiet = Nanos(self.dice.up_to(2 * self.store.terms.term.0));
        let ledger = &mut self.nodes[node].ledger;
        let parting = match (with_all, is_quiet) {
            (true, _) => ledger.give_back(now, number),
            (false, true) => ledger.abandon(now, number, quiet),
            (false, false) => ledger.surplus(now, number),
        };
        if let Some(parting) = parting {
            self.send(node, parting);
        }
    }

    /// All that is held goes back before a question that it would cover with what the store has left.
    fn hand_back(&mut self, node: usize) {
        let now = self.nodes[node].clock(self.now);
        let number = self.nodes[node].number();
        if let Some(all) = self.nodes[node].ledger.hand_back(now, number) {
            self.send(node, all);
        }
    }

    fn send(&mut self, node: usize, borrow: Borrow) {
        let is_careless = self.flaw == Flaw::UndoneThoughItLeft;
        if self.dice.once_in(if is_careless { 2 } else { 12 }) {
            self.nodes[node].unsent = Some(borrow);
            if !is_careless {
                return;
            }
            self.undo(node);
        }
        self.nodes[node].last = Some(borrow);
        let member = self.nodes[node].member;
        self.post(Mail::ToStore(member, borrow));
    }

    fn send_again(&mut self, node: usize) {
        if let Some(borrow) = self.nodes[node].last {
            let member = self.nodes[node].member;
            self.post(Mail::ToStore(member, borrow));
        }
    }

    /// A member is told that a message never left.
    fn undo(&mut self, node: usize) {
        let now = self.nodes[node].clock(self.now);
        let node = &mut self.nodes[node];
        let Some(borrow) = node.unsent.take() else { return };
        let before = node.ledger.balance(now);
        node.ledger.unsent(now, borrow.number);
        if before < node.ledger.balance(now) {
            self.seen.undone += 1;
        } else if borrow.returned != Hits(0) {
            self.seen.undone_in_vain += 1;
        }
    }

    fn give_up(&mut self, node: usize) {
        if let Some(borrow) = self.nodes[node].last {
            self.nodes[node].ledger.lost(borrow.number);
        }
    }

    fn crash(&mut self, node: usize) {
        if self.dice.once_in(2) {
            self.seen.crashed += 1;
            self.nodes[node] = self.birth();
        }
    }

    /// Loses, doubles or delays.
    fn post(&mut self, mail: Mail) {
        for _ in 0..[1, 1, 1, 1, 1, 1, 1, 2, 0, 1][usize::try_from(self.dice.up_to(9)).unwrap()] {
            let slow = self.dice.once_in(15);
            let longest = if slow { 3 * self.store.terms.term.0 } else { self.span.0 / 100 };
            let due = Nanos(self.now.0 + self.dice.up_to(longest));
            self.mail.push((due, mail));
        }
    }

    fn deliver(&mut self) {
        self.mail.sort_by_key(|(due, _)| *due);
        let due = self.mail.partition_point(|(due, _)| *due <= self.now);
        for (_, mail) in self.mail.drain(..due).collect::<Vec<_>>() {
            match mail {
                Mail::ToStore(member, borrow) => self.arrive(member, borrow),
                Mail::ToMember(member, answer) => self.answer(member, answer),
                Mail::Charge(hits) => self.charge(hits),
            }
        }
    }

    fn charge(&mut self, hits: Hits) {
        if matches!(self.store.charge(self.now, hits), Step::Admit(_)) {
            self.admit(hits);
        }
    }

    /// A message reaches the store.
    fn arrive(&mut self, member: Member, borrow: Borrow) {
        let borrow = self.take_back_carelessly(member, borrow);
        let out_before = self.store.book.held_by(member, self.now);
        let Some(answer) = self.store.step(self.now, member, &borrow) else {
            self.seen.superseded += 1;
            return;
        };
        if answer.granted != Hits(0) {
            self.lent_in.insert((member, answer.number), self.store.counted.window(self.now));
        }
        let again = self.passed.contains(&(member, borrow.number));
        self.seen.repeated += u64::from(again);
        self.seen.lent += answer.granted.0;
        if borrow.returned != Hits(0) && !again {
            let count = if out_before == Hits(0) {
                &mut self.seen.voided
            } else {
                &mut self.seen.given_back
            };
            *count += 1;
        }
        let admitted = borrow.hits != Hits(0) && matches!(answer.step, Step::Admit(_));
        if admitted && !again {
            self.admit(borrow.hits);
        }
        if admitted || borrow.hits == Hits(0) {
            self.passed.insert((member, borrow.number));
        }
        self.post(Mail::ToMember(member, answer));
    }

    /// An answer reaches its member, or nobody.
    fn answer(&mut self, member: Member, mut answer: Answer) {
        let Some(node) = self.nodes.iter_mut().find(|node| node.member == member) else { return };
        let now = node.clock(self.now);
        if self.flaw == Flaw::WindowOnMembersClock {
            answer.good_for = answer.good_for.plus(node.behind);
        }
        if let (Flaw::OldAnswerTaken, Some(last)) = (self.flaw, node.last) {
            answer.number = last.number;
        }
        let before = node.ledger.balance(now);
        node.ledger.settle(now, &answer);
        let credited = before < node.ledger.balance(now);
        if self.flaw == Flaw::CreditedToEachWaiter && credited {
            self.admit(answer.granted);
        }
    }

    /// The flaws of a store that takes back what it must not.
    fn take_back_carelessly(&mut self, member: Member, borrow: Borrow) -> Borrow {
        let listed = self.store.book.held_by(member, self.now) != Hits(0);
        let lent_in = self.lent_in.get(&(member, borrow.lease)).copied();
        let rolled = lent_in.is_some_and(|lent_in| lent_in != self.store.counted.window(self.now));
        let careless = match self.flaw {
            Flaw::GivenBackAfterTheRoll => rolled,
            Flaw::GivenBackAfterExpiry => !listed && !rolled,
            _ => false,
        };
        if !careless {
            return borrow;
        }
        self.store.counted.refund_blindly(self.now, borrow.returned);
        Borrow { returned: Hits(0), ..borrow }
    }

    fn admit(&mut self, hits: Hits) {
        let (out, out_at_roll) = (self.out, self.out_at_roll);
        self.log.push(Admitted { at: self.now, hits: hits.0, out, out_at_roll });
    }

    /// Nobody asks for a while.
    fn pass_silently(&mut self) {
        for _ in 0..10 {
            let longest = self.store.terms.term.0.min(self.span.0) / 10;
            let step = self.dice.up_to(longest);
            self.wait(Nanos(step));
            self.deliver();
            self.hold_the_invariants();
        }
    }

    /// Every member is asked a little, so that it has something to hold.
    fn gather(&mut self) {
        for _ in 0..3 {
            for node in 0..self.nodes.len() {
                self.question(node, Hits(1));
            }
            self.wait(Nanos(self.span.0 / 100));
            self.deliver();
        }
    }

    /// The worst clients come to all members at once, at times as a window begins, and then to the
    /// store itself.
    fn blast(&mut self) {
        self.gather();
        let window = self.store.counted.window(self.now);
        let waits = window != 0 && self.dice.once_in(2);
        while waits && self.store.counted.window(self.now) == window {
            self.wait(Nanos(self.span.0 / 300));
        }
        self.deliver();
        for node in 0..self.nodes.len() {
            let now = self.nodes[node].clock(self.now);
            while 0 < self.nodes[node].ledger.balance(now).0 {
                self.question(node, Hits(1));
            }
        }
        while matches!(self.store.charge(self.now, Hits(1)), Step::Admit(_)) {
            self.admit(Hits(1));
        }
    }

    /// What the proof rests on. A flawed world breaks it, and is left to the oracle.
    fn hold_the_invariants(&mut self) {
        let out = self.store.book.out(self.now).0;
        self.seen.most_out = self.seen.most_out.max(out);
        if self.flaw != Flaw::None {
            return;
        }
        if let Overshoot::AtMost(budget) = self.store.terms.overshoot {
            assert!(out <= budget.0, "{out} out of {budget}");
        }
        for node in &self.nodes {
            let held = node.ledger.held(node.clock(self.now));
            let listed = self.store.book.held_by(node.member, self.now);
            assert!(held <= listed, "a member may hold {held}, listed are {listed}");
        }
    }
}

fn counted(dice: &mut Dice, kind: Kind, span: Nanos) -> Counted {
    let limit = u32::try_from(dice.pick(&[3, 10, 40]) + dice.up_to(5)).unwrap();
    let windows = Windows::Every(span);
    match kind {
        Kind::Gcra => {
            let burst = limit / (1 + u32::try_from(dice.up_to(2)).unwrap());
            Counted::Gcra(Gcra::new(limit, span, burst).unwrap(), Tat::default())
        }
        Kind::FixedWindow | Kind::CoupledWindow => {
            Counted::Fixed(FixedWindow::new(limit, windows).unwrap(), Count::default())
        }
        Kind::CoupledCalendar => {
            // Months are of different lengths.
            let start = |index: u64| Nanos(index * span.0 + index % 3 * (span.0 / 30_000) * 1_000);
            Counted::Calendar(limit, (900..4_000).map(start).collect(), Count::default())
        }
        Kind::SlidingWindow => {
            Counted::Sliding(SlidingWindow::new(limit, span).unwrap(), Pair::default())
        }
        Kind::SlidingLog => Counted::Log(SlidingLog::new(limit, span).unwrap(), Log::default()),
    }
}
