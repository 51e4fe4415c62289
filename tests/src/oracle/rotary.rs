//! A row rotated by its position, from the definition: pairs are complex numbers, and are multiplied by one.

use ferroflash::rotary::{Direction, Pairs};

/// A row rotated, and what its errors are measured against.
#[derive(Clone, Debug, PartialEq)]
pub struct Turned {
    /// The row.
    pub y: Vec<f64>,
    /// The sizes of the two products that each element is the sum of; 0 of one that is copied.
    pub terms: Vec<f64>,
}

/// Turns a row by a cosine and a sine for each pair.
pub fn turn(x: &[f64], pairs: Pairs, direction: Direction, cos: &[f64], sin: &[f64]) -> Turned {
    let (n_pairs, mut y, mut terms) = (cos.len(), x.to_vec(), vec![0.0; x.len()]);
    for pair in 0..n_pairs {
        let [re, im] = match pairs {
            Pairs::Halves => [pair, n_pairs + pair],
            Pairs::Interleaved => [2 * pair, 2 * pair + 1],
        };
        let by = match direction {
            Direction::Forth => [cos[pair], sin[pair]],
            Direction::Back => [cos[pair], -sin[pair]],
        };
        y[re] = x[re] * by[0] - x[im] * by[1];
        y[im] = x[re] * by[1] + x[im] * by[0];
        terms[re] = (x[re] * by[0]).abs() + (x[im] * by[1]).abs();
        terms[im] = (x[re] * by[1]).abs() + (x[im] * by[0]).abs();
    }
    Turned { y, terms }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_turn_exchanges_the_elements_of_a_pair() {
        let x = [1.0, 2.0, 3.0, 4.0, 5.0];
        let rotated = |pairs, direction| turn(&x, pairs, direction, &[0.0; 2], &[1.0; 2]).y;
        let (forth, back) = (Direction::Forth, Direction::Back);
        assert_eq!(rotated(Pairs::Halves, forth), [-3.0, -4.0, 1.0, 2.0, 5.0]);
        assert_eq!(rotated(Pairs::Halves, back), [3.0, 4.0, -1.0, -2.0, 5.0]);
        assert_eq!(
            rotated(Pairs::Interleaved, forth),
            [-2.0, 1.0, -4.0, 3.0, 5.0]
        );
        assert_eq!(
            rotated(Pairs::Interleaved, back),
            [2.0, -1.0, 4.0, -3.0, 5.0]
        );
    }
}
