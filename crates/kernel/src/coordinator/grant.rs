//! The share that the coordinator grants in reply to a heartbeat, computed from the running sums.
//!
//! Guarantees:
//! - A share fits beside the exposures of all other replicas.
//!
//! Not covered:
//! - The fair share; see [`super::split`].

use super::coordinator::{Arrival, Coordinator, count};
use super::message::Grant;
use super::running_sums::RunningSums;
use super::share_state::{GrantRecord, ShareState};
use super::split::{FairShare, ReplicaDemand, Split, SplitRule};
use crate::units::{Generation, Nanos, Share};

impl Coordinator {
    /// Computes the sums over all share states except that of the reporting replica.
    ///
    /// Returns the number of live replicas, and the index of the reporting replica among them.
    fn sum_up(&mut self, arrival: &Arrival<'_>, own: &ShareState) -> (u64, Option<usize>) {
        let (mut live_count, mut me, mut valid_until) = (0_usize, None, own.expires_at);
        let mut sums = RunningSums {
            limit: self.limit(),
            next_expiry: own.expires_at,
            fill_level: self.sums.fill_level,
            ..RunningSums::default()
        };
        for (index, state) in self.share_states.iter().enumerate() {
            let (is_own, is_live) = (index == arrival.at, self.is_live(index, arrival.now));
            match (is_own, is_live) {
                (true, true) => me = Some(live_count),
                (true, false) => {}
                (false, true) => sums.put(u64::saturating_add, state),
                (false, false) => sums.put_expired(state),
            }
            if is_live {
                live_count = live_count.saturating_add(1);
                valid_until = valid_until.min(state.expires_at);
            }
        }
        // If a share state has expired, the sums are invalid for the next heartbeat, whose
        // configuration decides how long the share state is kept.
        let are_all_live = live_count == self.share_states.len();
        sums.valid_until = if are_all_live { valid_until } else { Nanos(0) };
        self.sums = sums;
        (count(live_count), me)
    }

    /// Grants the fair share, as far as the exposures of the other replicas leave permits free.
    pub(super) fn grant_share(&mut self, arrival: &Arrival<'_>, own: ShareState) -> Grant {
        let Arrival { heartbeat, now, grace, at, .. } = *arrival;
        let limit = self.limit();
        let (live_count, me) = if self.sums.valid_until <= now || limit != self.sums.limit {
            self.sum_up(arrival, &own)
        } else {
            (count(self.share_states.len()), Some(at))
        };
        let own_need = me.map_or(Share(0), |_| own.demand.min(limit));
        let split = Split {
            limit,
            live_count,
            me: me.unwrap_or(at),
            own_need,
            total_need: self.sums.need.plus(own_need),
            with_demand: self.sums.with_demand.saturating_add(u64::from(Share(0) < own_need)),
            idle: 0,
        };
        let fair = me.map_or(FairShare::default(), |_| self.fair_share(arrival, split));
        let share = self.grantable_share(arrival, &own, &split, fair);
        let generation = self.store_grant(arrival, own, share);
        Grant {
            replica: heartbeat.replica,
            incarnation: heartbeat.incarnation,
            heartbeat_number: heartbeat.number,
            coordinator_incarnation: self.incarnation,
            generation,
            share,
            fair_share: fair.share,
            limit,
            replicas: live_count,
            is_recovering: grace,
        }
    }

    fn fair_share(&mut self, arrival: &Arrival<'_>, split: Split) -> FairShare {
        let turn_cutoff = arrival.now.since(arrival.config.timing.turn_duration());
        let mut fill_level = self.sums.fill_level;
        let demands = || self.live_replicas(arrival.now).map(ReplicaDemand::from);
        let fair = split.fair_share(turn_cutoff, demands, &mut fill_level);
        self.sums.fill_level = fill_level;
        fair
    }

    /// Returns `true` if another replica needs more than its granted share.
    fn any_short(&self, split: &Split) -> bool {
        0 < self.sums.short || split.split_rule() == SplitRule::All && 0 < self.sums.without_share
    }

    /// The share that the replica gets now, because the rest of its fair share is not free yet.
    fn grantable_share(
        &self,
        arrival: &Arrival<'_>,
        own: &ShareState,
        split: &Split,
        fair: FairShare,
    ) -> Share {
        let (free, confirmed) = (split.limit.less(self.sums.exposure), own.confirmed.share);
        if free < confirmed {
            // The limit fell below the sum of all exposures. If every share were cut to zero until
            // all replicas received the new limit, requests would be denied for nothing. So a
            // replica keeps its share while all shares that were granted since the decrease fit the
            // limit.
            let room_after_decrease = split.limit.less(self.sums.used);
            return fair.share.min(confirmed).min(room_after_decrease);
        }
        // Do not take away permits that no other replica can use. In the grace period no other
        // replica may receive them; otherwise no other replica needs more.
        let keeps_surplus = arrival.grace || !self.any_short(split);
        let goal = if keeps_surplus { fair.share.max(confirmed) } else { fair.share };
        let unreserved = if arrival.grace { Share(0) } else { free.less(fair.reserved) };
        goal.min(confirmed.max(unreserved))
    }

    /// Stores the grant of `share` in the share state and the sums, and returns its number.
    fn store_grant(
        &mut self,
        arrival: &Arrival<'_>,
        mut own: ShareState,
        share: Share,
    ) -> Generation {
        // An unchanged share keeps its generation, because a new one would carry no information.
        let mut generation = own.confirmed.generation;
        if own.confirmed.share != share || generation == Generation(0) {
            generation = self.generation.next();
        }
        self.generation = self.generation.max(generation);
        if (share == Share(0)) != (own.granted.share == Share(0)) {
            own.changed_at = arrival.now;
        }
        own.granted = GrantRecord { generation, share };
        own.replied_limit = self.limit();
        self.sums.put(u64::saturating_add, &own);
        self.sums.extend(&own, count(self.share_states.len()).saturating_sub(1));
        self.write(arrival.at, own);
        generation
    }
}
