//! How the environment block says what a record says: slotd's own variables, or RAUC's. Pure.
//!
//! | a slot is | slotd's convention | RAUC's |
//! |---|---|---|
//! | good | `ok=1` | `OK=1` |
//! | on trial | `ok=0`, `tries` boots left | `OK=1`, and `slotd_trial` names it; `TRY=1` once it was begun |
//! | bad | `ok=0` without `tries`; with `tries=0` where it is not booted | `OK=0`, or a spent trial that is not booted |
//! | empty | neither | `OK=0`, and `slotd_empty` lists it |
//!
//! The order always lists both slots, so that it says which one is preferred whatever they are. RAUC's script writes
//! all of its variables back at every boot, which is why what only we know has variables of its own.

use std::fmt;
use std::str::FromStr;

use super::GrubSetting;
use super::layout::Variable;
use crate::backend::SlotState;
use crate::record::Record;
use crate::slot::SlotName;
use crate::table::Booted;

/// Most boots that slotd's script can count: it knows one digit.
pub(crate) const MOST_TRIES: u32 = 9;

/// Variables that a trial's kernel options are made of, and how long their values are at most: the machine's id, and
/// seconds to prove the trial and from a panic to the reboot. slotd's convention only.
pub(crate) const ANNOUNCED: [(&str, usize); 3] = [
    ("slotd_machine_id", 32),
    ("slotd_deadline", 10),
    ("slotd_panic", 10),
];

/// Which script reads the environment block, and so what its variables mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GrubConvention {
    /// slotd's own, `slotd.cfg`: only trials are counted.
    #[default]
    Slotd,
    /// RAUC's, `contrib/grub.conf` there: every boot takes the one try that a slot has.
    Rauc,
}

/// Names of one slot's variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrubSlotVariables {
    /// The slot's word in the order.
    pub word: String,
    /// `1` if it is proven, or for RAUC if it may be started.
    pub ok: String,
    /// Boots left; for RAUC boots begun.
    pub tries: String,
}

/// Names of the variables in the environment block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrubVariables {
    /// Both slots' words, the preferred one's first.
    pub order: String,
    /// Slot A's.
    pub a: GrubSlotVariables,
    /// Slot B's.
    pub b: GrubSlotVariables,
    /// Boots that the trial was given. slotd's convention only.
    pub given: String,
    /// The word of the slot on trial. RAUC's convention only.
    pub trial: String,
    /// The words of empty slots. RAUC's convention only.
    pub empty: String,
}

impl GrubConvention {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Slotd, Self::Rauc];

    /// Its name, in configurations and on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Slotd => "slotd",
            Self::Rauc => "rauc",
        }
    }

    /// The names as the convention's script has them.
    #[must_use]
    pub fn variables(self) -> GrubVariables {
        let slot = |word: &str, ok: &str, tries: &str| GrubSlotVariables {
            word: word.to_owned(),
            ok: ok.to_owned(),
            tries: tries.to_owned(),
        };
        let (order, a, b) = match self {
            Self::Slotd => (
                "slotd_order",
                slot("a", "slotd_a_ok", "slotd_a_tries"),
                slot("b", "slotd_b_ok", "slotd_b_tries"),
            ),
            Self::Rauc => (
                "ORDER",
                slot("A", "A_OK", "A_TRY"),
                slot("B", "B_OK", "B_TRY"),
            ),
        };
        GrubVariables {
            order: order.to_owned(),
            a,
            b,
            given: "slotd_tries".to_owned(),
            trial: "slotd_trial".to_owned(),
            empty: "slotd_empty".to_owned(),
        }
    }

    /// Most boots that the script can give a trial.
    #[must_use]
    pub fn max_tries(self) -> u32 {
        match self {
            Self::Slotd => MOST_TRIES,
            Self::Rauc => 1,
        }
    }
}

impl fmt::Display for GrubConvention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for GrubConvention {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|convention| convention.name() == text)
            .ok_or_else(|| {
                format!(
                    "{text:?} is no convention of GRUB's environment block: {} are",
                    Self::ALL.map(Self::name).join(", ")
                )
            })
    }
}

/// A convention and the names of its variables.
#[derive(Debug, Clone)]
pub(crate) struct Convention {
    pub(crate) kind: GrubConvention,
    pub(crate) names: GrubVariables,
}

/// What the variables say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Decoded {
    pub(crate) record: Record,
    /// Whether there were any variables of the convention.
    pub(crate) known: bool,
    /// Values that make no sense, in words.
    pub(crate) odd: Vec<String>,
    /// Proven slots whose one try is used up until they are marked good again. RAUC's convention only.
    pub(crate) used_up: Vec<SlotName>,
}

