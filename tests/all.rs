//! Every integration test, in one binary.
#![allow(missing_docs)]

mod edge;
