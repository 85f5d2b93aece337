//! The node's upgrade as a pure state machine: no I/O, no clock, no async.
