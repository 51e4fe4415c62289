//! Predictions beside the record: every plain row of tests/benches/record. No GPU is needed.

use std::collections::BTreeMap;
use std::fs;

use ferroflash::{Algorithm, Dtype, Mask, Pass, Problem};
use ferroflash_lab::estimate::{Gpu, Roof, estimate};
use serde_json::{Map, Value};

const RECORD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/benches/record");

/// How far a prediction may be off, and how many must not be farther.
const WITHIN: f64 = 0.15;
const SHARE: f64 = 0.9;

/// Fields of a plain row. Any other says what else was asked or varied: a window, lengths, a score, a kernel's variant.
const PLAIN: [&str; 17] = [
    "B",
    "D",
    "H",
    "Hk",
    "S",
    "Sk",
    "backend",
    "causal",
    "dtype",
    "extra_bytes",
    "gbps",
    "host_us",
    "ms",
    "p",
    "peer",
    "tflops",
    "score",
];

/// A measured row.
struct Row {
    gpu: &'static str,
    algorithm: Algorithm,
    pass: Pass,
    problem: Problem,
    seconds: f64,
}

/// A row predicted: `ratio` is predicted by measured.
struct Compared {
    key: (String, &'static str, usize, usize),
    ratio: f64,
    roof: Roof,
}

/// The GPU of a header, if its kernels are the library's own.
fn gpu_of(header: &Map<String, Value>) -> Option<&'static str> {
    let text = |name: &str| header.get(name).and_then(Value::as_str).unwrap_or_default();
    let gpu = ["H200", "H100"]
        .into_iter()
        .find(|gpu| text("gpu").contains(gpu));
    gpu.filter(|_| !text("commit").contains("variant"))
}

/// A plain row's problem; `None` for all other rows.
fn row(gpu: &'static str, fields: &Map<String, Value>) -> Option<Row> {
    let empty = |value: &Value| value.as_str() == Some("");
    let other = |(name, value): (&String, &Value)| {
        !PLAIN.contains(&name.as_str()) || (name == "score" && !empty(value))
    };
    if fields.iter().any(other) {
        return None;
    }
    let number = |name: &str| fields.get(name)?.as_u64().map(|number| number as usize);
    let text = |name: &str| fields.get(name)?.as_str();
    let (seqlen, heads) = (number("S")?, number("H")?);
    if number("Sk").is_some_and(|seqlen_k| seqlen_k != seqlen) {
        return None;
    }
    let algorithm = match text("peer")? {
        "ferroflash-flash1" => Algorithm::Flash1,
        "ferroflash-flash2" => Algorithm::Flash2,
        "ferroflash-flash3" => Algorithm::Flash3,
        "ferroflash-standard" => Algorithm::Standard,
        _ => return None,
    };
    let dtype = match text("dtype")? {
        "bf16" => Dtype::Bf16,
        "fp16" | "f16" => Dtype::F16,
        _ => return None,
    };
    let problem = Problem::builder(dtype)
        .batch(number("B")?)
        .seqlen(seqlen)
        .heads_q(heads)
        .heads_k(number("Hk").unwrap_or(heads))
        .head_dim(number("D")?)
        .mask(if number("causal")? == 1 {
            Mask::Causal
        } else {
            Mask::Full
        });
    Some(Row {
        gpu,
        algorithm,
        pass: if text("p")? == "fwd" {
            Pass::Forward
        } else {
            Pass::Backward
        },
        problem: problem.build().unwrap(),
        seconds: fields.get("ms")?.as_f64()? / 1e3,
    })
}

/// All plain rows, of all days.
fn rows() -> Vec<Row> {
    let mut files: Vec<_> = fs::read_dir(RECORD)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    let mut rows = Vec::new();
    for file in files {
        let mut gpu = None;
        for line in fs::read_to_string(file).unwrap().lines() {
            let fields: Map<String, Value> = serde_json::from_str(line).unwrap();
            if fields.contains_key("commit") {
                gpu = gpu_of(&fields);
            } else if let Some(gpu) = gpu {
                rows.extend(row(gpu, &fields));
            }
        }
    }
    rows
}

