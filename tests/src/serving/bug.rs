//! What an engine may get wrong: the simulation has to notice each of these.

/// A mistake that an engine makes on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code, reason = "the tests make them"))]
pub enum Bug {
    /// None.
    None,
    /// A sequence that takes another one's pages is not counted as a user of the last one: it is freed too early.
    Uncounted,
    /// A sequence that ends keeps a page.
    Leak,
    /// Rows are appended to a page that others have.
    NoCopy,
    /// A page is copied without its last row.
    ShortCopy,
    /// The table names the page that was copied, not the copy.
    StaleEntry,
    /// A sequence is given the table's row of another.
    WrongSlot,
    /// Sequences are read without the rows that came last.
    OldLength,
    /// Sequences are read with a row that they do not have.
    LongLength,
    /// A row of nobody's is written to.
    StrayWrite,
}
