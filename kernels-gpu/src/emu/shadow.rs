//! What is known of each element of a buffer of global memory that kernels write.

use std::collections::HashMap;

use super::asynchronous::Asynchronous;
use super::block::Actor;
use super::clock::Stamp;
use super::fault::{Fault, Kind, MemoryLocation};
use super::knowledge::Knowledge;
use super::memory::Strength;
use super::proxy::Proxy;
use super::tensor_map::{Lacks, Released};

/// Accesses of one kind, none of which is ordered before another.
#[derive(Clone, Default)]
struct Accesses {
    stamps: Vec<Stamp>,
    /// Of many, where that of each thread lies.
    #[expect(
        clippy::box_collection,
        reason = "each element of a buffer has three, mostly without one"
    )]
    places: Option<Box<HashMap<Thread, usize>>>,
}

/// Block, warp and lane.
type Thread = (u32, u8, u8);

/// So few are searched one by one.
const FEW: usize = 32;

impl Accesses {
    /// One that is not ordered before the present access.
    #[inline]
    fn unordered(&self, actor: &Actor) -> Option<&Stamp> {
        self.stamps.iter().find(|stamp| !actor.sees(stamp))
    }

    fn add(&mut self, actor: &Actor) {
        // Lanes that wait read a place over and over.
        if let Some(place) = self.place(&actor.trace) {
            self.stamps[place] = actor.trace;
            return;
        }
        // Whoever sees this access sees those that it sees, so they need not be kept. They are dropped when the list is full, which
        // then gets room for twice as many as are left.
        if self.stamps.len() == self.stamps.capacity() {
            self.stamps.retain(|stamp| !actor.sees(stamp));
            self.stamps.reserve(self.stamps.len());
            self.find_places();
        }
        if let Some(places) = &mut self.places {
            places.insert(thread(&actor.trace), self.stamps.len());
        }
        self.stamps.push(actor.trace);
    }

    /// Where the same lane's lies.
    #[inline]
    fn place(&self, trace: &Stamp) -> Option<usize> {
        match &self.places {
            Some(places) => {
                let place = *places.get(&thread(trace))?;
                self.stamps[place].same_lane(trace).then_some(place)
            }
            None => self.stamps.iter().position(|own| own.same_lane(trace)),
        }
    }

    fn find_places(&mut self) {
        let stamps = &self.stamps;
        self.places = (stamps.len() > FEW).then(|| {
            let places = stamps.iter().enumerate();
            Box::new(
                places
                    .map(|(place, stamp)| (thread(stamp), place))
                    .collect(),
            )
        });
    }

    fn clear(&mut self) {
        self.stamps.clear();
        self.places = None;
    }
}

#[inline]
fn thread(stamp: &Stamp) -> Thread {
    (stamp.block, stamp.warp, stamp.lane)
}

/// One element.
#[derive(Clone, Default)]
struct Element {
    /// The last plain write.
    write: Stamp,
    /// Plain reads since then.
    reads: Accesses,
    /// Atomic reads since then.
    atomic_reads: Accesses,
    /// Atomic writes since then.
    atomic_writes: Accesses,
}

impl Element {
    /// The last plain write, if there is one.
    #[inline]
    fn written(&self) -> Option<&Stamp> {
        (self.write.clock != 0).then_some(&self.write)
    }

    /// What may not be unordered with a read.
    #[inline]
    fn against_read(&self, actor: &Actor, strength: Strength) -> Option<&Stamp> {
        let write = self.written().filter(|write| !actor.sees(write));
        match strength {
            Strength::Plain => write.or_else(|| self.atomic_writes.unordered(actor)),
            Strength::Atomic => write,
        }
    }

    /// What may not be unordered with a write.
    #[inline]
    fn against_write(&self, actor: &Actor, strength: Strength) -> Option<&Stamp> {
        let others = self
            .against_read(actor, strength)
            .or_else(|| self.reads.unordered(actor));
        match strength {
            Strength::Plain => others.or_else(|| self.atomic_reads.unordered(actor)),
            Strength::Atomic => others,
        }
    }

    /// All writes of this launch that no other one has followed.
    #[inline]
    fn writes(&self) -> impl Iterator<Item = &Stamp> {
        self.written().into_iter().chain(&self.atomic_writes.stamps)
    }

    /// A write that is ordered before the present access, but not seen by the copy engine.
    fn unfenced(&self, actor: &Actor) -> Option<&Stamp> {
        let mut ordered = self.writes().filter(|write| actor.sees(write));
        ordered.find(|write| !actor.engine_sees(write))
    }

    /// What keeps the present access from following what came before.
    fn refuse(
        &self,
        unordered: Option<&Stamp>,
        actor: &Actor,
        place: impl Fn() -> MemoryLocation,
    ) -> Result<(), Fault> {
        if let Some(earlier) = unordered {
            return Err(Kind::Race {
                earlier: earlier.access(),
                later: actor.access(),
                place: place(),
            }
            .into());
        }
        if actor.proxy == Proxy::Async
            && let Some(earlier) = self.unfenced(actor)
        {
            return Err(Asynchronous::Unfenced {
                access: actor.access(),
                earlier: earlier.access(),
                fence: "fence.proxy.async.global",
                place: place(),
            }
            .into());
        }
        Ok(())
    }
}

/// What an element holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    /// Nobody wrote it.
    Nothing,
    /// What a kernel wrote, perhaps in an earlier launch, and no fence has released for those who read tensor maps.
    Written,
    /// What was there before the first launch, or was released in an earlier one.
    Released,
}

