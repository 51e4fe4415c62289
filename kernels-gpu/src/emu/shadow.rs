//! What is known of each element of a buffer of global memory that kernels write.

use super::asynchronous::Asynchronous;
use super::block::Actor;
use super::clock::Stamp;
use super::fault::{Fault, Kind, Place};
use super::memory::Strength;
use super::proxy::Proxy;

/// Accesses of one kind, none of which is ordered before another.
#[derive(Clone, Default)]
struct Accesses(Vec<Stamp>);

impl Accesses {
    /// One that is not ordered before the present access.
    fn unordered(&self, actor: &Actor) -> Option<&Stamp> {
        self.0.iter().find(|stamp| !actor.sees(stamp))
    }

    fn add(&mut self, actor: &Actor) {
        self.0
            .retain(|stamp| !actor.sees(stamp) && !stamp.same_lane(&actor.trace));
        self.0.push(actor.trace);
    }
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
    fn written(&self) -> Option<&Stamp> {
        (self.write.clock != 0).then_some(&self.write)
    }

    /// What may not be unordered with a read.
    fn against_read(&self, actor: &Actor, strength: Strength) -> Option<&Stamp> {
        let write = self.written().filter(|write| !actor.sees(write));
        match strength {
            Strength::Plain => write.or_else(|| self.atomic_writes.unordered(actor)),
            Strength::Atomic => write,
        }
    }

    /// What may not be unordered with a write.
    fn against_write(&self, actor: &Actor, strength: Strength) -> Option<&Stamp> {
        let others = self
            .against_read(actor, strength)
            .or_else(|| self.reads.unordered(actor));
        match strength {
            Strength::Plain => others.or_else(|| self.atomic_reads.unordered(actor)),
            Strength::Atomic => others,
        }
    }

    /// A write that is ordered before the present access, but not seen by its proxy.
    fn unfenced(&self, actor: &Actor) -> Option<&Stamp> {
        let writes = self.written().into_iter().chain(&self.atomic_writes.0);
        let mut ordered = writes.filter(|write| actor.sees(write));
        ordered.find(|write| !actor.sees_by_proxy(write))
    }

    /// What keeps the present access from following what came before.
    fn refuse(
        &self,
        unordered: Option<&Stamp>,
        actor: &Actor,
        place: impl Fn() -> Place,
    ) -> Result<(), Fault> {
        if let Some(earlier) = unordered {
            return Err(Kind::Race {
                earlier: earlier.access(),
                later: actor.access(),
                place: place(),
            }
            .into());
        }
        if actor.proxy != Proxy::Generic
            && let Some(earlier) = self.unfenced(actor)
        {
            return Err(Asynchronous::Unfenced {
                access: actor.access(),
                earlier: earlier.access(),
                fence: actor.proxy.fence(),
                place: place(),
            }
            .into());
        }
        Ok(())
    }
}

/// Elements of a page: pages are made where kernels write, so that huge buffers cost only what is touched.
const PAGE: usize = 1024;

struct Page {
    /// The launch whose accesses the elements tell of.
    launch: u32,
    elements: Vec<Element>,
    written: Vec<bool>,
}

/// The record of one buffer.
pub(super) struct Shadow {
    /// Bytes of an element.
    unit: u64,
    elements: u64,
    /// Whether the buffer was written before the first launch.
    initialised: bool,
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
            initialised,
            launch: 0,
            pages,
        }
    }

    pub fn begin_launch(&mut self) {
        self.launch += 1;
    }

    /// Byte offset of the first element that nobody wrote.
    pub fn first_unwritten(&self) -> Option<u64> {
        if self.initialised {
            return None;
        }
        (0..self.elements)
            .find(|index| {
                let page = &self.pages[*index as usize / PAGE];
                !page
                    .as_ref()
                    .is_some_and(|page| page.written[*index as usize % PAGE])
            })
            .map(|index| index * self.unit)
    }

    fn element(&mut self, index: u64) -> (&mut Element, &mut bool) {
        let (launch, initialised) = (self.launch, self.initialised);
        let page = self.pages[index as usize / PAGE].get_or_insert_with(|| {
            let (elements, written) = (vec![Element::default(); PAGE], vec![initialised; PAGE]);
            Box::new(Page {
                launch,
                elements,
                written,
            })
        });
        if page.launch != launch {
            page.launch = launch;
            page.elements.fill(Element::default());
        }
        let index = index as usize % PAGE;
        (&mut page.elements[index], &mut page.written[index])
    }

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
            let place = || Place::Global {
                buffer: name.to_owned(),
                offset: index * unit,
            };
            let (element, written) = self.element(index);
            if !*written {
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
            let place = || Place::Global {
                buffer: name.to_owned(),
                offset: index * unit,
            };
            let (element, written) = self.element(index);
            element.refuse(element.against_write(actor, strength), actor, place)?;
            *written = true;
            match strength {
                Strength::Plain => {
                    element.write = actor.trace;
                    element.reads.0.clear();
                    element.atomic_reads.0.clear();
                    element.atomic_writes.0.clear();
                }
                Strength::Atomic => element.atomic_writes.add(actor),
            }
        }
        Ok(())
    }
}
