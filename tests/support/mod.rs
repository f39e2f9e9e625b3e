//! The parts of the world that tests start, stop and talk to.

pub mod dice;
pub mod proxy;
pub mod redis;
pub mod resp;
