//! Global memory: the caller's own buffers, registered by name.
//!
//! An address given to a kernel is the buffer's address in this process with the buffer's number in the highest byte,
//! where no process has addresses. What a kernel computes from it keeps the number, so an access past the end of one
//! buffer never counts as one of its neighbour's. Workspaces are lent piece by piece and reached from one base, and
//! so have plain addresses.

use std::marker::PhantomData;

use super::block::Actor;
use super::fault::{Fault, Kind, MemoryLocation};
use super::knowledge::Knowledge;
use super::shadow::Shadow;
use super::tensor_map::{Lacks, Released};

/// A type whose every bit pattern is a value: kernels write bytes.
///
/// # Safety
/// The type has no padding, no pointers, and no bit pattern that is not a value of it.
pub unsafe trait Plain: Copy + 'static {}

macro_rules! plain {
    ($($type:ty)*) => { $(
        // SAFETY: a number.
        unsafe impl Plain for $type {}
    )* };
}
plain!(u8 u16 u32 u64 i8 i16 i32 i64 f32 f64 half::f16 half::bf16 float8::F8E4M3);

/// How long a buffer is, and the smallest unit of it whose writers are told apart.
#[derive(Clone, Copy)]
struct Size {
    bytes: u64,
    element_bytes: u32,
}

impl Size {
    fn of<T>(data: &[T]) -> Size {
        Size {
            bytes: size_of_val(data) as u64,
            element_bytes: size_of::<T>() as u32,
        }
    }
}

/// What kernels may do with a buffer.
#[derive(Clone, Copy)]
enum Role {
    /// Written before; kernels only read it.
    Input,
    /// Not written before; kernels write it before they read it.
    Output,
    /// Written before; kernels read and write it.
    InOut,
}

/// Whether an access may meet another unordered one of its kind.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Strength {
    /// It may not.
    Plain,
    /// Atomic accesses do not race with each other.
    Atomic,
}

/// Where the number of a buffer begins in its address.
const NUMBER_SHIFT: u32 = 56;
/// The part of an address that is the process's own.
const OWN: u64 = (1 << NUMBER_SHIFT) - 1;

struct Buffer {
    name: String,
    /// Its address as kernels have it.
    start: u64,
    bytes: u64,
    /// Absent for inputs: what nobody writes cannot be raced for.
    shadow: Option<Shadow>,
}

impl Buffer {
    /// Bytes from its beginning to `addr`, if `bytes` bytes lie within it there.
    #[inline]
    fn offset(&self, addr: u64, bytes: u32) -> Option<u64> {
        let offset = addr.checked_sub(self.start)?;
        (offset + u64::from(bytes) <= self.bytes).then_some(offset)
    }
}

/// The registered buffers.
#[derive(Default)]
pub(super) struct Buffers {
    buffers: Vec<Buffer>,
}

impl Buffers {
    /// What earlier launches did is ordered before everything of this one.
    pub fn begin_launch(&mut self) {
        for shadow in self
            .buffers
            .iter_mut()
            .filter_map(|buffer| buffer.shadow.as_mut())
        {
            shadow.begin_launch();
        }
    }

    /// A launch is over; what had been released in it for those who read tensor maps, if anything had.
    pub fn end_launch(&mut self, released: Option<&Knowledge>) {
        let shadows = self
            .buffers
            .iter_mut()
            .filter_map(|buffer| buffer.shadow.as_mut());
        if let Some(released) = released {
            shadows.for_each(|shadow| shadow.end_launch(released));
        }
    }

    /// Whether an address is one of global memory: all others are the process's own.
    pub fn holds(&self, addr: u64) -> bool {
        addr > OWN
            || self
                .buffers
                .iter()
                .any(|buffer| buffer.offset(addr, 1).is_some())
    }

