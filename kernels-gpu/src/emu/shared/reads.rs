//! Who has read shared memory, and when.

use std::collections::HashMap;

use crate::emu::clock::{ENGINE, Stamp, TOGETHER};
use crate::emu::machine::LANES;
use crate::emu::site::Site;

/// Granules of a page: pages are made where someone reads, so that a block costs what it touches.
const PAGE: usize = 256;

/// The last reads by one warp, or by the copy engine: those of one moment, and where the last of them stands.
#[derive(Clone, Copy, Default)]
pub(super) struct Read {
    pub clock: u32,
    pub site: Site,
    /// The lanes that read, each for itself: a bit for every one.
    lanes: u32,
    sub: u16,
    /// Whether they read together, too, in one instruction.
    together: bool,
    /// Reads that have begun and may happen at any moment from now on. While there are any, the rest tells of the
    /// last of these.
    pub flights: u8,
}

impl Read {
    pub fn new(stamp: &Stamp, readers: Readers) -> Read {
        Read {
            clock: stamp.clock,
            site: stamp.site,
            lanes: match readers {
                Readers::Lane => 1 << stamp.lane,
                Readers::Warp => 0,
            },
            sub: stamp.sub,
            together: matches!(readers, Readers::Warp),
            flights: 0,
        }
    }

    /// A stamp for each lane, and one for all of them together.
    fn stamps(&self, block: u32, warp: u8) -> impl Iterator<Item = Stamp> {
        let lanes = (0..LANES as u8).filter(|lane| self.lanes & 1 << lane != 0);
        lanes
            .chain(self.together.then_some(TOGETHER))
            .map(move |lane| Stamp {
                block,
                clock: self.clock,
                site: self.site,
                sub: self.sub,
                warp,
                lane,
            })
    }
}

/// Who reads.
#[derive(Clone, Copy)]
pub(in crate::emu) enum Readers {
    /// One lane, for itself.
    Lane,
    /// All lanes of a warp, in one instruction.
    Warp,
}

type Page = Option<Box<[Read; PAGE]>>;

/// The reads of a block's shared memory. Readers have numbers: the warps', and behind them the copy engine's.
pub(super) struct Reads {
    /// The copy engine's number.
    engine: usize,
    /// Per granule, a bit for each reader that has read it. What a page says of others is left from a block before.
    readers: Vec<u64>,
    /// Per reader, and per page of granules.
    pages: Vec<Vec<Page>>,
    /// By reader and granule: reads at the same clock, but earlier, by lanes that have not read it again.
    earlier: HashMap<(usize, usize), Vec<Read>>,
}

impl Reads {
    pub fn new(granules: usize, warps: usize) -> Reads {
        let pages = || (0..granules.div_ceil(PAGE)).map(|_| None).collect();
        Reads {
            engine: warps,
            readers: vec![0; granules],
            pages: (0..=warps).map(|_| pages()).collect(),
            earlier: HashMap::new(),
        }
    }

    /// Forgets all reads.
    pub fn clear(&mut self) {
        self.readers.fill(0);
        self.earlier.clear();
    }

    /// The copy engine's number.
    pub fn engine(&self) -> usize {
        self.engine
    }

    /// The last reads by this reader; of clock 0 where there are none.
    #[inline]
    pub fn last(&mut self, reader: usize, granule: usize) -> &mut Read {
        let page = self.pages[reader][granule / PAGE]
            .get_or_insert_with(|| Box::new([Read::default(); PAGE]));
        let last = &mut page[granule % PAGE];
        let bit = 1 << reader;
        let readers = &mut self.readers[granule];
        if *readers & bit == 0 {
            *readers |= bit;
            *last = Read::default();
        }
        last
    }

    /// The last reads of a granule, with who read.
    #[inline]
    pub fn of_granule(&self, granule: usize) -> impl Iterator<Item = (usize, &Read)> {
        let mut readers = self.readers[granule];
        std::iter::from_fn(move || {
            let reader = (readers != 0).then(|| readers.trailing_zeros() as usize)?;
            readers &= readers - 1;
            let page = self.pages[reader][granule / PAGE].as_ref()?;
            Some((reader, &page[granule % PAGE]))
        })
    }

    /// The stamps of the last reads by this reader.
    pub fn stamps(&self, block: u32, reader: usize, granule: usize) -> impl Iterator<Item = Stamp> {
        let warp = match reader == self.engine {
            true => ENGINE,
            false => reader as u8,
        };
        let page = self.pages[reader][granule / PAGE].iter();
        let last = page.map(move |page| &page[granule % PAGE]);
        let earlier = self.earlier.get(&(reader, granule)).into_iter().flatten();
        last.chain(earlier)
            .flat_map(move |read| read.stamps(block, warp))
    }

    /// Remembers a read.
    #[inline]
    pub fn note(&mut self, stamp: &Stamp, granule: usize, readers: Readers) {
        let reader = usize::from(stamp.warp);
        let last = *self.last(reader, granule);
        if last.flights > 0 {
            return;
        }
        let mut now = Read::new(stamp, readers);
        // Who knows of a read knows of all at earlier clocks.
        if last.clock == now.clock {
            if last.sub == now.sub {
                now.lanes |= last.lanes;
                now.together |= last.together;
            } else {
                let earlier = self.earlier.entry((reader, granule)).or_default();
                earlier.push(last);
                earlier.retain_mut(|read| {
                    read.lanes &= !now.lanes;
                    read.together &= !now.together;
                    read.clock == now.clock && (read.lanes != 0 || read.together)
                });
            }
        }
        *self.last(reader, granule) = now;
    }
}
