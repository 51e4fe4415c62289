//! Text that is read again, text that cannot be, and text for readers.

use crate::random::{Kind, Random, random};
use crate::{At, Expression, ExpressionError, Node, Num};

#[test]
fn every_expression_is_read_again() {
    for seed in 0..6000 {
        let kind = if seed % 2 == 0 {
            Kind::Score
        } else {
            Kind::Mask
        };
        let expression = random(seed, 4 + seed as u32 % 90, kind);
        let text = expression.to_text();
        assert_eq!(Expression::parse(&text).as_ref(), Ok(&expression), "{text}");
        let simplified = expression.simplified().unwrap();
        assert_eq!(simplified.to_text().parse().as_ref(), Ok(&simplified));
        assert!(!expression.to_string().is_empty());
    }
}

#[test]
fn a_text_is_as_documented() {
    let window = Expression::mask(|at| {
        let slope = at.tensor_bf16("slopes", [at.head, at.constant(-3)]);
        (at.q - at.k).lt(at.i32("window")) & slope.tanh_full().ne(f32::NEG_INFINITY)
    });
    let text = "expression 1\nparam window i32\ntensor slopes bf16 2\n\
                0 index head\n1 index q\n2 index k\n3 i32 -3\n4 read 0 0 3\n5 sub 1 2\n6 param 0\n7 lt 5 6\n8 tanh_full 4\n\
                9 f32 ff800000\n10 ne 8 9\n11 and 7 10\n";
    assert_eq!(
        window.as_ref().map(Expression::to_text).as_deref(),
        Ok(text)
    );
    // Ends of lines and blanks do not matter.
    let loose = text
        .replace('\n', "\r\n")
        .replace(' ', "  ")
        .replacen("  ", " ", 1);
    assert_eq!(Expression::parse(&loose), window);
}

#[test]
fn what_is_wrong_with_a_text_is_said() {
    let head = "expression 1\n";
    let parse = |rest: &str| Expression::parse(&format!("{head}{rest}")).unwrap_err();
    let line = |rest: &str| match parse(rest) {
        ExpressionError::Text { line, .. } => line,
        error => panic!("{rest}: {error}"),
    };
    for (rest, wanted) in [
        ("0 score\n2 neg 0\n", 3),
        ("0 scores\n", 2),
        ("0 score 1\n", 2),
        ("0 neg\n", 2),
        ("0 f32 3f80000\n", 2),
        ("0 f32 +3f80000\n", 2),
        ("0 f32 3F800000\n", 2),
        ("0 i32 2147483648\n", 2),
        ("0 i32 007\n", 2),
        ("0 i32 +7\n", 2),
        ("0 score\n\n1 neg 0\n", 3),
        ("0 score\nparam x f32\n", 3),
        ("tensor t f32 1\nparam x f32\n0 score\n", 3),
        ("param x bool\n", 2),
        ("tensor t f64 1\n", 2),
        ("tensor t f32 256\n", 2),
        ("0 read 0 1\n", 2),
        ("0 abs_full 0\n", 2),
        ("0 index keys\n", 2),
        ("0 bool 1\n", 2),
        ("0 neg 4294967296\n", 2),
    ] {
        assert_eq!(line(rest), wanted, "{rest}");
    }
    assert_eq!(parse(""), ExpressionError::Empty);
    assert_eq!(
        parse("0 neg 0\n"),
        ExpressionError::Order {
            node: 0,
            operand: 0
        }
    );
    assert_eq!(
        parse("0 score\n1 add 0 7\n"),
        ExpressionError::Order {
            node: 1,
            operand: 7
        }
    );
    assert_eq!(
        parse("0 score\n1 not 0\n"),
        ExpressionError::Operands { node: 1 }
    );
    assert_eq!(
        parse("0 score\n1 index q\n2 add 0 1\n"),
        ExpressionError::Operands { node: 2 }
    );
    assert_eq!(
        parse("0 param 0\n"),
        ExpressionError::Missing { node: 0, slot: 0 }
    );
    assert!(matches!(
        parse("param x f32\nparam x f32\n0 score\n"),
        ExpressionError::Conflict { .. }
    ));
    assert!(matches!(
        parse("tensor x f32 0\n0 score\n"),
        ExpressionError::Rank { given: 0, .. }
    ));
    assert!(matches!(
        parse("tensor x f32 5\n0 score\n"),
        ExpressionError::Rank { given: 5, .. }
    ));
    assert!(matches!(
        parse("param 1x f32\n0 score\n"),
        ExpressionError::Name { .. }
    ));
    let long: String = (0..100_000).map(|i| format!("{i} i32 {i}\n")).collect();
    assert!(matches!(
        parse(&long),
        ExpressionError::Nodes {
            given: 257,
            allowed: 256
        }
    ));
    assert!(Expression::parse("expression 2\n0 score\n").is_err());
    assert!(Expression::parse("").is_err());
}

