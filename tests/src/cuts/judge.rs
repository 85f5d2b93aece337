//! Whether what a power cut left can be started.

use std::collections::HashMap;
use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use super::view::View;
use crate::artifacts::hex;
use crate::loader::Held;

/// A slot that the loader may start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Startable {
    /// In upper case.
    pub(crate) slot: char,
    /// Not counted.
    pub(crate) proven: bool,
    /// Boots that are left to it where it is not proven.
    pub(crate) tries: Option<u32>,
    /// SHA-256 of its kernel, where the loader takes that from elsewhere than the slot, and can.
    pub(crate) kernel: Option<String>,
}

/// Reads a disk as a boot loader does, by rules of its own documentation and by no code of slotd's.
pub(crate) trait LoaderRules {
    /// What is the same for two disks where the loader goes by the same.
    fn data(&self, view: &View<'_>) -> u64;

    /// What it may start, in its order.
    fn order(&self, view: &View<'_>, digests: &mut Digests) -> Result<Vec<Startable>>;
}

/// Where the slots of a disk are in a view.
#[derive(Debug, Clone)]
pub(crate) struct Slots {
    /// Index among the parts of the view, and the bytes that an image has there, of A and B.
    pub(crate) parts: [(usize, Range<u64>); 2],
}

/// What an image is, wherever it is whole.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    version: String,
    /// SHA-256 of its bytes in a slot, in hex.
    content: String,
    kernel: Option<String>,
}

/// Judges one disk after the other, and remembers what it has read.
#[derive(Debug)]
pub(crate) struct Judge<R> {
    rules: R,
    slots: Slots,
    /// Boots that a trial is given.
    tries: u32,
    known: Vec<Known>,
    orders: HashMap<u64, Vec<Startable>>,
    contents: HashMap<(char, u64), String>,
    digests: Digests,
}

impl<R: LoaderRules> Judge<R> {
    /// A judge of disks with these slots, whose trials have so many boots.
    pub(crate) fn new(rules: R, slots: Slots, tries: u32) -> Self {
        Self {
            rules,
            slots,
            tries,
            known: Vec::new(),
            orders: HashMap::new(),
            contents: HashMap::new(),
            digests: Digests::default(),
        }
    }

    pub(crate) const fn rules(&self) -> &R {
        &self.rules
    }

    /// Takes these images for whole wherever they are found, versions and digests, `sha256:…`, of a loader that takes kernels from
    /// slots.
    pub(crate) fn know<'i>(&mut self, images: impl Iterator<Item = (&'i str, &'i str)>) {
        self.known.extend(images.map(|(version, digest)| Known {
            version: version.to_owned(),
            content: digest.trim_start_matches("sha256:").to_owned(),
            kernel: None,
        }));
    }

    /// Takes what can be started of a disk, which holds nothing but these images, for whole, with the kernels that are there.
    /// Images are versions and digests, `sha256:…`.
    ///
    /// # Errors
    /// When a slot that can be started holds none of them.
    pub(crate) fn trust(&mut self, view: &View<'_>, images: &[(&str, &str)]) -> Result<()> {
        for startable in self.order(view)? {
            let content = self.content(view, startable.slot)?;
            let whole = format!("sha256:{content}");
            let image = images.iter().find(|(_, digest)| *digest == whole);
            let (version, _) =
                image.with_context(|| format!("{startable:?} holds none of the images"))?;
            let known = Known {
                version: (*version).to_owned(),
                content,
                kernel: startable.kernel,
            };
            if !self.known.contains(&known) {
                self.known.push(known);
            }
        }
        Ok(())
    }

