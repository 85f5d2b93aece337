//! The reference disk, as its boot loaders read it.

mod entries;
mod environment;

use std::fs::File;
use std::ops::Range;

use anyhow::{Context, Result, bail};

use self::environment::of_pair;
use super::SECTOR;
use super::fat::{Bytes, Fat};
use super::judge::{Digests, LoaderRules, Slots, Startable, order_of};
use super::view::View;
use crate::disk::{partition_id, partition_ranges};
use crate::loader::{Held, Loader, UBOOT_COPY, held_by_grub, held_by_uboot};

/// Index of the boot partition among the parts of a view; the slots and the data partition follow.
const BOOT: usize = 0;
const SLOTS: [usize; 2] = [1, 2];
const DATA: usize = 3;
/// Index of U-Boot's environment, where it is a partition.
const ENVIRONMENT: usize = 4;

/// Folders of the boot partition that the agent has files in, with one loader or another.
const FOLDERS: [&str; 7] = [
    "/loader/entries",
    "/slotd/a",
    "/slotd/b",
    "/grub/slotd/a",
    "/grub/slotd/b",
    "/EFI/slotd/a",
    "/EFI/slotd/b",
];

/// A disk of the layout of `image/recipe`, and its loader.
#[derive(Debug, Clone)]
pub(crate) struct Reference {
    loader: Loader,
    parts: Vec<Range<u64>>,
    /// Ids of the slots' partitions.
    ids: [String; 2],
}

impl Reference {
    /// The disk with this partition table.
    pub(crate) fn new(loader: Loader, disk: &File) -> Result<Self> {
        let partitions = if loader == Loader::UbootRaw { 5 } else { 4 };
        Ok(Self {
            loader,
            parts: partition_ranges(disk, partitions)?,
            ids: [partition_id(disk, 2)?, partition_id(disk, 3)?],
        })
    }

    /// The parts that a view has to have.
    pub(crate) fn parts(&self) -> &[Range<u64>] {
        &self.parts
    }

    /// Where the slots are.
    pub(crate) fn slots(&self) -> Slots {
        Slots {
            parts: SLOTS.map(|part| (part, self.parts[part].clone())),
        }
    }

    /// Where the data partition lies.
    pub(crate) fn data_partition(&self) -> Range<u64> {
        self.parts[DATA].clone()
    }

    /// Where the boot partition lies.
    pub(crate) fn boot(&self) -> Range<u64> {
        self.parts[BOOT].clone()
    }

    /// Names in a folder of the boot partition, sorted.
    pub(crate) fn names(&self, view: &View<'_>, folder: &str) -> Result<Vec<String>> {
        let fat = Fat::open(view, self.boot().start)?;
        let mut names: Vec<String> = fat
            .list(folder)?
            .into_iter()
            .map(|name| name.name)
            .collect();
        names.sort();
        Ok(names)
    }

    /// An error where the agent could not remove what it left there: no upgrade would begin any more.
    pub(crate) fn can_be_gone_on_with<B: Bytes>(&self, disk: &B) -> Result<()> {
        let fat = Fat::open(disk, self.boot().start)?;
        match fat.dangling(&FOLDERS)? {
            Some(file) => bail!("{file} leads to clusters that are free"),
            None => Ok(()),
        }
    }

