//! Plain loads and stores of global memory.

use std::panic::Location;

use super::machine::Machine;
use super::memory::Strength;
use super::site;

/// `ld.global` of `N` bytes.
#[track_caller]
#[inline]
pub(crate) fn load<const N: usize>(instruction: &'static str, addr: u64) -> [u8; N] {
    let machine = Machine::current();
    let site = site::intern(instruction, Location::caller());
    machine.count_load(site);
    let who = machine.current.get();
    let mut bytes = [0; N];
    let loaded = {
        let mut block = machine.blocks[who.slot].borrow_mut();
        let (actor, _) = block.actor(who, site);
        let mut buffers = machine.buffers.borrow_mut();
        buffers
            .align(&actor, addr, N as u32)
            .and_then(|()| buffers.read(&actor, addr, N as u32, Strength::Plain))
            .map(|()| buffers.load(addr, &mut bytes))
    };
    machine.settle(loaded, ());
    bytes
}

/// `ld` of `N` bytes: of global memory, or of the kernel's parameters.
#[track_caller]
#[inline]
pub(crate) fn load_generic<const N: usize>(instruction: &'static str, addr: u64) -> [u8; N] {
    let machine = Machine::current();
    if machine.buffers.borrow().holds(addr) {
        return load(instruction, addr);
    }
    let site = site::intern(instruction, Location::caller());
    let who = machine.current.get();
    let aligned = {
        let mut block = machine.blocks[who.slot].borrow_mut();
        let (actor, _) = block.actor(who, site);
        machine.buffers.borrow().align(&actor, addr, N as u32)
    };
    machine.settle(aligned, ());
    // SAFETY: the instruction's contract: an address outside of global memory is that of a parameter, which the kernel borrows.
    unsafe { std::ptr::with_exposed_provenance::<[u8; N]>(addr as usize).read() }
}

/// `st.global` of `N` bytes.
#[track_caller]
#[inline]
pub(crate) fn store<const N: usize>(instruction: &'static str, addr: u64, bytes: [u8; N]) {
    let machine = Machine::current();
    let site = site::intern(instruction, Location::caller());
    let who = machine.current.get();
    let stored = {
        let mut block = machine.blocks[who.slot].borrow_mut();
        let (actor, _) = block.actor(who, site);
        let mut buffers = machine.buffers.borrow_mut();
        buffers
            .align(&actor, addr, N as u32)
            .and_then(|()| buffers.write(&actor, addr, N as u32, Strength::Plain))
            .map(|()| buffers.store(addr, &bytes))
    };
    machine.settle(stored, ());
    machine.progress();
}

/// Bytes as registers.
#[inline]
pub(crate) fn words<const N: usize, const BYTES: usize>(bytes: [u8; BYTES]) -> [u32; N] {
    const { assert!(BYTES == 4 * N) };
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
        *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    words
}

/// Registers as bytes.
#[inline]
pub(crate) fn bytes<const N: usize, const BYTES: usize>(words: [u32; N]) -> [u8; BYTES] {
    const { assert!(BYTES == 4 * N) };
    let mut bytes = [0; BYTES];
    for (bytes, word) in bytes.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}
