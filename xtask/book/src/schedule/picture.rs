//! Timelines of the book's scenes, drawn.

use anyhow::Result;
use ferroflash::plan::Algorithm;
use ferroflash_lab::timeline::picture::{Axes, OF_KEY_TILE, OF_QUERY_TILE, Panel, page};

use super::{CAUSAL, CAUSAL_BACKWARD, FORWARD, FULL_BACKWARD, Order, Scene};

/// flash1, flash2 and flash3 on the same work.
fn three() -> Result<String> {
    let panel = |algorithm, title, unit| -> Result<Panel> {
        let timeline = FORWARD.forward(algorithm, Order::Planned)?;
        Ok(Panel::new(FORWARD.n_sms, title, timeline, unit))
    };
    let panels = [
        panel(
            Algorithm::Flash1,
            "flash1: a block of threads for each head, its outer loop over keys",
            OF_KEY_TILE,
        )?,
        panel(
            Algorithm::Flash2,
            "flash2: a block of threads for each tile of queries",
            OF_QUERY_TILE,
        )?,
        panel(
            Algorithm::Flash3,
            "flash3: resident blocks of threads claim tiles of queries",
            OF_QUERY_TILE,
        )?,
    ];
    let notes = [
        "bf16, 2 heads, 1024 queries and keys, head_dim 128, full, on 4 SMs. A bar h·t is tile t of head h: of keys in the first panel, of queries in the others.".to_owned(),
        "A bar holds its tile's beginning and end. Each panel has a clock of its own: a step is of blocks of other sizes, and as fast as its schedule.".to_owned(),
    ];
    Ok(page(
        "The forward pass, three schedules",
        &panels,
        Axes::Own,
        &notes,
    )?)
}

/// A causal mask: tiles in ascending order, and the longest first.
fn causal() -> Result<String> {
    let panel = |title, order| -> Result<Panel> {
        let timeline = CAUSAL.forward(Algorithm::Flash3, order)?;
        Ok(Panel::new(CAUSAL.n_sms, title, timeline, OF_QUERY_TILE))
    };
    let panels = [
        panel(
            "one head after the other, tiles ascending",
            Order::Ascending,
        )?,
        panel(
            "as planned: heads side by side, longest tiles first",
            Order::Planned,
        )?,
    ];
    let notes = ["flash3, bf16, 4 heads, 2048 queries and keys, head_dim 128, causal, on 4 SMs. A bar h·t is tile t of queries of head h.".to_owned()];
    Ok(page(
        "The forward pass under a causal mask",
        &panels,
        Axes::Shared,
        &notes,
    )?)
}

/// A panel of the deterministic backward pass.
fn backward(title: &str, scene: Scene, order: Order) -> Result<Panel> {
    let timeline = scene.backward(order)?;
    Ok(Panel::new(scene.n_sms, title, timeline, OF_KEY_TILE))
}

/// Without a mask: all tiles from the same block on, and in shifted order.
fn backward_full() -> Result<String> {
    let panels = [
        backward(
            "every tile from block 0 up",
            FULL_BACKWARD,
            Order::Ascending,
        )?,
        backward("as planned: shifted order", FULL_BACKWARD, Order::Planned)?,
    ];
    let notes = [
        "flash3, bf16, 2 heads, 512 queries and keys, head_dim 128, full, on 8 SMs: each has a tile of 128 keys. A cell is a step, its number the".to_owned(),
        "block of 64 queries to whose dQ the tile adds after it. The tiles of a head add to a block in a fixed order. Grey: a tile waits at the dQ".to_owned(),
        "semaphore. Pale: its beginning, until the first step, and its end.".to_owned(),
    ];
    Ok(page(
        "The deterministic backward pass",
        &panels,
        Axes::Shared,
        &notes,
    )?)
}

/// Under a causal mask.
fn backward_causal() -> Result<String> {
    let panels = [backward(
        "as planned: one head up, the other down",
        CAUSAL_BACKWARD,
        Order::Planned,
    )?];
    let notes = [
        "flash3, bf16, 2 heads, 1024 queries and keys, head_dim 128, causal, on 8 SMs. Cells as above, of blocks of 64 queries. A block of threads".to_owned(),
        "that begins with a short tile of one head goes on with a long one of the other.".to_owned(),
    ];
    Ok(page(
        "The deterministic backward pass under a causal mask",
        &panels,
        Axes::Shared,
        &notes,
    )?)
}

/// Every picture of a schedule, by name.
pub fn pictures() -> Result<Vec<(&'static str, String)>> {
    Ok(vec![
        ("schedule-forward", three()?),
        ("schedule-causal", causal()?),
        ("schedule-backward", backward_full()?),
        ("schedule-backward-causal", backward_causal()?),
    ])
}
