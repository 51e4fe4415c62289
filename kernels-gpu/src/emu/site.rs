//! Places in a kernel's source, as small numbers: a stamp has no room for an instruction and a file name.

use std::cell::RefCell;
use std::panic::Location;

/// An instruction at a line of a kernel.
pub(super) type Site = u32;

type Known = (&'static str, &'static Location<'static>);

const CACHE: usize = 256;

struct Sites {
    known: Vec<Known>,
    /// The site last found for each hash: kernels have few sites and come by them often.
    cache: [Site; CACHE],
}

thread_local! {
    static SITES: RefCell<Sites> = const { RefCell::new(Sites { known: Vec::new(), cache: [0; CACHE] }) };
}

fn same(a: Known, b: Known) -> bool {
    std::ptr::eq(a.1, b.1) && std::ptr::eq(a.0, b.0)
}

/// The number of this site; every site keeps its number for the life of the OS thread.
pub(super) fn intern(instruction: &'static str, at: &'static Location<'static>) -> Site {
    let site = (instruction, at);
    let hash = (std::ptr::from_ref(at).addr() >> 3) ^ (instruction.as_ptr().addr() >> 1);
    SITES.with_borrow_mut(|sites| {
        let slot = hash % CACHE;
        let cached = sites.cache[slot];
        if sites
            .known
            .get(cached as usize)
            .is_some_and(|known| same(*known, site))
        {
            return cached;
        }
        let found = sites
            .known
            .iter()
            .position(|known| same(*known, site))
            .unwrap_or_else(|| {
                sites.known.push(site);
                sites.known.len() - 1
            });
        sites.cache[slot] = found as Site;
        found as Site
    })
}

/// The instruction and line with this number.
pub(super) fn resolve(site: Site) -> Known {
    SITES.with_borrow(|sites| sites.known[site as usize])
}
