//! Which sectors a change has to write.

/// What a medium writes whole or not at all, in bytes: the smallest sector there is.
pub(super) const SECTOR: usize = 512;

/// Runs of sectors that differ, as offsets from the start of the copy. Sectors are those of the device.
pub(super) fn differing_runs<'new>(
    offset: u64,
    old: &[u8],
    new: &'new [u8],
) -> Vec<(usize, &'new [u8])> {
    let sector = u64::try_from(SECTOR).unwrap_or(u64::MAX);
    let into = usize::try_from(offset.checked_rem(sector).unwrap_or(0)).unwrap_or(0);
    let mut runs: Vec<(usize, usize)> = Vec::new();
    let mut from: usize = 0;
    let mut to = SECTOR.saturating_sub(into).min(new.len());
    while from < to {
        if old.get(from..to) != new.get(from..to) {
            match runs.last_mut() {
                Some((_, end)) if *end == from => *end = to,
                _ => runs.push((from, to)),
            }
        }
        from = to;
        to = to.saturating_add(SECTOR).min(new.len());
    }
    runs.into_iter()
        .filter_map(|(from, to)| Some((from, new.get(from..to)?)))
        .collect()
}
