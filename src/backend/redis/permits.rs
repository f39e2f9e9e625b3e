//! Acquires, renews and releases permits of strict concurrency limits.
//!
//! Guarantees:
//! - Each acquisition is one call, sent once.
//! - Renewals and releases are one call per partition, all at the same time.
//! - Each call has the store's deadline.
//!
//! Not covered:
//! - Arguments and replies of the scripts ([`super::codec::permits`]).

use std::sync::Arc;

use futures_util::future::join_all;

use super::codec::permits::{Letter, Place, pack_acquire, pack_tell, read_acquire, read_tell};
use super::connection::Live;
use super::{Cause, Redis, not_understood};
use crate::backend::Reply;
use crate::backend::permits::{Acquire, AllHeard, Answer, Round, Times, Told};

impl Redis {
    pub(super) fn acquire_one<'a>(
        &'a self,
        asked: &'a Acquire,
    ) -> Reply<'a, Result<Answer, Cause>> {
        let place = self.place_of(&asked.bucket);
        let slot = self.route.slot_of(&place.life(self.key_prefix.as_bytes()));
        match self.route.live(slot) {
            Ok(live) => Reply::Later(Box::pin(self.acquire_from(live, slot, place, asked))),
            Err(cause) => Reply::Now(Err(cause)),
        }
    }

    async fn acquire_from(
        &self,
        live: Arc<Live>,
        slot: u16,
        place: Place,
        asked: &Acquire,
    ) -> Result<Answer, Cause> {
        let call = pack_acquire(asked, self.letter(place, &live, &asked.ask.times));
        let reply =
            self.route.within(self.deadline, slot, live.acquire(call.keys, call.args)).await?;
        let answer = read_acquire(&reply).map_err(|refused| not_understood(&refused))?;
        answer.ok_or(Cause::WrongType)
    }

    /// Reports renewed and released permits to their partitions.
    pub(super) async fn tell_all(&self, round: &Round) -> AllHeard {
        let mut heard = round.unheard(Cause::NotUnderstood);
        let places: Vec<Place> =
            round.told.iter().map(|told| self.place_of(&told.bucket)).collect();
        let mut to: Vec<Place> = if round.everywhere { self.places() } else { places.clone() };
        to.sort_unstable();
        to.dedup();
        let its = |place: Place| {
            let all = places.iter().enumerate().filter(move |(_, of)| **of == place);
            all.map(|(at, _)| at).collect::<Vec<_>>()
        };
        let asked = to.into_iter().map(|place| async move {
            let its = its(place);
            let told: Vec<&Told> = its.iter().map(|at| &round.told[*at]).collect();
            let heard = self.tell_place(place, &told, &round.times).await;
            (its, heard.unwrap_or_else(|cause| vec![Err(cause); told.len()]))
        });
        for (its, answers) in join_all(asked).await {
            for (at, answer) in its.into_iter().zip(answers) {
                heard[at] = answer;
            }
        }
        heard
    }

    async fn tell_place(
        &self,
        place: Place,
        told: &[&Told],
        times: &Times,
    ) -> Result<AllHeard, Cause> {
        let slot = self.route.slot_of(&place.life(self.key_prefix.as_bytes()));
        let live = self.route.live(slot)?;
        let call = pack_tell(told.iter().copied(), self.letter(place, &live, times));
        let reply = self.route.within(self.deadline, slot, live.tell(call.keys, call.args)).await?;
        read_tell(told.iter().copied(), &reply).map_err(|refused| not_understood(&refused))
    }

    fn letter<'a>(&'a self, place: Place, live: &'a Live, times: &'a Times) -> Letter<'a> {
        let (prefix, store) = (self.key_prefix.as_bytes(), live.run_id());
        Letter { prefix, place, store, times, at: None }
    }

    fn place_of(&self, bucket: &[u8]) -> Place {
        if self.route.is_clustered() { Place::of(bucket) } else { Place::One }
    }

    fn places(&self) -> Vec<Place> {
        if self.route.is_clustered() { Place::all().collect() } else { vec![Place::One] }
    }
}