impl Convention {
    /// As it is configured.
    pub(crate) fn of(setting: &GrubSetting) -> Self {
        let names = setting.variables.clone();
        Self {
            kind: setting.convention,
            names: names.unwrap_or_else(|| setting.convention.variables()),
        }
    }

    /// Whether any of the variables that say a slot's state, or the order, has a value. To GRUB's scripts one that is empty
    /// is one that is not set.
    pub(crate) fn is_in(&self, get: impl Fn(&str) -> Option<Vec<u8>>) -> bool {
        SlotName::BOTH
            .into_iter()
            .flat_map(|slot| [&self.slot(slot).ok, &self.slot(slot).tries])
            .chain([&self.names.order])
            .any(|name| get(name).is_some_and(|value| !value.is_empty()))
    }

    pub(crate) fn slot(&self, slot: SlotName) -> &GrubSlotVariables {
        match slot {
            SlotName::A => &self.names.a,
            SlotName::B => &self.names.b,
        }
    }

    /// The variables that a record is, in the order in which they stand in the file; `None` for those that are not to be there.
    pub(crate) fn encode(&self, record: &Record) -> Vec<Variable> {
        let order = [record.first, !record.first].map(|slot| self.slot(slot).word.clone());
        let mut variables = vec![(self.names.order.clone(), Some(order.join(" ").into_bytes()))];
        for slot in SlotName::BOTH {
            let (ok, tries) = match self.kind {
                GrubConvention::Slotd => own_values(record.state(slot)),
                GrubConvention::Rauc => rauc_values(record.state(slot)),
            };
            let names = self.slot(slot);
            variables.push((names.ok.clone(), ok.map(String::into_bytes)));
            variables.push((names.tries.clone(), tries.map(String::into_bytes)));
        }
        let trial = SlotName::BOTH
            .into_iter()
            .find_map(|slot| match record.state(slot) {
                SlotState::Trial { left, done } => Some((slot, left.saturating_add(done))),
                _ => None,
            });
        match self.kind {
            GrubConvention::Slotd => {
                let given = trial.map(|(_, given)| given.min(MOST_TRIES).to_string().into_bytes());
                variables.push((self.names.given.clone(), given));
            }
            GrubConvention::Rauc => {
                let word = trial.map(|(slot, _)| self.slot(slot).word.clone().into_bytes());
                variables.push((self.names.trial.clone(), word));
                let empty: Vec<&str> = SlotName::BOTH
                    .into_iter()
                    .filter(|slot| record.state(*slot) == SlotState::Empty)
                    .map(|slot| self.slot(slot).word.as_str())
                    .collect();
                let empty = (!empty.is_empty()).then(|| empty.join(" ").into_bytes());
                variables.push((self.names.empty.clone(), empty));
            }
        }
        variables
    }

    /// Bytes that all variables take up at most in the file.
    pub(crate) fn reserve(&self) -> usize {
        let words = self
            .names
            .a
            .word
            .len()
            .saturating_add(self.names.b.word.len());
        let names = &self.names;
        let slots = [&names.a.ok, &names.a.tries, &names.b.ok, &names.b.tries];
        let mut variables: Vec<(usize, usize)> = vec![(names.order.len(), words.saturating_add(1))];
        variables.extend(slots.iter().map(|name| (name.len(), 1)));
        match self.kind {
            GrubConvention::Slotd => {
                variables.push((names.given.len(), 1));
                variables.extend(ANNOUNCED.map(|(name, length)| (name.len(), length)));
            }
            GrubConvention::Rauc => {
                variables.push((names.trial.len(), words));
                variables.push((names.empty.len(), words.saturating_add(1)));
            }
        }
        // With the equals sign and the newline.
        let all = variables.iter();
        all.map(|(name, value)| name.saturating_add(*value).saturating_add(2))
            .sum()
    }

