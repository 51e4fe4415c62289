//! Arithmetic that has an instruction of its own.
//!
//! The CPU bodies are the functions themselves: within 1 ulp of the true value, where the manual allows the hardware
//! 2 (`ex2`), 1 (`rcp`) or an absolute 2⁻²² near 1 (`lg2`).

/// Subnormal numbers as 0, as `.ftz` takes and gives them.
#[cfg(not(target_arch = "nvptx64"))]
fn flush(x: f32) -> f32 {
    if x.is_subnormal() {
        0.0f32.copysign(x)
    } else {
        x
    }
}

/// `ex2.approx.ftz.f32`: 2ˣ, subnormal numbers taken and given as 0.
///
/// PTX 1.0, sm_10.
#[inline(always)]
pub fn ex2_approx(x: f32) -> f32 {
    bodies! {
        y: f32 = ptx!(
            "ex2.approx.ftz.f32 {y}, {x};",
            y = out(reg32) y, x = in(reg32) x,
            options(pure, nomem, nostack)
        );
        cpu: flush(flush(x).exp2())
    }
}

/// `lg2.approx.ftz.f32`: log₂ x, subnormal numbers taken and given as 0.
///
/// PTX 1.0, sm_10.
#[inline(always)]
pub fn lg2_approx(x: f32) -> f32 {
    bodies! {
        y: f32 = ptx!(
            "lg2.approx.ftz.f32 {y}, {x};",
            y = out(reg32) y, x = in(reg32) x,
            options(pure, nomem, nostack)
        );
        cpu: flush(flush(x).log2())
    }
}

/// `rcp.approx.ftz.f32`: 1 / x, subnormal numbers taken and given as 0.
///
/// PTX 1.0, sm_10.
#[inline(always)]
pub fn rcp_approx(x: f32) -> f32 {
    bodies! {
        y: f32 = ptx!(
            "rcp.approx.ftz.f32 {y}, {x};",
            y = out(reg32) y, x = in(reg32) x,
            options(pure, nomem, nostack)
        );
        cpu: flush(flush(x).recip())
    }
}

/// `fma.rn.f32`: `a · b + c`, rounded once.
///
/// PTX 2.0, sm_20.
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    bodies! {
        d: f32 = ptx!(
            "fma.rn.f32 {d}, {a}, {b}, {c};",
            d = out(reg32) d, a = in(reg32) a, b = in(reg32) b, c = in(reg32) c, options(pure, nomem, nostack)
        );
        cpu: a.mul_add(b, c)
    }
}

/// `fma.rn.f32` of `neg.f32`: `a · b − c`, rounded once; the sign costs no instruction. Not [`fma`] of `-c`: of a `c` that came as
/// bits, from memory, the compiler flips one.
///
/// PTX 2.0, sm_20.
#[inline(always)]
pub fn fms(a: f32, b: f32, c: f32) -> f32 {
    bodies! {
        d: f32 = ptx!(
            "{{ .reg .f32 minus; neg.f32 minus, {c}; fma.rn.f32 {d}, {a}, {b}, minus; }}",
            d = out(reg32) d, a = in(reg32) a, b = in(reg32) b, c = in(reg32) c, options(pure, nomem, nostack)
        );
        cpu: a.mul_add(b, -c)
    }
}

/// `max.f32`: the greater of the two; of a number and a NaN the number.
///
/// PTX 1.0, sm_10.
#[inline(always)]
pub fn max(a: f32, b: f32) -> f32 {
    bodies! {
        d: f32 = ptx!(
            "max.f32 {d}, {a}, {b};",
            d = out(reg32) d, a = in(reg32) a, b = in(reg32) b,
            options(pure, nomem, nostack)
        );
        cpu: if a == b {
            // Of two zeros the positive one, as the manual says.
            if a.is_sign_positive() { a } else { b }
        } else {
            a.max(b)
        }
    }
}
