//! The laws of the rate strategies, over whole traces.

mod every;
mod fixed_window;
mod gcra;
mod limit;
mod sliding_log;
mod sliding_window;
mod traffic;