    /// What the variables say, where `get` has their values and `trial_boot` is the command line's word.
    pub(crate) fn decode(
        &self,
        get: impl Fn(&str) -> Option<Vec<u8>>,
        booted: Booted,
        trial_boot: bool,
    ) -> Decoded {
        // To GRUB's scripts a variable that is empty is one that is not set.
        let text = |name: &str| {
            let value = get(name).filter(|value| !value.is_empty())?;
            Some(String::from_utf8_lossy(&value).into_owned())
        };
        let known = self.is_in(&get);
        let mut decoded = Decoded {
            record: Record {
                a: SlotState::Empty,
                b: SlotState::Empty,
                first: booted.slot().unwrap_or(SlotName::A),
            },
            known,
            odd: Vec::new(),
            used_up: Vec::new(),
        };
        if !known {
            // What runs was started by a script that knew no better. Of the other slot nothing is claimed.
            if let Some(slot) = booted.slot() {
                let state = if trial_boot {
                    SlotState::Trial { left: 0, done: 1 }
                } else {
                    SlotState::Good
                };
                decoded.record.set(slot, state);
            }
            return decoded;
        }
        let order = text(&self.names.order).unwrap_or_default();
        let listed: Vec<SlotName> = order
            .split(' ')
            .filter_map(|word| {
                SlotName::BOTH
                    .into_iter()
                    .find(|slot| self.slot(*slot).word == word)
            })
            .collect();
        decoded.record.first = listed.first().copied().unwrap_or(SlotName::A);
        for slot in SlotName::BOTH {
            let state = match self.kind {
                GrubConvention::Slotd => self.own_state(slot, &text, booted, &mut decoded.odd),
                GrubConvention::Rauc => self.rauc_state(slot, &text, booted, &mut decoded),
            };
            let state = if listed.contains(&slot) || state == SlotState::Empty {
                state
            } else {
                // The script never looks at it.
                let message = format!("slot {slot} does not stand in {}", self.names.order);
                decoded.odd.push(message);
                SlotState::Bad
            };
            decoded.record.set(slot, state);
        }
        // The loader passed over it for the other one, which is preferred from then on.
        let first = decoded.record.first;
        if decoded.used_up.contains(&first) && booted == Booted::Slot(!first) {
            decoded.record.first = !first;
        }
        decoded
    }

    fn own_state(
        &self,
        slot: SlotName,
        text: &impl Fn(&str) -> Option<String>,
        booted: Booted,
        odd: &mut Vec<String>,
    ) -> SlotState {
        let names = self.slot(slot);
        let (ok, tries) = (text(&names.ok), text(&names.tries));
        if ok.as_deref() == Some("1") {
            return SlotState::Good;
        }
        let Some(tries) = tries else {
            return if ok.is_some() {
                SlotState::Bad
            } else {
                SlotState::Empty
            };
        };
        let Some(left) = digit(&tries) else {
            odd.push(format!(
                "{} is {tries:?}, no number from 0 to 9",
                names.tries
            ));
            return SlotState::Bad;
        };
        if left == 0 && booted != Booted::Slot(slot) {
            return SlotState::Bad;
        }
        let given = text(&self.names.given).and_then(|given| digit(&given));
        SlotState::Trial {
            left,
            done: given.unwrap_or(left).saturating_sub(left),
        }
    }

    fn rauc_state(
        &self,
        slot: SlotName,
        text: &impl Fn(&str) -> Option<String>,
        booted: Booted,
        decoded: &mut Decoded,
    ) -> SlotState {
        let names = self.slot(slot);
        let named = |list: &str| {
            let list = text(list).unwrap_or_default();
            list.split(' ').any(|word| word == names.word)
        };
        if text(&names.ok).as_deref() != Some("1") {
            return if named(&self.names.empty) {
                SlotState::Empty
            } else {
                SlotState::Bad
            };
        }
        let begun = !matches!(text(&names.tries).as_deref(), None | Some("0"));
        match (named(&self.names.trial), begun) {
            (false, false) => SlotState::Good,
            (false, true) => {
                decoded.used_up.push(slot);
                SlotState::Good
            }
            (true, false) => SlotState::Trial { left: 1, done: 0 },
            (true, true) if booted == Booted::Slot(slot) => SlotState::Trial { left: 0, done: 1 },
            (true, true) => SlotState::Bad,
        }
    }
}

fn own_values(state: SlotState) -> (Option<String>, Option<String>) {
    match state {
        SlotState::Good => (Some("1".to_owned()), None),
        SlotState::Trial { left, .. } => {
            (Some("0".to_owned()), Some(left.min(MOST_TRIES).to_string()))
        }
        SlotState::Bad => (Some("0".to_owned()), None),
        SlotState::Empty => (None, None),
    }
}

fn rauc_values(state: SlotState) -> (Option<String>, Option<String>) {
    let (ok, begun) = match state {
        SlotState::Good | SlotState::Trial { left: 1.., .. } => ("1", "0"),
        SlotState::Trial { left: 0, .. } => ("1", "1"),
        SlotState::Bad | SlotState::Empty => ("0", "0"),
    };
    (Some(ok.to_owned()), Some(begun.to_owned()))
}

fn digit(text: &str) -> Option<u32> {
    match text.as_bytes() {
        [byte @ b'0'..=b'9'] => Some(u32::from(byte.wrapping_sub(b'0'))),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
