//! Streams an operating-system image into a slot and proves that it arrived.
