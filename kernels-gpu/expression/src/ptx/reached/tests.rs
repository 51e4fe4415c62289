//! What is left out, and that no thread sees a difference.

use super::{Line, Value, reached};

const KERNEL: &str = "\
.visible .entry k(
)
{
\t.reg .pred \t%p<4>;
\t// begin inline asm
\tmov.u32 %r1, 0;
\t// end inline asm
\tmov.u32 \t%r2, %tid.x;
\tsetp.ne.b32 \t%p1, %r1, 0;
\tsetp.ne.b32 \t%p2, %r2, 0;
\tand.pred \t%p3, %p2, %p1;
\t@%p3 bra \t$L__BB0_2;
\tbra.uni \t$L__BB0_1;
$L__BB0_2:
\tadd.s32 \t%r3, %r2, 1;
$L__BB0_1:
\t@!%p1 bra \t$L__BB0_3;
\tmov.b32 \t%r1, 5;
$L__BB0_3:
\t@%p2 bra \t$L__BB0_1;
\tret;
}
";

#[test]
fn what_the_numbers_decide_is_left_out() {
    // Its second value is reached as long as the first is not known, so nothing is decided.
    assert_eq!(reached(KERNEL), KERNEL);
    let once = KERNEL.replace("\tmov.b32 \t%r1, 5;\n", "\tmov.b32 \t%r4, 5;\n");
    let less = reached(&once);
    assert!(!less.contains("add.s32"), "{less}");
    assert!(!less.contains("%r4, 5"), "{less}");
    assert!(!less.contains("@%p3"), "{less}");
    assert!(less.contains("\tbra.uni \t$L__BB0_3;\n"), "{less}");
    assert!(less.contains("\t@%p2 bra \t$L__BB0_1;\n"), "{less}");
}

#[test]
fn what_is_not_understood_is_kept() {
    let once = KERNEL.replace("\tmov.b32 \t%r1, 5;\n", "");
    assert_ne!(reached(&once), once);
    let behind = |line: &str| {
        once.replace(
            "\tsetp.ne.b32 \t%p1",
            &format!("{line}\n\tsetp.ne.b32 \t%p1"),
        )
    };
    for sets_again in [
        "\t@%p2 mov.u32 %r1, 1;",
        "\tmov.u32 %r1, 1; mov.u32 %r5, 2;",
        "\t{ .reg .b32 t; mov.b32 t, 1; mov.b32 %r1, t; }",
        "\tmov.b64 {%r1, %r5}, %rd1;",
        "\tld.shared.v2.b32 {%r5,\n%r1}, [%rd1];",
        "\tld.shared.v2.b32 {%r5\n,%r1}, [%rd1];",
        "\tshfl.sync.idx.b32 %r1|%p4, %r5, 0, 31, -1;",
        "\tmov.u32 /* a comment */ %r1, 1;",
        "\tbrx.idx %r5, $L__BB0_1;",
    ] {
        let text = behind(sets_again);
        assert_eq!(reached(&text), text);
    }
    let nowhere = once.replace("$L__BB0_3:\n", "");
    assert_eq!(reached(&nowhere), nowhere);
    for harmless in [
        "\tst.shared.b32 [%rd1], %r1;",
        "\tadd.s32 %r5, %r1, 1; // %r1",
    ] {
        let text = behind(harmless);
        assert_ne!(reached(&text), text);
    }
}

#[test]
fn each_body_has_its_own_registers() {
    let once = KERNEL.replace("\tmov.b32 \t%r1, 5;\n", "");
    let other = once.replace("mov.u32 %r1, 0", "mov.u32 %r1, 1");
    let both = format!("{once}\n{other}");
    assert_eq!(
        reached(&both),
        format!("{}\n{}", reached(&once), reached(&other))
    );
}

#[test]
fn numbers_that_could_be_written_otherwise_are_not_compared() {
    let parse = |line| Line::parse(line, false);
    assert_eq!(
        parse("\tsetp.eq.b32 \t%p1, %r1, -1;"),
        Line::Value("%p1", Value::IsEqual("%r1", "-1"))
    );
    let known = [("%r1", 7)].into();
    let number = |value: Value<'_>| value.number(&known);
    assert_eq!(number(Value::IsEqual("%r1", "-1")), None);
    assert_eq!(number(Value::IsEqual("%r1", "4294967295")), None);
    assert_eq!(number(Value::IsEqual("%r1", "7")), Some(1));
    assert_eq!(number(Value::IsUnequal("%r1", "7")), Some(0));
    assert_eq!(number(Value::And("%r2", "0")), Some(0));
    assert_eq!(number(Value::And("%r2", "1")), None);
    assert_eq!(number(Value::Or("1", "%r2")), Some(1));
    assert_eq!(number(Value::Or("%r2", "0")), None);
    assert_eq!(number(Value::Not("0")), Some(1));
}

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

