//! What is GRUB's own: its script in GRUB itself against the model, and what RAUC's script keeps.

mod rauc;
mod refusals;
mod script;
