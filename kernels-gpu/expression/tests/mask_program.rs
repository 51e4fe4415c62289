//! Masks that are too long for a program.

use ferroflash_expression::{Expression, TooLong, mask_program};

#[test]
fn long_masks_make_no_program() {
    let program = |mask: &Expression| mask_program(mask, mask.params(), mask.tensors());
    let long = Expression::mask(|at| {
        let hides = |n: i32| (at.q * at.k).ne(n);
        (1..40).fold(hides(0), |all, n| all & hides(n))
    });
    let TooLong::Instructions { given, most } = program(&long.unwrap()).unwrap_err() else {
        panic!("it has too many instructions");
    };
    assert!(given > most && most == 64);
    let of_rows = Expression::mask(|at| {
        let hides = |n: i32| ((at.q % (n + 2)) + at.k).ne(n);
        (1..9).fold(hides(0), |all, n| all & hides(n))
    });
    let given = program(&of_rows.unwrap()).unwrap_err();
    assert_eq!(given, TooLong::Bounds { given: 9, most: 8 });
}
