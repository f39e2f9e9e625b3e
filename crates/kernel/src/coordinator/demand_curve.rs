//! The demand of one replica's classes and customers, as a curve over the level of a fair part.
//!
//! At a *level*, each customer of a class gets its demand, but at most the level times its weight. The
//! curve of a class is the sum of these parts. It is concave, and ends at the whole demand.
//! A few points of it are reported, with straight lines between them.
//!
//! | formula, for customers of weight 1 that could use 2 and 10 permits | worked row |
//! |---|---|
//! | curve(level) = Σ min(demand, level·weight) | curve(2) = 4, curve(5) = 7, curve(10) = 12 |
//!
//! Guarantees:
//! - A curve has at most [`MAX_POINTS`] points, so a report is bounded.
//! - The last point of each class is exact. A line between two points is never above the curve.
//! - All products are below 2^53, so the doubles of Redis scripts represent them exactly.
//!
//! Not covered:
//! - A customer that several replicas serve: it counts at each of them as another customer.

use serde::{Deserialize, Serialize};

use crate::concurrency::MAX_CLASSES;
use crate::units::Share;

/// The most points of a curve.
pub const MAX_POINTS: usize = 16;

/// The units of demand in one permit.
pub const UNITS_PER_PERMIT: u64 = 16;

/// The largest demand of a curve, in units: 4,194,303 permits. That of one customer is 131,071 permits for
/// each unit of its weight.
pub const MOST_DEMAND: u32 = (1 << 26) - 1;

/// The largest level, in 1/1,024 permit for each unit of weight.
pub const MOST_LEVEL: u32 = (1 << 27) - 1;

/// The points of a class from which those of the curve are chosen: a report is measured under a lock.
const MAX_CANDIDATES: usize = 256;

/// The levels of one unit of demand.
const LEVELS_PER_UNIT: u64 = 1_024 / UNITS_PER_PERMIT;

/// One point of a class's curve.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct DemandPoint {
    /// The class and the level: class·2^27 + level.
    pub place: u32,
    /// The demand of the class at this level, in 1/16 permit.
    pub demand: u32,
}

impl DemandPoint {
    /// Returns the point; `None` if no replica can have it.
    #[must_use]
    pub fn new(class: u32, level: u32, demand: u32) -> Option<Self> {
        let is_known = class < MAX_CLASSES.into() && 0 < level && level <= MOST_LEVEL;
        let place = class.saturating_mul(MOST_LEVEL + 1).saturating_add(level);
        (is_known && demand <= MOST_DEMAND).then_some(Self { place, demand })
    }

    /// The number of the class.
    #[must_use]
    pub const fn class(self) -> u32 {
        self.place / (MOST_LEVEL + 1)
    }

    /// The level, in 1/1,024 permit for each unit of weight.
    #[must_use]
    pub const fn level(self) -> u32 {
        self.place % (MOST_LEVEL + 1)
    }

    /// Returns the point of the line from `before` to this point at which the demand reaches `most`; this
    /// point if it does not.
    fn cut(self, before: Self, most: u32) -> Option<Self> {
        if self.demand <= most {
            return Some(self);
        }
        let rise = u64::from(self.demand.saturating_sub(before.demand));
        let length = u64::from(self.level().saturating_sub(before.level()));
        let part = u64::from(most.saturating_sub(before.demand)).saturating_mul(length);
        let along = part.div_ceil(rise.max(1));
        let level = u64::from(before.level()).saturating_add(along);
        Self::new(self.class(), bounded(level, self.level()), most)
    }
}

/// The demand of one customer in one class, at one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CustomerDemand {
    /// The number of the class.
    pub class: u8,
    /// The permits that the customer could use, in 1/16 permit.
    pub demand: u32,
    /// The weight, at least 1.
    pub weight: u32,
}

impl CustomerDemand {
    /// Lowers the demand to what the customer gets at the largest level. Otherwise its line would give it
    /// more than level·weight.
    fn bound(&mut self) {
        let weight = u64::from(self.weight.max(1));
        let most = weight.saturating_mul(MOST_LEVEL.into()) / LEVELS_PER_UNIT;
        self.demand = self.demand.min(bounded(most, MOST_DEMAND));
    }

    /// The level at which the customer gets all of its demand.
    fn level(&self) -> u32 {
        let level = u64::from(self.demand).saturating_mul(LEVELS_PER_UNIT);
        bounded(level.div_ceil(self.weight.max(1).into()), MOST_LEVEL)
    }
}

/// The demand of one replica; empty if the limit has neither classes nor fair parts.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(into = "Vec<DemandPoint>", try_from = "Vec<DemandPoint>")]
pub struct DemandCurve {
    points: [DemandPoint; MAX_POINTS],
    len: u8,
}

impl DemandCurve {
    /// A replica without demand, or a limit without classes and fair parts.
    pub const EMPTY: Self =
        Self { points: [DemandPoint { place: 0, demand: 0 }; MAX_POINTS], len: 0 };

    /// Returns the curve with these points; `None` if no replica can have it: the points are sorted by
    /// class and level, no level is 0, and the demand of a class never falls.
    #[must_use]
    pub fn new(points: &[DemandPoint]) -> Option<Self> {
        let is_bounded = points.iter().all(|point| {
            DemandPoint::new(point.class(), point.level(), point.demand) == Some(*point)
        });
        let is_sorted = points.is_sorted_by(|before, after| {
            let is_same_class = before.class() == after.class();
            before.place < after.place && (!is_same_class || before.demand <= after.demand)
        });
        let (mut curve, len) = (Self::EMPTY, u8::try_from(points.len()).ok()?);
        curve.points.get_mut(..points.len())?.copy_from_slice(points);
        (is_bounded && is_sorted).then_some(Self { len, ..curve })
    }

