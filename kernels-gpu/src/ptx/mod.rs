//! One function = one PTX instruction, and the only `asm!` of the workspace.
//!
//! Every function has two bodies (`bodies!`): the instruction itself on `nvptx64`, and on the CPU a call into [`crate::emu`],
//! which acts on all lanes of the warp, on shared and global memory as the PTX manual says, and checks what the
//! hardware would leave undefined. Diagnostics of the emulator name the caller (`track_caller`); a function of the
//! `tile` layer that should not be named itself carries the same attribute.
//!
//! Rules: one instruction; no policy (no loops over tiles, no scaling); the first line of the documentation is the
//! instruction as the manual spells it, the second its PTX version and architecture, then `# Safety`.
//!
//! What the assembler blocks promise to the compiler: arithmetic is `pure, nomem`, so that it is scheduled and
//! merged freely; warp-collective arithmetic (`mma`, `shfl`, `vote`) is `nomem` but not `pure`, so that it is never
//! moved into a branch that only some lanes take; whatever reads or writes memory may not cross a barrier and
//! therefore promises neither.

/// `asm!` under the contract that the surrounding function states in its documentation.
#[cfg(target_arch = "nvptx64")]
macro_rules! ptx {
    ($($operand:tt)*) => {
        // SAFETY: what the instruction requires is what the surrounding function requires of its caller.
        unsafe { core::arch::asm!($($operand)*) }
    };
}

/// The two bodies of a function: the instruction, and what acts as it on the CPU. `x: TYPE = ptx!(…) => RESULT` declares the operand that the
/// instruction writes, `mut x = FIRST, ptx!(…)` one that has elements; without `=> RESULT` it is the function's.
macro_rules! bodies {
    (ptx!($($operand:tt)*); cpu: $cpu:expr) => {
        bodies!({ ptx!($($operand)*); } $cpu)
    };
    ($x:ident: $type:ty = ptx!($($operand:tt)*) $(=> $result:expr)?; cpu: $cpu:expr) => {
        bodies!({ let $x: $type; ptx!($($operand)*); bodies!(@ $x $($result)?) } $cpu)
    };
    (mut $x:ident = $first:expr, ptx!($($operand:tt)*); cpu: $cpu:expr) => {
        bodies!({ let mut $x = $first; ptx!($($operand)*); $x } $cpu)
    };
    (@ $x:ident) => { $x };
    (@ $x:ident $result:expr) => { $result };
    ($gpu:block $cpu:expr) => {{
        #[cfg(target_arch = "nvptx64")]
        $gpu
        #[cfg(not(target_arch = "nvptx64"))]
        {
            $cpu
        }
    }};
}

pub mod atomic;
pub mod barrier;
pub mod cluster;
pub mod convert;
pub mod cp_async;
pub mod global;
pub mod ldmatrix;
pub mod math;
pub mod mbarrier;
pub mod mma;
pub(crate) mod parameters;
pub mod score;
pub mod shared;
pub mod shuffle;
pub mod spec;
pub mod special;
pub mod tensor_map;
pub mod tma;
pub mod warpgroup;
pub mod wgmma;

#[cfg(test)]
mod cpu_bodies;