    pub fn place(&self, addr: u64) -> (MemoryLocation, u64) {
        let nearest = self
            .buffers
            .iter()
            .filter(|buffer| buffer.start <= addr && buffer.start & !OWN == addr & !OWN)
            .max_by_key(|buffer| buffer.start);
        match nearest {
            Some(Buffer {
                name, start, bytes, ..
            }) => (
                MemoryLocation::Global {
                    buffer: name.clone(),
                    offset: addr - start,
                },
                *bytes,
            ),
            None => (MemoryLocation::Address(addr & OWN), 0),
        }
    }

    /// The address must be a multiple of the size of the access.
    #[inline]
    pub fn align(&self, actor: &Actor, addr: u64, bytes: u32) -> Result<(), Fault> {
        if addr.is_multiple_of(u64::from(bytes)) {
            return Ok(());
        }
        let (access, (place, _)) = (actor.access(), self.place(addr));
        Err(Kind::Misaligned {
            access,
            place,
            alignment: bytes,
        }
        .into())
    }

    /// The number of the buffer in which an access lies.
    #[inline]
    fn index(&self, actor: &Actor, addr: u64, bytes: u32) -> Result<usize, Fault> {
        let mut buffers = self.buffers.iter();
        let index = buffers.position(|buffer| buffer.offset(addr, bytes).is_some());
        index.ok_or_else(|| {
            let (place, size) = self.place(addr);
            Kind::OutOfBounds {
                access: actor.access(),
                place,
                bytes,
                size,
            }
            .into()
        })
    }

    #[inline]
    fn find(&mut self, actor: &Actor, addr: u64, bytes: u32) -> Result<(&mut Buffer, u64), Fault> {
        let index = self.index(actor, addr, bytes)?;
        let buffer = &mut self.buffers[index];
        let offset = addr - buffer.start;
        Ok((buffer, offset))
    }

    /// Whether `bytes` bytes at `addr` lie in a buffer.
    pub fn check_bounds(&self, actor: &Actor, addr: u64, bytes: u32) -> Result<(), Fault> {
        self.index(actor, addr, bytes).map(|_| ())
    }

    /// What a tensor map, which [`Buffers::read`] allowed to read, lacks for the copy engine to use it.
    pub fn map_lacks(&mut self, actor: &Actor, addr: u64, bytes: u32) -> Option<Lacks> {
        let mut maps = actor.maps.iter();
        let acquired = maps.find(|map| map.address == addr);
        let none = Released::default();
        let released = acquired.map_or(&none, |map| &map.released);
        let (buffer, offset) = self.find(actor, addr, bytes).ok()?;
        let shadow = buffer.shadow.as_mut();
        let lacks = shadow.and_then(|shadow| shadow.map_lacks(actor, released, offset, bytes));
        lacks.or_else(|| acquired.is_none().then_some(Lacks::Acquire(None)))
    }

    /// Checks a read of `bytes` bytes at `addr`.
    pub fn read(
        &mut self,
        actor: &Actor,
        addr: u64,
        bytes: u32,
        strength: Strength,
    ) -> Result<(), Fault> {
        let (buffer, offset) = self.find(actor, addr, bytes)?;
        match &mut buffer.shadow {
            Some(shadow) => shadow.read(actor, &buffer.name, offset, bytes, strength),
            None => Ok(()),
        }
    }

    /// Checks a write of `bytes` bytes at `addr`.
    pub fn write(
        &mut self,
        actor: &Actor,
        addr: u64,
        bytes: u32,
        strength: Strength,
    ) -> Result<(), Fault> {
        let (buffer, offset) = self.find(actor, addr, bytes)?;
        match &mut buffer.shadow {
            Some(shadow) => shadow.write(actor, &buffer.name, offset, bytes, strength),
            None => {
                let place = MemoryLocation::Global {
                    buffer: buffer.name.clone(),
                    offset,
                };
                Err(Kind::ReadOnly {
                    access: actor.access(),
                    place,
                }
                .into())
            }
        }
    }

