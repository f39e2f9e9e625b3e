//! Explores every order of events in small models, with the kernel's own functions as steps.

mod budget;
mod coordinator;
mod lease;
