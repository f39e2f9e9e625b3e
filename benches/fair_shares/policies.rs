//! The ways to choose among waiting requests, behind one interface.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use sluicegate::kernel::concurrency::limiter::{
    Limiter, LimiterConfig, LimiterEffect, LimiterEvent, QueueConfig,
};
use sluicegate::kernel::concurrency::{Permit, QueueTicket, RequestOutcome, Requester};
use sluicegate::kernel::units::Nanos;

pub(crate) const LIMIT: u32 = 100;

/// The bounds of the queue in each policy.
pub(crate) const QUEUE: QueueConfig =
    QueueConfig { size: 200, timeout: Nanos(500 * Nanos::MILLI.0) };

/// A request by its number and its customer.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub number: u64,
    pub customer: u64,
}

/// The result of a request.
pub(crate) enum Fate {
    Admitted(Request),
    Denied(Request),
}

/// A limit on requests in flight.
pub(crate) trait Policy {
    /// Adds a request, and appends the requests whose fate it decides.
    fn arrive(&mut self, now: Nanos, request: Request, fates: &mut Vec<Fate>);

    /// Ends an admitted request.
    fn end(&mut self, now: Nanos, request: Request, fates: &mut Vec<Fate>);
}

/// Sluicegate's limiter, with fair parts or as a plain queue.
pub(crate) struct Ours {
    limiter: Limiter,
    permits: HashMap<u64, Permit>,
    waiting: HashMap<QueueTicket, Request>,
}

impl Ours {
    pub(crate) fn new(fair_keys: Option<u32>) -> Self {
        let config = LimiterConfig { queue: Some(QUEUE), fair_keys, ..LimiterConfig::fixed(LIMIT) };
        let limiter = Limiter::new(&config, 0);
        Self { limiter, permits: HashMap::new(), waiting: HashMap::new() }
    }

    fn step(
        &mut self,
        now: Nanos,
        event: LimiterEvent,
        arriving: Option<Request>,
        fates: &mut Vec<Fate>,
    ) {
        for effect in self.limiter.step(now, event) {
            match effect {
                LimiterEffect::Admit(permit) => {
                    self.permits.insert(arriving.unwrap().number, permit);
                    fates.push(Fate::Admitted(arriving.unwrap()));
                }
                LimiterEffect::Queue(ticket) => {
                    self.waiting.insert(ticket, arriving.unwrap());
                }
                LimiterEffect::Deny(_) => fates.push(Fate::Denied(arriving.unwrap())),
                LimiterEffect::Wake(ticket, permit) => {
                    let request = self.waiting.remove(&ticket).unwrap();
                    self.permits.insert(request.number, permit);
                    fates.push(Fate::Admitted(request));
                }
                LimiterEffect::TimedOut(ticket) | LimiterEffect::Displaced(ticket) => {
                    fates.push(Fate::Denied(self.waiting.remove(&ticket).unwrap()));
                }
                LimiterEffect::Expired(_) | LimiterEffect::Unknown => unreachable!(),
            }
        }
    }
}

impl Policy for Ours {
    fn arrive(&mut self, now: Nanos, request: Request, fates: &mut Vec<Fate>) {
        let by = Requester::of_customer(0, request.customer, 1);
        let event = LimiterEvent::Acquire { lifetime: None, timeout: QUEUE.timeout, by };
        self.step(now, event, Some(request), fates);
    }

    fn end(&mut self, now: Nanos, request: Request, fates: &mut Vec<Fate>) {
        let permit = self.permits.remove(&request.number).unwrap();
        let event = LimiterEvent::Release { permit, outcome: RequestOutcome::Success, rtt: None };
        self.step(now, event, None, fates);
    }
}

/// Queues that customers share by shuffle sharding: each customer has a hand of queues, and its request
/// joins the shortest one. A free slot goes to the queue with the fewest requests in flight.
pub(crate) struct ShuffleSharding {
    queues: Vec<ShardQueue>,
    hand: usize,
    in_flight: u32,
    /// The queue of each admitted request.
    places: HashMap<u64, usize>,
    hands: HashMap<u64, Vec<usize>>,
    turn: u64,
}

#[derive(Default)]
struct ShardQueue {
    waiting: VecDeque<(Nanos, Request)>,
    in_flight: u32,
    last_served: u64,
}

