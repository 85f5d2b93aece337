//! API types of `monok8s.io`, version and catalog rules.