    /// An error unless the loader starts something whole, has something proven to fall back to, and could not start anything that is
    /// not whole.
    pub(crate) fn judge(&mut self, view: &View<'_>) -> Result<()> {
        let order = self.order(view)?;
        ensure!(!order.is_empty(), "no slot can be started");
        ensure!(
            order.iter().any(|startable| startable.proven),
            "no proven slot can be started: {order:?}"
        );
        for startable in &order {
            let content = self.content(view, startable.slot)?;
            let known = self.known.iter().find(|known| known.content == content);
            let Some(known) = known else {
                bail!("{startable:?} can be started, and holds no whole image");
            };
            ensure!(
                startable.kernel == known.kernel,
                "{startable:?} can be started, and its kernel is not that of {}",
                known.version
            );
            if let Some(tries) = startable.tries {
                ensure!(
                    tries <= self.tries,
                    "{startable:?} has more boots than the {} of a trial",
                    self.tries
                );
            }
        }
        Ok(())
    }

    /// What the loader may start, in its order.
    pub(crate) fn order(&mut self, view: &View<'_>) -> Result<Vec<Startable>> {
        let key = self.rules.data(view);
        if let Some(order) = self.orders.get(&key) {
            return Ok(order.clone());
        }
        let order = self.rules.order(view, &mut self.digests)?;
        self.orders.insert(key, order.clone());
        Ok(order)
    }

    /// SHA-256 of what a slot holds, in hex.
    fn content(&mut self, view: &View<'_>, slot: char) -> Result<String> {
        let (part, bytes) = &self.slots.parts[usize::from(slot != 'A')];
        let key = (slot, view.fingerprint(*part));
        if let Some(content) = self.contents.get(&key) {
            return Ok(content.clone());
        }
        let content = digest(view, std::slice::from_ref(bytes))?;
        self.contents.insert(key, content.clone());
        Ok(content)
    }
}

/// Slots that are proven or have boots left, the preferred one first, of a loader that takes kernels from them.
pub(crate) fn order_of(held: &Held) -> Vec<Startable> {
    let startable = |index: usize| {
        let proven = held.states[index] == "good";
        let tries = held.tries_left[index].filter(|tries| !proven && *tries > 0);
        (proven || tries.is_some()).then_some(Startable {
            slot: ['A', 'B'][index],
            proven,
            tries,
            kernel: None,
        })
    };
    let order = if held.first == 'A' { [0, 1] } else { [1, 0] };
    order.into_iter().filter_map(startable).collect()
}

/// Digests of files, each read once for all disks that have it where it is.
#[derive(Debug, Default)]
pub(crate) struct Digests(HashMap<u64, String>);

impl Digests {
    /// SHA-256 in hex of so many bytes in these pieces of a disk, which begin and end with a sector.
    pub(crate) fn of(
        &mut self,
        view: &View<'_>,
        pieces: &[Range<u64>],
        size: u64,
    ) -> Result<String> {
        let key = pieces
            .iter()
            .map(|piece| view.fingerprint_of(piece).wrapping_add(piece.start))
            .fold(size, |sum, part| sum.rotate_left(7) ^ part);
        if let Some(digest) = self.0.get(&key) {
            return Ok(digest.clone());
        }
        let mut left = size;
        let mut wanted = Vec::new();
        for piece in pieces {
            let length = left.min(piece.end - piece.start);
            wanted.push(piece.start..piece.start + length);
            left -= length;
        }
        let digest = digest(view, &wanted)?;
        self.0.insert(key, digest.clone());
        Ok(digest)
    }
}

