use std::sync::Mutex;

use super::*;

/// Flash in memory that behaves as NOR does, and can lose power.
#[derive(Debug)]
pub(in crate::uboot) struct FixtureFlash {
    inner: Mutex<Inner>,
    info: FlashInfo,
}

#[derive(Debug)]
struct Inner {
    bytes: Vec<u8>,
    locked: bool,
    /// Operations until the power goes, and then half of the last one.
    left: usize,
    log: Vec<String>,
}

impl FixtureFlash {
    pub(in crate::uboot) fn new(size: usize, erase_block: u64) -> Self {
        Self {
            inner: Mutex::new(Inner {
                bytes: vec![0xff; size],
                locked: true,
                left: usize::MAX,
                log: Vec::new(),
            }),
            info: FlashInfo {
                size: size as u64,
                erase_block,
            },
        }
    }

    pub(in crate::uboot) fn bytes(&self) -> Vec<u8> {
        self.inner.lock().unwrap().bytes.clone()
    }

    pub(in crate::uboot) fn put(&self, bytes: &[u8]) {
        self.inner.lock().unwrap().bytes = bytes.to_vec();
    }

    /// Power for so many operations more; half of the next one is still done.
    pub(in crate::uboot) fn cut_after(&self, operations: usize) {
        self.inner.lock().unwrap().left = operations;
    }

    fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.inner.lock().unwrap().log)
    }

    fn operation(&self, what: &str, change: impl Fn(&mut [u8], usize)) -> Result<()> {
        let mut inner = self.inner.lock().unwrap();
        assert!(!inner.locked, "{what} of locked blocks");
        inner.log.push(what.to_owned());
        if inner.left == 0 {
            change(&mut inner.bytes, 2);
            let off = std::io::Error::other("no power");
            return Err(Error::io("reach", "/dev/mtd0")(off));
        }
        inner.left -= 1;
        change(&mut inner.bytes, 1);
        Ok(())
    }
}

impl Flash for std::sync::Arc<FixtureFlash> {
    fn info(&self) -> FlashInfo {
        self.info
    }

    fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>> {
        let offset = at(offset);
        Ok(self.bytes()[offset..offset + length].to_vec())
    }

    fn writable(&self) -> Result<()> {
        Ok(())
    }

    fn unlock(&self, _offset: u64, _length: u64) -> Result<bool> {
        let mut inner = self.inner.lock().unwrap();
        Ok(std::mem::replace(&mut inner.locked, false))
    }

    fn lock(&self, _offset: u64, _length: u64) -> Result<()> {
        self.inner.lock().unwrap().locked = true;
        Ok(())
    }

    fn erase(&self, offset: u64, length: u64) -> Result<()> {
        assert_eq!(
            (
                offset % self.info.erase_block,
                length % self.info.erase_block
            ),
            (0, 0)
        );
        let what = format!("erase {offset:#x} {length:#x}");
        self.operation(&what, |bytes, part| {
            bytes[at(offset)..][..at(length) / part].fill(0xff);
        })
    }

    fn program(&self, offset: u64, new: &[u8]) -> Result<()> {
        let what = format!("program {offset:#x} {:#x}", new.len());
        self.operation(&what, |bytes, part| {
            let place = &mut bytes[at(offset)..];
            for (byte, new) in place.iter_mut().zip(&new[..new.len() / part]) {
                *byte &= new;
            }
        })
    }
}

fn at(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}

fn flash() -> std::sync::Arc<FixtureFlash> {
    std::sync::Arc::new(FixtureFlash::new(0x4000, 0x1000))
}

#[test]
fn a_copy_is_written_into_erased_blocks_and_what_lies_behind_it_is_kept() {
    let flash = flash();
    let mut before = vec![0xff; 0x4000];
    before[0x1000..0x1800].fill(0x55);
    before[0x1800..0x3000].fill(0x77);
    flash.put(&before);
    write(&flash, 0x1000, &[0xaa; 0x800], false).unwrap();
    let mut wanted = before;
    wanted[0x1000..0x1800].fill(0xaa);
    assert!(flash.bytes() == wanted);
    assert_eq!(
        flash.log(),
        ["erase 0x1000 0x1000", "program 0x1000 0x1000"]
    );
}

#[test]
fn a_flag_is_cleared_without_erasing() {
    let flash = flash();
    program(&flash, 0x2004, &[1], false).unwrap();
    program(&flash, 0x2004, &[0], false).unwrap();
    assert_eq!(flash.bytes()[0x2003..0x2006], [0xff, 0, 0xff]);
    assert_eq!(flash.log(), ["program 0x2004 0x1", "program 0x2004 0x1"]);
}

#[test]
fn a_copy_has_to_lie_in_whole_erase_blocks_of_the_flash() {
    let info = flash().info();
    assert_eq!(check(info, 0x1000, 0x1800, 0), Ok(()));
    assert_eq!(check(info, 0x1000, 0x1800, 2), Ok(()));
    for (offset, size, sectors, problem) in [
        (0x800, 0x800, 0, "start of an erase block of 0x1000"),
        (0x3000, 0x1001, 0, "end at 0x5000, the flash at 0x4000"),
        (0x0, 0x1001, 1, "1 sectors of 0x1000 bytes do not hold"),
    ] {
        let error = check(info, offset, size, sectors).unwrap_err();
        assert!(error.contains(problem), "{error}");
    }
}

#[test]
fn what_is_no_mtd_device_is_refused() {
    let null = Path::new("/dev/null");
    let error = MtdDevice::open(null, null).unwrap_err();
    assert!(error.chain().contains("/dev/null"), "{}", error.chain());
}
