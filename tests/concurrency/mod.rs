//! The laws of ceilings on requests in flight.

mod limiter;
mod model;
mod register;