fn digest(view: &View<'_>, pieces: &[Range<u64>]) -> Result<String> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 256 << 10];
    for piece in pieces {
        let mut position = piece.start;
        while position < piece.end {
            let length = usize::try_from(piece.end - position)
                .unwrap_or(usize::MAX)
                .min(buffer.len());
            view.read_at(position, &mut buffer[..length])?;
            hasher.update(&buffer[..length]);
            position += length as u64;
        }
    }
    Ok(hex(&hasher.finalize()))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use anyhow::Result;

    use super::{Digests, Judge, LoaderRules, Slots, Startable};
    use crate::cuts::enumerate::{State, reach};
    use crate::cuts::view::View;
    use crate::cuts::write_log::WriteLog;
    use crate::cuts::write_log::tests::record;

    /// The first sector says how many tries slot B has, 9 for proven; A is proven unless the byte behind it says no.
    struct Rules;

    impl LoaderRules for Rules {
        fn data(&self, view: &View<'_>) -> u64 {
            view.fingerprint_of(&(0..1024))
        }

        fn order(&self, view: &View<'_>, digests: &mut Digests) -> Result<Vec<Startable>> {
            let mut bytes = [0; 2];
            view.read_at(0, &mut bytes)?;
            let kernel = Some(digests.of(view, std::slice::from_ref(&(512..1024)), 300)?);
            let a = Startable {
                slot: 'A',
                proven: true,
                tries: None,
                kernel: kernel.clone(),
            };
            let b = Startable {
                slot: 'B',
                proven: bytes[0] == 9,
                tries: (bytes[0] != 9).then_some(u32::from(bytes[0])),
                kernel,
            };
            let b = (bytes[0] > 0).then_some(b);
            Ok(b.into_iter().chain((bytes[1] == 0).then_some(a)).collect())
        }
    }

    /// A judge of four sectors: loader, kernel, A, B; which trusts what the last state has.
    fn judged(requests: &[(u64, u64, Vec<u8>)], at: usize) -> Result<()> {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().join("base");
        std::fs::write(&base, vec![0; 2048]).unwrap();
        let base = File::open(&base).unwrap();
        let log: WriteLog = record(&folder.path().join("log"), requests);
        let view = |at: usize| {
            let parts = [0..512, 1024..1536, 1536..2048];
            let mut view = View::new(&base, &log, &parts).unwrap();
            let state = State {
                at,
                ..State::default()
            };
            reach(&mut view, &state);
            view
        };
        let slots = Slots {
            parts: [(1, 1024..1536), (2, 1536..2048)],
        };
        let mut judge = Judge::new(Rules, slots, 2);
        // By sha256sum: 512 zeroes, and 512 bytes 1.
        let images = [
            (
                "v1",
                "sha256:076a27c79e5ace2a3d47f9dd2e83e4ff6ea8872b3c2218f66c92b89b55f36560",
            ),
            (
                "v2",
                "sha256:6caf38d537984e261527b8caef5f990fb91415a1db917198821a79ed28997973",
            ),
        ];
        judge.trust(&view(0), &images)?;
        judge.trust(&view(requests.len()), &images)?;
        judge.judge(&view(at))
    }

    fn loader(b: u8, a: u8) -> (u64, u64, Vec<u8>) {
        let mut sector = vec![0; 512];
        sector[..2].copy_from_slice(&[b, a]);
        (0, 0, sector)
    }

    #[test]
    fn what_can_be_started_has_to_be_whole_and_something_proven_has_to_be_among_it() {
        let image = (0, 3, vec![1; 512]);
        let good = [image.clone(), loader(2, 0), loader(9, 0)];
        for at in 0..=3 {
            judged(&good, at).unwrap();
        }
        for (requests, says) in [
            // Swapped: tried before it is written.
            (
                vec![loader(2, 0), (0, 3, vec![7; 512]), image.clone()],
                "holds no whole image",
            ),
            (
                vec![image.clone(), loader(1, 1), loader(9, 0)],
                "no proven slot",
            ),
            (
                vec![image.clone(), loader(0, 1), loader(9, 0)],
                "no slot can be started",
            ),
            (
                vec![image.clone(), loader(3, 0), loader(9, 0)],
                "more boots",
            ),
            (
                vec![
                    image.clone(),
                    (0, 1, vec![5; 512]),
                    loader(9, 0),
                    (0, 1, vec![0; 512]),
                ],
                "its kernel is not",
            ),
        ] {
            let error = judged(&requests, 2).unwrap_err();
            assert!(format!("{error:#}").contains(says), "{says}: {error:#}");
        }
    }
}
