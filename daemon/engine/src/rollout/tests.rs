//! Each rule by itself, on small fleets.

mod failures;
mod fixture;
mod lifecycle;
mod objects;
mod ownership;
mod places;
