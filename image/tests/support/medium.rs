//! A medium in memory that records what is done to it, and fails or lies when told to.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use slotd_image::Medium;

/// One call to the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    Write { offset: u64, length: u64 },
    Zero { offset: u64, length: u64 },
    Flush,
    Read { offset: u64, length: u64 },
}

/// What to do about a call.
pub enum Fault {
    None,
    /// It fails with this error number.
    Fail(i32),
    /// It says that it worked, and does nothing.
    Ignore,
    /// It works, and one bit of the range is wrong afterwards.
    FlipBit,
}

type Script = Box<dyn Fn(usize, Call) -> Fault + Send + Sync>;

struct State {
    /// What a read returns.
    content: Vec<u8>,
    /// What is left after a cut now.
    durable: Vec<u8>,
    calls: Vec<Call>,
    /// Called with `durable` after each call.
    cuts_with_an_image: usize,
}

pub struct TestMedium {
    state: Mutex<State>,
    script: Script,
    alignment: u64,
    capacity: u64,
}

impl TestMedium {
    /// Full of an old image's bytes.
    pub fn new(
        capacity: usize,
        script: impl Fn(usize, Call) -> Fault + Send + Sync + 'static,
    ) -> Arc<Self> {
        let mut old = vec![0xAA; capacity];
        super::superblock(&mut old, capacity);
        let state = State {
            durable: old.clone(),
            content: old,
            calls: Vec::new(),
            cuts_with_an_image: 0,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            script: Box::new(script),
            alignment: 512,
            capacity: capacity as u64,
        })
    }

    pub fn calls(&self) -> Vec<Call> {
        self.state.lock().unwrap().calls.clone()
    }

    pub fn content(&self) -> Vec<u8> {
        self.state.lock().unwrap().content.clone()
    }

    /// Whether the first MiB holds anything at all.
    pub fn holds_an_image(&self) -> bool {
        self.content()[..super::MIB].iter().any(|byte| *byte != 0)
    }

    /// What a cut now would leave, if it lost all unflushed writes.
    pub fn durable(&self) -> Vec<u8> {
        self.state.lock().unwrap().durable.clone()
    }

    /// After how many calls a cut would have left something in the first MiB, be it that all
    /// unflushed writes were lost or that all of them arrived.
    pub fn cuts_with_an_image(&self) -> usize {
        self.state.lock().unwrap().cuts_with_an_image
    }

    fn call(
        &self,
        call: Call,
        range: std::ops::Range<usize>,
        act: impl FnOnce(&mut State),
    ) -> io::Result<()> {
        assert_eq!(range.start as u64 % self.alignment, 0, "{call:?}");
        assert_eq!(range.end as u64 % self.alignment, 0, "{call:?}");
        let mut state = self.state.lock().unwrap();
        let number = state.calls.len();
        state.calls.push(call);
        match (self.script)(number, call) {
            Fault::Fail(errno) => return Err(io::Error::from_raw_os_error(errno)),
            Fault::Ignore => {}
            Fault::None => act(&mut state),
            Fault::FlipBit => {
                act(&mut state);
                state.content[range.start + range.len() / 2] ^= 4;
            }
        }
        let some = |bytes: &[u8]| bytes[..super::MIB].iter().any(|byte| *byte != 0);
        if some(&state.durable) || some(&state.content) {
            state.cuts_with_an_image += 1;
        }
        Ok(())
    }
}

fn range(offset: u64, length: u64) -> std::ops::Range<usize> {
    offset as usize..(offset + length) as usize
}

impl Medium for TestMedium {
    fn path(&self) -> &Path {
        Path::new("/dev/test")
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn alignment(&self) -> u64 {
        self.alignment
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        assert_eq!(bytes.as_ptr() as u64 % self.alignment, 0);
        let length = bytes.len() as u64;
        let at = range(offset, length);
        self.call(Call::Write { offset, length }, at.clone(), |state| {
            state.content[at].copy_from_slice(bytes);
        })
    }

    fn zero(&self, offset: u64, length: u64) -> io::Result<()> {
        let at = range(offset, length);
        self.call(Call::Zero { offset, length }, at.clone(), |state| {
            state.content[at].fill(0)
        })
    }

    fn flush(&self) -> io::Result<()> {
        self.call(Call::Flush, 0..0, |state| {
            state.durable.clone_from(&state.content)
        })
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        assert_eq!(bytes.as_ptr() as u64 % self.alignment, 0);
        let length = bytes.len() as u64;
        let at = range(offset, length);
        self.call(Call::Read { offset, length }, at.clone(), |state| {
            bytes.copy_from_slice(&state.content[at]);
        })
    }
}
