//! Stores that reserve less than the coordinator does, or grant less than the limit.

use sluicegate_kernel::coordinator::share_state::{GrantRecord, ShareState};
use sluicegate_kernel::coordinator::{
    Coordinator, CoordinatorConfig, CoordinatorIncarnation, Heartbeat, HeartbeatReply, RunningSums,
};
use sluicegate_kernel::units::{Nanos, Share};

/// One deviation of a store from the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFlaw {
    No,
    /// The store splits one permit less than the limit.
    OneLess,
    /// The store does not reserve this for other replicas than the sender.
    Omits(Reserve),
}

/// A part of the permits that the coordinator reserves for a replica, or of the time for which it
/// does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// The share that the replica had when it sent its newest heartbeat.
    Confirmed,
    /// The share in the reply to that heartbeat.
    Granted,
    /// The requests in flight in that heartbeat.
    InFlight,
    /// The lifetime of the share.
    Lifetime,
    /// The longest duration of a request under the share.
    MaxDuration,
    /// The end of requests under an earlier, longer `max_duration`.
    EarlierRequests,
}

impl StoreFlaw {
    /// Applies `heartbeat` as a store with this flaw would. The omission affects only this reply.
    pub fn apply_heartbeat(
        self,
        coordinator: &mut Coordinator,
        (now, life): (Nanos, &CoordinatorIncarnation),
        config: &CoordinatorConfig,
        heartbeat: &Heartbeat,
    ) -> HeartbeatReply {
        let mut config = *config;
        let reserve = match self {
            Self::No => return coordinator.apply_heartbeat(now, life, &config, heartbeat),
            Self::OneLess => {
                let limit = config.max.less(Share(1));
                (config.min, config.start, config.max) = (limit, limit, limit);
                return coordinator.apply_heartbeat(now, life, &config, heartbeat);
            }
            Self::Omits(reserve) => reserve,
        };
        if reserve == Reserve::MaxDuration {
            config.timing.max_duration = Nanos(0);
        }
        let is_other = |state: &ShareState| state.sort_key() != heartbeat.sort_key();
        let before = coordinator.share_states.clone();
        for state in coordinator.share_states.iter_mut().filter(|state| is_other(state)) {
            reserve.omit(state, config.timing.share_lifetime);
        }
        coordinator.sums = RunningSums::default();
        let reply = coordinator.apply_heartbeat(now, life, &config, heartbeat);
        for state in coordinator.share_states.iter_mut().filter(|state| is_other(state)) {
            let known = before.iter().find(|known| known.sort_key() == state.sort_key());
            *state = known.copied().unwrap_or(*state);
        }
        coordinator.sums = RunningSums::default();
        reply
    }
}

impl Reserve {
    pub const ALL: [Self; 6] = [
        Self::Confirmed,
        Self::Granted,
        Self::InFlight,
        Self::Lifetime,
        Self::MaxDuration,
        Self::EarlierRequests,
    ];

    fn omit(self, state: &mut ShareState, lifetime: Nanos) {
        match self {
            Self::Confirmed => state.confirmed = GrantRecord::default(),
            Self::Granted => state.granted = GrantRecord::default(),
            Self::InFlight => state.in_flight = Share(0),
            Self::Lifetime => state.expires_at = state.expires_at.since(lifetime),
            Self::MaxDuration => state.max_duration = Nanos(0),
            Self::EarlierRequests => state.earlier_requests_end = Nanos(0),
        }
    }
}