/// Elements of a page: pages are made where kernels write, so that huge buffers cost only what is touched.
const PAGE: usize = 1024;

struct Page {
    /// The launch whose accesses the elements tell of.
    launch: u32,
    elements: Vec<Element>,
    content: Vec<Content>,
}

/// The record of one buffer.
pub(super) struct Shadow {
    /// Bytes of an element.
    unit: u64,
    elements: u64,
    /// What elements hold before the first launch.
    content: Content,
    launch: u32,
    pages: Vec<Option<Box<Page>>>,
}

impl Shadow {
    pub fn new(bytes: u64, element_bytes: u32, initialised: bool) -> Shadow {
        let unit = u64::from(element_bytes.clamp(1, 4));
        let elements = bytes.div_ceil(unit);
        let mut pages = Vec::new();
        pages.resize_with(elements.div_ceil(PAGE as u64) as usize, || None);
        Shadow {
            unit,
            elements,
            content: match initialised {
                true => Content::Released,
                false => Content::Nothing,
            },
            launch: 0,
            pages,
        }
    }

    pub fn begin_launch(&mut self) {
        self.launch += 1;
    }

    /// The launch is over, in which this has been released for those who read tensor maps.
    pub fn end_launch(&mut self, released: &Knowledge) {
        for page in self.pages.iter_mut().flatten() {
            let this_launch = page.launch == self.launch;
            for (element, content) in page.elements.iter().zip(&mut page.content) {
                let covered = !this_launch || element.writes().all(|write| released.covers(write));
                if *content == Content::Written && covered {
                    *content = Content::Released;
                }
            }
        }
    }

    /// What a tensor map at this offset, whose bytes [`Shadow::read`] allowed to read, lacks for a thread that has acquired it so.
    pub fn map_lacks(
        &mut self,
        actor: &Actor,
        acquired: &Released,
        offset: u64,
        bytes: u32,
    ) -> Option<Lacks> {
        let known = Released::known_to(actor);
        let mut lacks = None;
        for index in self.indices(offset, bytes) {
            let (element, content) = self.element(index);
            for write in element.writes() {
                if !known.covers(write) {
                    return Some(Lacks::Release(Some(*write)));
                }
                if !acquired.covers(write) {
                    lacks.get_or_insert(Lacks::Acquire(Some(*write)));
                }
            }
            let earlier_launch = element.writes().next().is_none();
            if *content == Content::Written && earlier_launch {
                if !known.is_any() {
                    return Some(Lacks::Release(None));
                }
                if !acquired.is_any() {
                    lacks.get_or_insert(Lacks::Acquire(None));
                }
            }
        }
        lacks
    }

    /// Byte offset of the first element that nobody wrote.
    pub fn first_unwritten(&self) -> Option<u64> {
        if self.content != Content::Nothing {
            return None;
        }
        (0..self.elements)
            .find(|index| {
                let page = &self.pages[*index as usize / PAGE];
                !page
                    .as_ref()
                    .is_some_and(|page| page.content[*index as usize % PAGE] != Content::Nothing)
            })
            .map(|index| index * self.unit)
    }

    #[inline]
    fn element(&mut self, index: u64) -> (&mut Element, &mut Content) {
        let (launch, content) = (self.launch, self.content);
        let page = self.pages[index as usize / PAGE].get_or_insert_with(|| {
            let (elements, content) = (vec![Element::default(); PAGE], vec![content; PAGE]);
            Box::new(Page {
                launch,
                elements,
                content,
            })
        });
        if page.launch != launch {
            page.launch = launch;
            page.elements.fill(Element::default());
        }
        let index = index as usize % PAGE;
        (&mut page.elements[index], &mut page.content[index])
    }

    #[inline]
    fn indices(&self, offset: u64, bytes: u32) -> std::ops::Range<u64> {
        offset / self.unit..(offset + u64::from(bytes)).div_ceil(self.unit)
    }

    pub fn read(
        &mut self,
        actor: &Actor,
        name: &str,
        offset: u64,
        bytes: u32,
        strength: Strength,
    ) -> Result<(), Fault> {
        for index in self.indices(offset, bytes) {
            let unit = self.unit;
            let place = || MemoryLocation::Global {
                buffer: name.to_owned(),
                offset: index * unit,
            };
            let (element, content) = self.element(index);
            if *content == Content::Nothing {
                return Err(Kind::Uninitialised {
                    access: actor.access(),
                    place: place(),
                }
                .into());
            }
            element.refuse(element.against_read(actor, strength), actor, place)?;
            match strength {
                Strength::Plain => element.reads.add(actor),
                Strength::Atomic => element.atomic_reads.add(actor),
            }
        }
        Ok(())
    }

    pub fn write(
        &mut self,
        actor: &Actor,
        name: &str,
        offset: u64,
        bytes: u32,
        strength: Strength,
    ) -> Result<(), Fault> {
        for index in self.indices(offset, bytes) {
            let unit = self.unit;
            let place = || MemoryLocation::Global {
                buffer: name.to_owned(),
                offset: index * unit,
            };
            let (element, content) = self.element(index);
            element.refuse(element.against_write(actor, strength), actor, place)?;
            *content = Content::Written;
            match strength {
                Strength::Plain => {
                    element.write = actor.trace;
                    element.reads.clear();
                    element.atomic_reads.clear();
                    element.atomic_writes.clear();
                }
                Strength::Atomic => element.atomic_writes.add(actor),
            }
        }
        Ok(())
    }
}
