//! The parts of the world that tests start, stop and talk to.

pub mod dice;
pub mod redis;
pub mod resp;
