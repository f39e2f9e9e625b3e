//! The laws of leases: the theorem over whole simulated worlds, and the parts one by one.

mod book;
mod ledger;
mod oracle;
mod sizer;
mod store;
mod theorem;
mod world;
