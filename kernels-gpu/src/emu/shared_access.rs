//! Loads and stores of shared memory by single threads.

use std::panic::Location;

use super::block::Parts;
use super::cluster;
use super::machine::Machine;
use super::shared::Readers;
use super::site;

/// `ld.shared` of `N` registers.
#[track_caller]
#[inline]
pub(crate) fn load<const N: usize>(instruction: &'static str, addr: u32) -> [u32; N] {
    let machine = Machine::current();
    let site = site::intern(instruction, Location::caller());
    machine.count_load(site);
    let who = machine.current.get();
    let mut words = [0; N];
    let read = {
        let mut block = machine.blocks[who.slot].borrow_mut();
        let (actor, shared) = block.actor(who, site);
        let read = shared.read(&actor, addr, (N * 4) as u32, Readers::Lane);
        read.map(|offset| {
            for (i, word) in words.iter_mut().enumerate() {
                *word = u32::from_le_bytes(shared.bytes(offset + i * 4));
            }
        })
    };
    machine.settle(read, ());
    words
}

/// `st.shared` of `N` registers.
#[track_caller]
#[inline]
pub(crate) fn store<const N: usize>(instruction: &'static str, addr: u32, words: [u32; N]) {
    let machine = Machine::current();
    let site = site::intern(instruction, Location::caller());
    let who = machine.current.get();
    let stored = {
        let mut block = machine.blocks[who.slot].borrow_mut();
        let (actor, shared) = block.actor(who, site);
        shared.write(&actor, addr, (N * 4) as u32).map(|offset| {
            for (i, word) in words.iter().enumerate() {
                shared.fill(offset + i * 4, &word.to_le_bytes());
            }
        })
    };
    machine.settle(stored, ());
    machine.progress();
}

/// `st.shared::cluster` of `N` registers: to the shared memory of any block of the cluster.
#[track_caller]
pub(crate) fn store_cluster<const N: usize>(instruction: &'static str, addr: u32, words: [u32; N]) {
    let machine = Machine::current();
    let site = site::intern(instruction, Location::caller());
    let stored = cluster::access(machine, site, addr, |_, parts| {
        let Parts { actor, shared, .. } = parts;
        let offset = shared.write(&actor, addr, (N * 4) as u32)?;
        for (i, word) in words.iter().enumerate() {
            shared.fill(offset + i * 4, &word.to_le_bytes());
        }
        Ok(())
    });
    machine.settle(stored, ());
    machine.progress();
}
