//! Slots, partition discovery and boot loader state of an A/B node.
