//! The laws of ceilings on requests in flight.

mod admit;
mod latent;
mod limiter;
mod model;
mod policy;
mod register;