fn compare(row: &Row) -> Compared {
    let gpu = Gpu::named(row.gpu).unwrap();
    let estimates = estimate(&row.problem, &gpu, row.pass).unwrap();
    let mut all = estimates.iter();
    let own = all
        .find(|estimate| estimate.algorithm == row.algorithm)
        .unwrap();
    let pass = if row.pass == Pass::Forward {
        "fwd"
    } else {
        "bwd"
    };
    let (head_dim, seqlen) = (row.problem.head_dim(), row.problem.seqlen_q());
    Compared {
        key: (row.algorithm.to_string(), pass, head_dim, seqlen),
        ratio: own.seconds / row.seconds,
        roof: own.roof,
    }
}

fn is_near(case: &Compared) -> bool {
    (case.ratio - 1.0).abs() <= WITHIN
}

fn share(cases: &[&Compared]) -> f64 {
    cases.iter().filter(|case| is_near(case)).count() as f64 / cases.len() as f64
}

/// n, the share within 15 %, the geometric mean, the worst, and how many are bound by what.
fn describe(cases: &[&Compared]) -> String {
    let logs = cases.iter().map(|case| case.ratio.ln());
    let mean = (logs.clone().sum::<f64>() / cases.len() as f64).exp();
    let worst = logs
        .max_by(|a, b| a.abs().total_cmp(&b.abs()))
        .unwrap()
        .exp();
    let of_roof = |roof| cases.iter().filter(|case| case.roof == roof).count();
    let bound = Roof::ALL.map(|roof| match of_roof(roof) {
        0 => String::new(),
        n => format!(" {n} {roof}"),
    });
    format!(
        "{:>4} {:>6.1} % {mean:>7.3} {worst:>7.3}  {}",
        cases.len(),
        100.0 * share(cases),
        bound.concat()
    )
}

/// A line for each value of the key.
fn print<K: Ord>(cases: &[Compared], key: impl Fn(&Compared) -> K, name: impl Fn(&K) -> String) {
    let mut groups: BTreeMap<K, Vec<&Compared>> = BTreeMap::new();
    for case in cases {
        groups.entry(key(case)).or_default().push(case);
    }
    for (key, group) in &groups {
        println!("{:<26}{}", name(key), describe(group));
    }
}

#[test]
fn nine_in_ten_are_within_fifteen_percent() {
    let cases: Vec<Compared> = rows().iter().map(compare).collect();
    println!("{:<26}   n  within    mean   worst   bound by", "");
    print(
        &cases,
        |case| case.key.clone(),
        |key| format!("{} {} {} {}", key.0, key.1, key.2, key.3),
    );
    println!();
    print(
        &cases,
        |case| (case.key.0.clone(), case.key.1),
        |key| format!("{} {}", key.0, key.1),
    );
    let all: Vec<&Compared> = cases.iter().collect();
    let of = |schedules: &[&str]| -> Vec<&Compared> {
        let own = |case: &&&Compared| schedules.contains(&case.key.0.as_str());
        all.iter().filter(own).copied().collect()
    };
    let flash = of(&["flash2", "flash3"]);
    println!("{:<26}{}", "all schedules", describe(&all));
    println!("{:<26}{}", "flash2 and flash3", describe(&flash));
    let of_roof = |roof: Roof| -> Vec<&Compared> {
        let own = |case: &&&Compared| case.roof == roof;
        flash.iter().filter(own).copied().collect()
    };
    for roof in Roof::ALL {
        let own = of_roof(roof);
        if !own.is_empty() {
            println!("{:<26}{}", format!("bound by {roof}"), describe(&own));
        }
    }
    for schedule in ["standard", "flash1", "flash2", "flash3"] {
        assert!(!of(&[schedule]).is_empty(), "no row of {schedule}");
    }
    assert!(share(&all) >= SHARE, "{}", share(&all));
    assert!(share(&flash) >= SHARE, "{}", share(&flash));

    // What the book says of them: the record grows, and these hold on.
    let chapter = fs::read_to_string(format!("{RECORD}/../../../docs/src/estimate.md"));
    let chapter = chapter.unwrap().replace('\n', " ");
    let says = |text: &str| assert!(chapter.contains(text), "{text}");
    says("fails below 90 % of these, and of all four schedules");
    assert!(flash.len() > 900, "{}", flash.len());
    says("Of more than 900 plain measurements of flash2 and flash3");
    assert_eq!(format!("{:.0}", 100.0 * share(&flash)), "98");
    says("98 % are within 15 %");
    let launch = of_roof(Roof::Launch);
    assert!(launch.len() > 10 && launch.iter().all(|case| is_near(case)));
    says("All measurements that launches bind are within 15 %");
    assert!(of_roof(Roof::Exponentials).is_empty());
    says("Exponentials bind no measurement of the record");
}
