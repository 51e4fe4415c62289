//! What every backend of ferroflash is held to: the oracle, the inputs, the cases, the tolerances, and one suite.
//!
//! | module | what it is |
//! |---|---|
//! | [`oracle`] | attention from its definition, in f64 |
//! | [`inputs`] | the numbers: random, spaced, adversarial |
//! | [`buffer`] | tensors in every arrangement, surrounded by NaN |
//! | [`edits`] | scores and masks of the user's own beside a case |
//! | [`tolerance`] | how far a result may lie from the oracle's: one table |
//! | [`cases`] | the problems, in named sets |
//! | [`lengths`] | where the rows of sequences of different lengths lie |
//! | [`real`] | the real inputs under `data` |
//! | [`compare`] | the worst element, where it lies, what it should be |
//! | [`mod@reference`] | what a case should give, by the oracle |
//! | [`trial`] | one case on one device |
//! | [`mod@merge`] | the suite of merges |
//! | [`quantize`] | the suite of roundings to 8 bits |
//! | [`append`] | the suite of appends to a cache |
//! | [`rotate`] | the suite of rotations |
//! | [`pages`] | the suite of keys and values in pages |
//! | [`unseen`] | the suite of lengths and tables that are any numbers |
//! | [`e4m3`] | the suite of queries, keys and values in 8 bits |
//! | [`fp8`] | the suite of keys and values in 8 bits |
//! | [`mla`] | the suite of values in the keys |
//! | [`scores`] | the suite of scores and masks of the user's own |
//! | [`mod@serving`] | a serving engine over pages, simulated |
//! | [`book`] | tables of the book, held to what tests measure |
//! | [`subject`] | the backends under test |
//! | [`sample`] | which cases of a set run |
//! | [`sets`] | the sets of cases of a test program |
//! | [`ways`] | what plans decide, by name, and what of it no set has |
//! | [`mod@suite`] | the same cases for every backend |
#![forbid(unsafe_code)]

pub mod oracle;
pub mod pages;

pub mod e4m3;
pub mod fp8;
pub mod inputs;
pub mod mla;

pub mod scores;

pub mod blocks;
pub mod book;
pub mod buffer;

pub mod edits;

pub mod cases;

pub mod lengths;

pub mod real;

pub mod tolerance;

pub mod compare;

pub mod reference;

pub mod trial;

pub mod weights;

mod beside;
pub mod merge;
pub mod quantize;

pub mod append;

pub mod rotate;

pub mod dropout;
pub mod serving;

pub mod sinks;

pub mod subject;

pub mod unseen;

pub mod sample;

/// What makes sets known.
#[doc(hidden)]
pub use inventory;
pub mod sets;

pub mod ways;

pub mod suite;

mod suites;