    /// Files of the boot partition that the loader has variables in.
    fn variables(&self) -> &'static [&'static str] {
        match self.loader {
            Loader::Grub | Loader::GrubBios => &["/grub/grubenv"],
            Loader::Uboot => &["/uboot.env", "/uboot-redund.env"],
            Loader::UbootFile => &["/uboot.env"],
            Loader::UbootRaw | Loader::SystemdBoot | Loader::Efi => &[],
        }
    }

    /// Sectors of the boot partition whose writes change any of its files: the tables, the names in those folders that
    /// slots have files in, and the loader's variables. Where none of them can be written, everything there stays as it is.
    pub(crate) fn written_with_the_slots(&self, disk: &File) -> Result<Vec<u64>> {
        let fat = Fat::open(disk, self.boot().start)?;
        let mut ranges = vec![fat.tables()];
        for folder in ["/", "/loader/entries", "/slotd", "/slotd/a", "/slotd/b"] {
            ranges.extend(fat.folder_extents(folder)?);
        }
        for path in self.variables() {
            let file = fat.find(path)?.with_context(|| format!("no {path}"))?;
            ranges.extend(fat.extents(&file)?);
        }
        Ok(ranges
            .into_iter()
            .flat_map(|range| range.start / SECTOR..range.end.div_ceil(SECTOR))
            .collect())
    }

    /// What the loader's variables say.
    pub(crate) fn held(&self, view: &View<'_>) -> Result<Held> {
        let boot = self.boot().start;
        match (self.loader, self.variables()) {
            (Loader::Grub | Loader::GrubBios, [block]) => {
                held_by_grub(&environment::of_grub(&read(view, boot, block)?)?)
            }
            (_, [first, second]) => {
                let copies = [first, second].map(|path| read(view, boot, path));
                held_by_uboot(&of_pair(&copies)?)
            }
            (_, [copy]) => held_by_uboot(&environment::of_one(&read(view, boot, copy)?)?),
            (Loader::UbootRaw, _) => held_by_raw_pair(view, self.parts[ENVIRONMENT].start),
            _ => bail!("{} has no variables on its disk", self.loader.name()),
        }
    }

    fn order_of_entries(&self, view: &View<'_>, digests: &mut Digests) -> Result<Vec<Startable>> {
        let fat = Fat::open(view, self.boot().start)?;
        let mut order = Vec::new();
        for entry in entries::sorted(&fat)? {
            let slot = ['A', 'B']
                .into_iter()
                .zip(&self.ids)
                .find(|(_, id)| entry.root.as_ref() == Some(id));
            let Some((slot, _)) = slot else {
                bail!("{entry:?} can be started, and its root is no slot");
            };
            // A broken chain is nothing that the loader could load.
            let file = fat.find(&entry.linux)?;
            let extents = file.as_ref().and_then(|file| fat.extents(file).ok());
            let kernel = match (file, extents) {
                (Some(file), Some(extents)) => Some(digests.of(view, &extents, file.size)?),
                _ => None,
            };
            order.push(Startable {
                slot,
                proven: entry.tries.is_none(),
                tries: entry.tries,
                kernel,
            });
        }
        Ok(order)
    }
}

impl LoaderRules for Reference {
    fn data(&self, view: &View<'_>) -> u64 {
        let environment = (self.parts.len() > ENVIRONMENT).then_some(ENVIRONMENT);
        view.fingerprint_of_parts([BOOT].into_iter().chain(environment))
    }

    fn order(&self, view: &View<'_>, digests: &mut Digests) -> Result<Vec<Startable>> {
        self.can_be_gone_on_with(view)?;
        match self.loader {
            Loader::SystemdBoot => self.order_of_entries(view, digests),
            _ => Ok(order_of(&self.held(view)?)),
        }
    }
}

/// What the two raw copies of U-Boot's environment say that begin there.
pub(crate) fn held_by_raw_pair(view: &View<'_>, start: u64) -> Result<Held> {
    let copies = [0, UBOOT_COPY].map(|offset| {
        let mut bytes = vec![0; usize::try_from(UBOOT_COPY)?];
        view.read_at(start + offset, &mut bytes)?;
        Ok(bytes)
    });
    held_by_uboot(&of_pair(&copies)?)
}

fn read(view: &View<'_>, partition: u64, path: &str) -> Result<Vec<u8>> {
    let fat = Fat::open(view, partition)?;
    let file = fat.find(path)?.with_context(|| format!("{path} is gone"))?;
    fat.read(&file)
}