const N_BLOCKS: u64 = 8;
/// Registers that the launch gives, of each kind.
const N_GIVEN: u64 = 2;

/// Blocks of statements on registers, mostly on those that a statement before has set, with branches between them.
fn program(random: &mut Random) -> String {
    let mut text = String::from("{\n");
    let (mut n_numbers, mut n_predicates) = (N_GIVEN, N_GIVEN);
    for nth in 0..N_GIVEN {
        text += &format!("\tmov.u32 %r{nth}, %in{nth};\n\tsetp.ne.b32 %p{nth}, %r{nth}, 0;\n");
    }
    for block in 0..N_BLOCKS {
        text += &format!("$L__BB0_{block}:\n\tst.global.b32 [{block}], %r0;\n");
        for _ in 0..random.below(5) {
            let [r, s] = [(); 2].map(|()| random.below(n_numbers));
            let [p, q] = [(); 2].map(|()| random.below(n_predicates));
            let is_new = random.below(8) != 0;
            let kind = random.below(7);
            let n = if kind < 2 {
                &mut n_numbers
            } else {
                &mut n_predicates
            };
            let set = if is_new { *n } else { random.below(*n) };
            *n += u64::from(is_new);
            let number = random.below(2);
            text += &match kind {
                0 => format!("\tmov.u32 %r{set}, {number};\n"),
                1 => format!("\tmov.b32 \t%r{set}, %r{s};\n"),
                2 => format!("\tsetp.eq.b32 \t%p{set}, %r{r}, {number};\n"),
                3 => format!("\tsetp.ne.b32 \t%p{set}, %r{r}, %r{s};\n"),
                4 => format!("\tand.pred \t%p{set}, %p{p}, %p{q};\n"),
                5 => format!("\tor.pred \t%p{set}, %p{p}, %p{q};\n"),
                _ => format!("\tnot.pred \t%p{set}, %p{p};\n"),
            };
        }
        let [p, target] = [n_predicates, N_BLOCKS].map(|n| random.below(n));
        text += &match random.below(4) {
            0 => String::new(),
            1 => format!("\tbra.uni \t$L__BB0_{target};\n"),
            2 => format!("\t@%p{p} bra \t$L__BB0_{target};\n"),
            _ => format!("\t@!%p{p} bra \t$L__BB0_{target};\n"),
        };
    }
    text + "\tret;\n}\n"
}

/// What a thread stores in its first steps. None where it reads a register that it has not set, which kernels never do.
fn stores(text: &str, given: u64, steps: usize) -> Option<Vec<String>> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut values = std::collections::HashMap::new();
    let (mut stores, mut at) = (Vec::new(), 1);
    for (nth, name) in ["%in0", "%in1"].into_iter().enumerate() {
        values.insert(name, (given >> nth & 1) as i64);
    }
    while stores.len() < steps {
        let line = lines[at].trim_end_matches(';');
        at += 1;
        if line.starts_with('$') {
            continue;
        }
        let parsed = Line::parse(lines[at - 1], false);
        match parsed {
            Line::Return => break,
            Line::Branch { guard, target } => {
                let is_taken = match guard {
                    Some(guard) => (*values.get(guard.predicate)? != 0) == guard.taken,
                    None => true,
                };
                if is_taken {
                    let label = format!("{target}:");
                    at = lines.iter().position(|line| *line == label)?;
                }
            }
            Line::Value(register, value) => {
                let number = run(value, &values)?;
                values.insert(register, number);
            }
            _ => stores.push(line.to_owned()),
        }
    }
    Some(stores)
}

/// The value as the PTX manual has it: all that it reads is set.
fn run(value: Value<'_>, values: &std::collections::HashMap<&str, i64>) -> Option<i64> {
    let of = |x: &str| x.parse().ok().or_else(|| values.get(x).copied());
    Some(match value {
        Value::Of(a) => of(a)?,
        Value::IsEqual(a, b) => i64::from(of(a)? == of(b)?),
        Value::IsUnequal(a, b) => i64::from(of(a)? != of(b)?),
        Value::And(a, b) => of(a)? & of(b)?,
        Value::Or(a, b) => of(a)? | of(b)?,
        Value::Not(a) => 1 - of(a)?,
    })
}

#[test]
fn no_thread_sees_a_difference() {
    let (mut ran, mut decided) = (0, 0);
    for seed in 0..10_000 {
        let text = program(&mut Random(seed));
        let less = reached(&text);
        for given in 0..1 << N_GIVEN {
            let Some(expected) = stores(&text, given, 40) else {
                continue;
            };
            ran += 1;
            decided += usize::from(less.matches('@').count() < text.matches('@').count());
            let found = stores(&less, given, 40);
            assert_eq!(
                found,
                Some(expected),
                "seed {seed}, given {given}:\n{text}\n{less}"
            );
        }
    }
    assert!(
        ran > 10_000 && decided > 1_000,
        "{ran} ran, {decided} were decided"
    );
}