    /// Returns the curve of these customers, without those that have no demand. If a class has more than
    /// 256 different levels, a part of them are candidates for points. Cost: O(n log n).
    #[must_use]
    pub fn of_customers(customers: &mut Vec<CustomerDemand>) -> Self {
        customers.retain(|one| 0 < one.demand);
        customers.iter_mut().for_each(CustomerDemand::bound);
        customers.sort_unstable_by_key(|one| (one.class, one.level()));
        let classes = customers.chunk_by(|one, next| one.class == next.class);
        let all: Vec<DemandPoint> =
            classes.flat_map(|class| thinned(&exact_points(class))).collect();
        let ends = all.chunk_by(|one, next| one.class() == next.class()).filter_map(<[_]>::last);
        let mut kept: Vec<DemandPoint> = ends.copied().collect();
        while kept.len() < MAX_POINTS {
            let Some(worst) = worst_point(&all, &kept) else { break };
            let at = kept.partition_point(|point| point.place < worst.place);
            kept.insert(at, worst);
        }
        Self::new(&kept).unwrap_or_default()
    }

    /// The points, by class and level.
    #[must_use]
    pub fn points(&self) -> &[DemandPoint] {
        self.points.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// Returns `true` without demand.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns this curve with at most `most` permits of demand, those of the first classes and of the
    /// lowest levels.
    #[must_use]
    pub fn at_most(&self, most: Share) -> Self {
        let most = bounded(most.0.saturating_mul(UNITS_PER_PERMIT), MOST_DEMAND);
        let (mut last, mut before) = (DemandPoint::default(), 0_u32);
        let mut cut = Vec::with_capacity(MAX_POINTS);
        for point in self.points() {
            if point.class() != last.class() {
                before = before.saturating_add(last.demand);
                last = DemandPoint { place: point.place.saturating_sub(point.level()), demand: 0 };
            }
            let left = most.saturating_sub(before);
            if last.demand < left {
                cut.extend(point.cut(last, left));
            }
            last = DemandPoint { demand: point.demand.min(left), ..*point };
        }
        Self::new(&cut).unwrap_or_default()
    }

    /// Returns the demand of `class` at `level`, in 1/16 permit.
    #[must_use]
    pub fn at(&self, class: u32, level: u32) -> u64 {
        let of_class = self.points().iter().skip_while(|point| point.class() < class);
        let points = of_class.take_while(|point| point.class() == class);
        demand_at(points, level)
    }
}

impl From<DemandCurve> for Vec<DemandPoint> {
    fn from(curve: DemandCurve) -> Self {
        curve.points().to_vec()
    }
}

impl TryFrom<Vec<DemandPoint>> for DemandCurve {
    type Error = &'static str;

    fn try_from(points: Vec<DemandPoint>) -> Result<Self, Self::Error> {
        Self::new(&points).ok_or("no replica can have this demand")
    }
}

/// Returns the demand at `level` on the lines between the points of one class.
fn demand_at<'p>(points: impl Iterator<Item = &'p DemandPoint>, level: u32) -> u64 {
    let (mut from_level, mut from) = (0, 0);
    for point in points {
        let (to_level, to) = (u64::from(point.level()), u64::from(point.demand));
        if u64::from(level) < to_level {
            let rise = to.saturating_sub(from);
            let along = u64::from(level).saturating_sub(from_level);
            let length = to_level.saturating_sub(from_level);
            let risen = rise.saturating_mul(along).checked_div(length).unwrap_or(0);
            return from.saturating_add(risen);
        }
        (from_level, from) = (to_level, to);
    }
    from
}

/// Returns the exact curve of one class: a point where the part of each customer ends. The customers
/// are sorted by their levels.
fn exact_points(customers: &[CustomerDemand]) -> Vec<DemandPoint> {
    let mut weight: u64 =
        customers.iter().fold(0, |sum, one| sum.saturating_add(one.weight.max(1).into()));
    let mut full: u64 = 0;
    let mut points: Vec<DemandPoint> = Vec::with_capacity(customers.len());
    for one in customers {
        full = full.saturating_add(one.demand.into());
        weight = weight.saturating_sub(one.weight.max(1).into());
        let level = one.level();
        let others = weight.saturating_mul(level.into()) / LEVELS_PER_UNIT;
        let demand = bounded(full.saturating_add(others), MOST_DEMAND);
        let Some(point) = DemandPoint::new(one.class.into(), level, demand) else { continue };
        if points.last().is_some_and(|last| last.place == point.place) {
            points.pop();
        }
        points.push(point);
    }
    points
}

/// Returns at most about [`MAX_CANDIDATES`] of the points of a class, with the last one.
fn thinned(points: &[DemandPoint]) -> Vec<DemandPoint> {
    let step = points.len().div_ceil(MAX_CANDIDATES).max(1);
    points.iter().rev().step_by(step).rev().copied().collect()
}

/// Returns the point that is farthest above the lines between the `kept` ones.
fn worst_point(all: &[DemandPoint], kept: &[DemandPoint]) -> Option<DemandPoint> {
    let error = |point: &DemandPoint| {
        let line = kept.iter().filter(|it| it.class() == point.class());
        u64::from(point.demand).saturating_sub(demand_at(line, point.level()))
    };
    let worst = all.iter().max_by_key(|point| error(point))?;
    (0 < error(worst)).then_some(*worst)
}

fn bounded(number: u64, most: u32) -> u32 {
    u32::try_from(number).unwrap_or(most).min(most)
}