#[test]
fn no_text_is_too_much() {
    let mut random_numbers = Random(7);
    let (mut n_read, mut n_refused) = (0, 0);
    for seed in 0..8000 {
        let text = random(seed % 500, 3 + seed as u32 % 25, Kind::Score).to_text();
        let mut text = text.into_bytes();
        for _ in 0..=random_numbers.below(3) {
            let at = random_numbers.below(text.len());
            let with = random_numbers.choose(b"0123456789 \n-_adefmnorstx\xc3\xff");
            match random_numbers.below(4) {
                0 => text[at] = with,
                1 => text.insert(at, with),
                2 => {
                    text.remove(at);
                }
                _ => {
                    let end = at + random_numbers.below(text.len() - at);
                    text.drain(at..end);
                }
            }
        }
        match Expression::parse(&String::from_utf8_lossy(&text)) {
            Ok(expression) => {
                n_read += 1;
                assert_eq!(Expression::parse(&expression.to_text()), Ok(expression));
            }
            Err(error) => {
                n_refused += 1;
                assert!(!error.to_string().is_empty());
            }
        }
    }
    assert!(n_read > 100 && n_refused > 1000, "{n_read} {n_refused}");
}

#[test]
fn equal_nodes_become_one_and_the_others_go() {
    let nodes = "expression 1\n0 score\n1 score\n2 f32 00000000\n3 i32 9\n4 add 0 2\n5 add 1 2\n6 mul 4 5\n";
    let expression = Expression::parse(nodes).unwrap();
    assert_eq!(expression.nodes().len(), 4);
    assert_eq!(
        expression.nodes().last(),
        Some(&Node::Binary(crate::Binary::Mul, 2, 2))
    );
}

#[test]
fn a_reader_sees_what_was_written() {
    let text = |f: fn(Num, At) -> Num| Expression::score(f).unwrap().to_string();
    assert_eq!(
        text(|s, at| s + at.tensor_f32("slopes", [at.head]) * (at.q - at.k).to_f32()),
        "score + slopes[head] * f32(q - k)"
    );
    assert_eq!(
        text(|s, at| s - 2.5 - (s - at.f32("x"))),
        "score - 2.5 - (score - x)"
    );
    assert_eq!(text(|s, _| -(s * -3.0)), "-(score * -3.0)");
    assert_eq!(
        text(|s, _| (s + 1.0) * (s + 1.0)),
        "let a = score + 1.0; a * a"
    );
    assert_eq!(
        text(|_, at| (at.f32("a") * 3.0).exp2() / (at.f32("a") * 3.0)),
        "let b = a * 3.0; exp2(b) / b"
    );
    assert_eq!(
        text(|s, _| s.tanh_full().min(f32::INFINITY)),
        "min(tanh_full(score), inf)"
    );
    let mask = Expression::mask(|at| {
        !(at.q.ge(at.k) & (at.q - at.k).lt(7) | at.f32("x").eq(1.0)) ^ at.k.gt(1)
    });
    assert_eq!(
        mask.unwrap().to_string(),
        "!((k <= q) & (q - k < 7) | (x == 1.0)) ^ (1 < k)"
    );
    let mask = Expression::mask(|at| ((at.q & 7) << 2).eq(at.k & (at.q | 1)));
    assert_eq!(mask.unwrap().to_string(), "(q & 7) << 2 == k & (q | 1)");
}