    /// Copies bytes from an address that [`Buffers::read`] allowed.
    pub fn load(&self, addr: u64, bytes: &mut [u8]) {
        if !bytes.is_empty() {
            // SAFETY: the address lies in a buffer that a caller lent to the machine, exposing its provenance (`read` checked
            // that); `bytes` is memory of the emulator, so the two do not overlap.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    (addr & OWN) as *const u8,
                    bytes.as_mut_ptr(),
                    bytes.len(),
                )
            };
        }
    }

    /// Copies bytes to an address that [`Buffers::write`] allowed.
    pub fn store(&mut self, addr: u64, bytes: &[u8]) {
        // SAFETY: as in `load`; `write` allows only buffers that were lent for writing.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), (addr & OWN) as *mut u8, bytes.len())
        };
    }
}

/// The global memory that kernels may touch: buffers of the caller, borrowed for `'a`, each with a name for
/// diagnostics. It remembers from launch to launch what was written.
#[derive(Default)]
pub struct GlobalMemory<'a> {
    pub(super) buffers: Buffers,
    lent: PhantomData<&'a mut u8>,
}

impl<'a> GlobalMemory<'a> {
    /// No buffers.
    pub fn new() -> GlobalMemory<'a> {
        GlobalMemory::default()
    }

    /// Lends a buffer that kernels read; its address.
    pub fn input<T: Plain>(&mut self, name: &str, data: &'a [T]) -> u64 {
        let size = Size::of(data);
        let start = self.numbered(data.as_ptr().expose_provenance());
        self.add(name, start, size, Role::Input);
        start
    }

    /// Lends a buffer that kernels write; until they have, its content counts as nothing. Its address.
    pub fn output<T: Plain>(&mut self, name: &str, data: &'a mut [T]) -> u64 {
        let size = Size::of(data);
        let start = self.numbered(data.as_mut_ptr().expose_provenance());
        self.add(name, start, size, Role::Output);
        start
    }

    /// Lends a piece of workspace, an output at its own address in this process: kernels may reach several pieces of
    /// one allocation from one base.
    pub fn scratch<T: Plain>(&mut self, name: &str, data: &'a mut [T]) -> u64 {
        let size = Size::of(data);
        let start = data.as_mut_ptr().expose_provenance() as u64;
        self.add(name, start, size, Role::Output);
        start
    }

    /// Lends a piece of workspace as [`GlobalMemory::scratch`] does, whose content counts.
    pub fn kept<T: Plain>(&mut self, name: &str, data: &'a mut [T]) -> u64 {
        let size = Size::of(data);
        let start = data.as_mut_ptr().expose_provenance() as u64;
        self.add(name, start, size, Role::InOut);
        start
    }

    /// Lends a buffer that kernels read and write and whose content counts; its address.
    pub fn in_out<T: Plain>(&mut self, name: &str, data: &'a mut [T]) -> u64 {
        let size = Size::of(data);
        let start = self.numbered(data.as_mut_ptr().expose_provenance());
        self.add(name, start, size, Role::InOut);
        start
    }

    /// The address with the next buffer's number in it, if there is room for it.
    fn numbered(&self, address: usize) -> u64 {
        let (address, number) = (address as u64, self.buffers.buffers.len() as u64 + 1);
        if address <= OWN && number <= u64::MAX >> NUMBER_SHIFT {
            address | number << NUMBER_SHIFT
        } else {
            address
        }
    }

    fn add(
        &mut self,
        name: &str,
        start: u64,
        Size {
            bytes,
            element_bytes,
        }: Size,
        role: Role,
    ) {
        let shadow = match role {
            Role::Input => None,
            Role::Output => Some(Shadow::new(bytes, element_bytes, false)),
            Role::InOut => Some(Shadow::new(bytes, element_bytes, true)),
        };
        self.buffers.buffers.push(Buffer {
            name: name.to_owned(),
            start,
            bytes,
            shadow,
        });
    }

    /// The first byte of a buffer that no kernel has written; `None` if all were, or the buffer is not known.
    pub fn first_unwritten(&self, name: &str) -> Option<u64> {
        let buffer = self
            .buffers
            .buffers
            .iter()
            .find(|buffer| buffer.name == name)?;
        buffer.shadow.as_ref()?.first_unwritten()
    }
}
