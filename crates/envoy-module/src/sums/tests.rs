//! The law: the sums that are taken are the events that were accepted.

use std::sync::Barrier;
use std::thread;

use super::*;

/// The numbers of some events, by their places in [`kinds`].
type Numbers = [u64; 4];

fn kinds(paths: &[Arc<str>; 2]) -> [Event<'_>; 4] {
    let [first, second] = paths;
    [
        Event::Plain(PlainEvent::Wait),
        Event::Rule { path: first, is_allowed: true },
        Event::Rule { path: first, is_allowed: false },
        Event::Rule { path: second, is_allowed: true },
    ]
}

fn paths() -> [Arc<str>; 2] {
    ["shop.api_key", "shop.user"].map(Arc::from)
}

fn numbers(sums: &Sums, kinds: &[Event<'_>; 4]) -> Numbers {
    kinds.map(|kind| sums.iter().filter(|(event, _)| *event == kind).map(|(_, count)| count).sum())
}

/// Runs all sequences of 6 steps: each step adds one kind of event, or takes the sums.
#[test]
fn taken_sums_are_the_events_of_each_sequence() {
    const STEPS: u32 = 6;
    let paths = paths();
    let kinds = kinds(&paths);
    for sequence in 0..5_usize.pow(STEPS) {
        let (sums, mut expected) = (EventSums::default(), Numbers::default());
        for step in (0..STEPS).map(|step| sequence / 5_usize.pow(step) % 5) {
            let Some(event) = kinds.get(step) else {
                assert_eq!(numbers(&sums.take(), &kinds), expected, "{sequence}");
                expected = Numbers::default();
                continue;
            };
            let is_first = expected == Numbers::default();
            let outcome = if is_first { AddOutcome::First } else { AddOutcome::Later };
            assert_eq!(sums.add(std::iter::once(*event)), outcome, "{sequence}");
            expected[step] += 1;
        }
        assert_eq!(numbers(&sums.take(), &kinds), expected, "{sequence}");
    }
}

#[test]
fn threads_lose_no_event_while_another_takes_sums() {
    const THREADS: usize = 3;
    const EVENTS: u64 = 2_000;
    let paths = paths();
    let (kinds, sums, start) = (kinds(&paths), EventSums::default(), Barrier::new(THREADS + 1));
    let add_all = || {
        start.wait();
        (0..EVENTS).for_each(|_| assert_ne!(sums.add(kinds.into_iter()), AddOutcome::Refused));
    };
    let taken = thread::scope(|scope| {
        let adders: Vec<_> = (0..THREADS).map(|_| scope.spawn(add_all)).collect();
        start.wait();
        let mut taken = Vec::new();
        while adders.iter().any(|adder| !adder.is_finished()) {
            taken.push(numbers(&sums.take(), &kinds));
        }
        taken.push(numbers(&sums.take(), &kinds));
        taken
    });
    for (place, kind) in kinds.iter().enumerate() {
        let sum: u64 = taken.iter().map(|numbers| numbers[place]).sum();
        assert_eq!(sum, EVENTS * 3, "{kind:?}");
    }
}

#[test]
fn full_sums_refuse_events_until_they_are_taken() {
    let rules: Vec<Arc<str>> = (0..MAX_RULES).map(|rule| rule.to_string().into()).collect();
    let sums = EventSums::default();
    for path in &rules {
        let event = Event::Rule { path, is_allowed: true };
        assert_ne!(sums.add(std::iter::once(event)), AddOutcome::Refused);
    }
    let event = Event::Plain(PlainEvent::Wait);
    assert_eq!(sums.add(std::iter::once(event)), AddOutcome::Refused);
    let taken = sums.take();
    assert_eq!(taken.iter().count(), MAX_RULES);
    assert!(taken.iter().all(|(_, count)| count == 1));
    assert_eq!(sums.add(std::iter::once(event)), AddOutcome::First);
}
