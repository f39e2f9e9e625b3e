//! Compares calls on known rows of two replicas with the memory store, without a server.

use proptest::prelude::*;

use super::super::cached::{KnownRows, Proposal, Saved};
use super::super::queue::PendingCall;
use super::super::rows::from_micros;
use super::*;
use crate::{Outcomes, StoreFailure};

/// Applies a proposal as `PROPOSE` does without locks of others.
fn propose(table: &mut Table, now: Nanos, proposal: &Proposal) -> Saved {
    let mut result = Saved { now: Some(now), ..Saved::default() };
    for (index, key) in proposal.keys.iter().enumerate() {
        let (value, empty_at) = (&proposal.values[index], proposal.empty_at[index]);
        match table.0.iter_mut().find(|(stored, ..)| stored == key) {
            Some((_, known, kept)) if *known == proposal.known[index] && 0 <= *kept => {
                (*known, *kept) = (value.clone(), empty_at.abs());
                result.keys.insert(key.clone());
            }
            Some(_) => {}
            None => {
                table.0.push((key.clone(), value.clone(), empty_at));
                let keys = if empty_at < 0 { &mut result.missing } else { &mut result.keys };
                keys.insert(key.clone());
            }
        }
    }
    result
}

struct Fleet {
    table: Table,
    known: [KnownRows; 2],
    law: MemoryStore,
    known_hits: u32,
}

impl Fleet {
    fn law_of(&self, now: Nanos, charges: &Charges) -> Outcomes {
        let StoreReply::Ready(law) = self.law.charge(now, charges) else { panic!() };
        law
    }

    /// Runs a transaction of one replica, without known rows.
    fn transact(&mut self, replica: usize, now: Nanos, charges: &Charges) {
        let operation = ChargeOperation::new(charges, "p");
        assert_eq!(self.table.run(now, &operation), self.law_of(now, charges));
        self.note(replica, &operation);
    }

    fn note(&mut self, replica: usize, operation: &ChargeOperation) {
        for (key, value, empty_at) in &self.table.0 {
            if operation.keys().contains(key) {
                self.known[replica].note_saved(key, value, from_micros(*empty_at));
            }
        }
    }

    /// Runs a check of one replica on known rows, while `meanwhile` of the other one is committed.
    fn check(
        &mut self,
        replica: usize,
        now: Nanos,
        charges: &Charges,
        meanwhile: Option<&Charges>,
    ) {
        let operation = ChargeOperation::new(charges, "p");
        let keys = operation.keys().to_vec();
        let (call, mut reply) = PendingCall::queued(operation);
        let mut calls = vec![call];
        self.known[replica].set_clock(now);
        let mut taken = self.known[replica].take_known(&mut calls);
        let decided_at = taken.now();
        let proposal = taken.decide(&self.known[replica]);
        if let Some(other) = meanwhile {
            self.transact(1 - replica, now, other);
        }
        let saved = propose(&mut self.table, decided_at, &proposal);
        let part = |is_saved: bool| -> (Vec<usize>, Charges) {
            let at: Vec<_> =
                (0..keys.len()).filter(|&at| saved.keys.contains(&keys[at]) == is_saved).collect();
            let list = at.iter().map(|&at| charges.list[at].clone()).collect();
            (at, Charges { list, mode: charges.mode })
        };
        let (known_at, known) = part(true);
        let (other_at, other) = part(false);
        self.known_hits += u32::try_from(known_at.len()).unwrap_or(0);
        let mut law: Vec<_> = known_at.into_iter().zip(self.law_of(decided_at, &known)).collect();
        self.known[replica].note_proposed(proposal, &saved);
        calls.extend(taken.finish(&saved.keys));
        for mut call in calls {
            law.extend(other_at.iter().copied().zip(self.law_of(now, &other)));
            self.repeat(now, &mut *call);
            call.finish(Ok(()));
        }
        law.sort_by_key(|(at, _)| *at);
        let law: Outcomes = law.into_iter().map(|(_, outcome)| outcome).collect();
        assert_eq!(reply.try_recv(), Ok(Ok(law)));
        self.note(replica, &ChargeOperation::new(charges, "p"));
    }

    /// Applies the rest of a call to the rows of the table.
    fn repeat(&mut self, now: Nanos, call: &mut dyn super::super::queue::QueuedCall) {
        self.table.0.retain(|(_, _, empty_at)| to_micros(now) < *empty_at);
        let stored = self.table.0.iter().map(|(key, value, _)| (key.clone(), value.clone()));
        let wanted = stored.filter(|(key, _)| call.keys().iter().any(|(wanted, _)| *wanted == key));
        let mut rows = Rows::new(now, "1".to_owned(), wanted);
        call.apply(&mut rows);
        for (key, value, empty_at) in rows.changed() {
            self.table.0.retain(|(old, ..)| old != key);
            self.table.0.push((key.to_vec(), value.to_vec(), to_micros(empty_at)));
        }
    }
}

proptest! {
    /// The law is the memory store, which gets the charges in the order of the server.
    #[test]
    fn known_rows_decide_like_the_memory_store(
        steps in proptest::collection::vec(
            (0_usize..2, 1_u64..3_000, any_charges(), proptest::option::of(any_charges())),
            1..40,
        )
    ) {
        let law = MemoryStore::new(1_000, WhenFull::Deny, [7; 16]);
        let mut fleet = Fleet { table: Table::default(), known: Default::default(), law, known_hits: 0 };
        let mut now = START;
        for (replica, pause, charges, meanwhile) in steps {
            now = now.plus(Nanos(pause * Nanos::MILLI.0));
            fleet.check(replica, now, &charges, meanwhile.as_ref());
        }
    }
}

#[test]
fn a_lone_replica_knows_its_rows_after_one_transaction() {
    let law = MemoryStore::new(1_000, WhenFull::Deny, [7; 16]);
    let mut fleet =
        Fleet { table: Table::default(), known: Default::default(), law, known_hits: 0 };
    let one = charge((0, 0, 5, Cost::Charge(Hits(1))));
    let charges = Charges { list: [one].into_iter().collect(), mode: ChargeMode::Each };
    for _ in 0..4 {
        fleet.check(0, START, &charges, None);
    }
    assert_eq!(fleet.known_hits, 3);
    fleet.transact(1, START, &charges);
    fleet.check(0, START, &charges, None);
    assert_eq!(fleet.known_hits, 3, "the row has changed");
    for _ in 0..8 {
        fleet.check(0, START, &charges, None);
    }
    assert_eq!(fleet.known_hits, 4, "after a conflict, transactions follow");
    fleet.table.0.clear();
    fleet.check(0, START.plus(PERIOD).plus(PERIOD), &charges, None);
    assert_eq!(fleet.known_hits, 5, "an empty row may be missing");
}

/// A caller may repeat an unsent call, and would charge the saved row twice.
#[test]
fn a_partly_saved_call_is_never_unsent() {
    let list = [0, 1].map(|name| charge((name, 0, 5, Cost::Charge(Hits(1)))));
    let charges = Charges { list: list.into_iter().collect(), mode: ChargeMode::Each };
    for (saved, expected) in [(0, StoreFailure::Unsent), (1, StoreFailure::ConnectionLost)] {
        let operation = ChargeOperation::new(&charges, "p");
        let saved = operation.keys()[..saved].iter().cloned().collect();
        let (mut call, mut reply) = PendingCall::queued(operation);
        call.apply(&mut Rows::new(START, String::new(), []));
        assert!(!call.keep_saved(&saved));
        call.finish(Err(StoreFailure::Unsent));
        assert_eq!(reply.try_recv(), Ok(Err(expected)));
    }
}