impl ShuffleSharding {
    pub(crate) fn new(queues: usize, hand: usize) -> Self {
        let queues = (0..queues).map(|_| ShardQueue::default()).collect();
        let (places, hands) = (HashMap::new(), HashMap::new());
        Self { queues, hand, in_flight: 0, places, hands, turn: 0 }
    }

    /// Deals the hand of a customer: different queues, the same at each call.
    fn deal(&self, customer: u64) -> Vec<usize> {
        let mut deck: BTreeMap<u64, usize> = BTreeMap::new();
        for queue in 0..self.queues.len() {
            let mut hasher = DefaultHasher::new();
            (customer, queue).hash(&mut hasher);
            deck.insert(hasher.finish(), queue);
        }
        deck.into_values().take(self.hand).collect()
    }

    fn serve(&mut self, now: Nanos, fates: &mut Vec<Fate>) {
        for queue in &mut self.queues {
            while queue.waiting.front().is_some_and(|(deadline, _)| *deadline <= now) {
                fates.push(Fate::Denied(queue.waiting.pop_front().unwrap().1));
            }
        }
        while self.in_flight < LIMIT {
            let queues =
                self.queues.iter().enumerate().filter(|(_, queue)| !queue.waiting.is_empty());
            let next = queues.min_by_key(|(_, queue)| (queue.in_flight, queue.last_served));
            let Some(place) = next.map(|(place, _)| place) else { return };
            self.turn += 1;
            self.in_flight += 1;
            let queue = &mut self.queues[place];
            (queue.in_flight, queue.last_served) = (queue.in_flight + 1, self.turn);
            let (_, request) = queue.waiting.pop_front().unwrap();
            self.places.insert(request.number, place);
            fates.push(Fate::Admitted(request));
        }
    }
}

impl Policy for ShuffleSharding {
    fn arrive(&mut self, now: Nanos, request: Request, fates: &mut Vec<Fate>) {
        if !self.hands.contains_key(&request.customer) {
            self.hands.insert(request.customer, self.deal(request.customer));
        }
        let load = |place: &&usize| {
            let queue = &self.queues[**place];
            queue.waiting.len() + usize::try_from(queue.in_flight).unwrap()
        };
        let place = *self.hands[&request.customer].iter().min_by_key(load).unwrap();
        let most = usize::try_from(QUEUE.size).unwrap() / self.hand;
        if most <= self.queues[place].waiting.len() {
            return fates.push(Fate::Denied(request));
        }
        self.queues[place].waiting.push_back((now.plus(QUEUE.timeout), request));
        self.serve(now, fates);
    }

    fn end(&mut self, now: Nanos, request: Request, fates: &mut Vec<Fate>) {
        let place = self.places.remove(&request.number).unwrap();
        self.queues[place].in_flight -= 1;
        self.in_flight -= 1;
        self.serve(now, fates);
    }
}

/// A plain queue from which a rising part of the arriving requests is denied early, as in an adaptive
/// limiter of failsafe-go with its default factors: none below two limits, all from three.
pub(crate) struct EarlyRejection {
    waiting: VecDeque<(Nanos, Request)>,
    in_flight: u32,
}

impl EarlyRejection {
    pub(crate) const fn new() -> Self {
        Self { waiting: VecDeque::new(), in_flight: 0 }
    }

    fn serve(&mut self, now: Nanos, fates: &mut Vec<Fate>) {
        while self.waiting.front().is_some_and(|(deadline, _)| *deadline <= now) {
            fates.push(Fate::Denied(self.waiting.pop_front().unwrap().1));
        }
        while self.in_flight < LIMIT
            && let Some((_, request)) = self.waiting.pop_front()
        {
            self.in_flight += 1;
            fates.push(Fate::Admitted(request));
        }
    }
}

impl Policy for EarlyRejection {
    fn arrive(&mut self, now: Nanos, request: Request, fates: &mut Vec<Fate>) {
        let (waiting, limit) = (self.waiting.len() as u64, u64::from(LIMIT));
        // The rejected part, in percent of the arriving requests.
        let part = waiting.saturating_sub(2 * limit) * 100 / limit;
        let mut hasher = DefaultHasher::new();
        request.number.hash(&mut hasher);
        if hasher.finish() % 100 < part {
            return fates.push(Fate::Denied(request));
        }
        self.waiting.push_back((now.plus(QUEUE.timeout), request));
        self.serve(now, fates);
    }

    fn end(&mut self, now: Nanos, _: Request, fates: &mut Vec<Fate>) {
        self.in_flight -= 1;
        self.serve(now, fates);
    }
}
