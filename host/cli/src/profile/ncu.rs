//! Counters of the GPU: this command runs once more under `ncu`, and its table is read.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::process::Command;

use csv::StringRecord;
use ferroflash_lab::profile::{Counters, Kernel};

/// The program.
const PROGRAM: &str = "ncu";
/// Share of all cycles of the kernel in which tensor cores are busy, percent.
const TENSOR: &str = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed";
/// Bytes of the memory.
const READ: &str = "dram__bytes_read.sum";
const WRITTEN: &str = "dram__bytes_write.sum";
/// The column of names.
const NAME: &str = "Kernel Name";
/// What `ncu` says to users who may not read counters.
const NOT_PERMITTED: &str = "ERR_NVGPUCTRPERM";

/// Why there are no counters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NcuError {
    /// There is no such program.
    #[error("--ncu needs ncu (NVIDIA Nsight Compute), and it is not on PATH")]
    NotThere,
    /// It cannot be started.
    #[error("ncu cannot be started: {0}")]
    NotStarted(String),
    /// The driver keeps counters for administrators.
    #[error(
        "ncu may not read the GPU's counters (ERR_NVGPUCTRPERM): the driver gives them to administrators only, or to all with the module option NVreg_RestrictProfilingToAdminUsers=0"
    )]
    NotPermitted,
    /// It has failed.
    #[error("ncu has failed ({status}): {said}")]
    Failed {
        /// How it ended.
        status: String,
        /// The last that it said.
        said: String,
    },
    /// Its table is another than expected.
    #[error("ncu's table has {found}; expected: {expected}")]
    Table {
        /// What was found.
        found: String,
        /// What was expected.
        expected: String,
    },
}

/// The program; who holds one has found it.
pub struct Ncu {
    found: (),
}

impl Ncu {
    /// On PATH.
    pub fn find() -> Result<Ncu, NcuError> {
        match Command::new(PROGRAM).arg("--version").output() {
            Ok(_) => Ok(Ncu { found: () }),
            Err(error) => Err(not_started(error)),
        }
    }

    /// Runs this command under it, and gives these kernels, the last ones that run, what it counts.
    pub(super) fn count(&self, kernels: &mut [&mut Kernel]) -> Result<(), NcuError> {
        let names: Vec<&str> = kernels
            .iter()
            .map(|kernel| kernel.launch.variant.name)
            .collect();
        let counted = self.count_in(once(env::args_os().skip(1)), &names)?;
        for (kernel, counters) in kernels.iter_mut().zip(counted) {
            kernel.counters = Some(counters);
        }
        Ok(())
    }

    /// Runs this program with these words under it, and says what it counts of these kernels, the last ones that run.
    pub fn count_in(
        &self,
        words: Vec<OsString>,
        kernels: &[&str],
    ) -> Result<Vec<Counters>, NcuError> {
        let Ncu { found: () } = self;
        let own = env::current_exe().map_err(not_started)?;
        let run = Command::new(PROGRAM)
            .args(["--csv", "--page", "raw", "--print-units", "base"])
            .args(["--clock-control", "none", "--metrics"])
            .arg([TENSOR, READ, WRITTEN].join(","))
            .arg(own)
            .args(words)
            .output()
            .map_err(not_started)?;
        let stdout = String::from_utf8_lossy(&run.stdout);
        let stderr = String::from_utf8_lossy(&run.stderr);
        if stdout.contains(NOT_PERMITTED) || stderr.contains(NOT_PERMITTED) {
            return Err(NcuError::NotPermitted);
        }
        if !run.status.success() {
            let mut lines = stdout.lines().chain(stderr.lines());
            let said = lines.rfind(|line| !line.trim().is_empty());
            return Err(NcuError::Failed {
                status: run.status.to_string(),
                said: said.unwrap_or("nothing").to_owned(),
            });
        }
        counters(&stdout, kernels)
    }
}

fn not_started(error: std::io::Error) -> NcuError {
    match error.kind() {
        ErrorKind::NotFound => NcuError::NotThere,
        _ => NcuError::NotStarted(error.to_string()),
    }
}

/// The words of this command, as `ncu` is to run it: each pass once, without any output.
fn once(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut words = words.peekable();
    while let Some(word) = words.next() {
        if word == "--svg" {
            words.next();
        } else if word == "--ncu" {
            kept.push("--once".into());
        } else if word != "--json" && !starts_with(&word, "--svg=") {
            kept.push(word);
        }
    }
    kept
}

fn starts_with(word: &OsStr, start: &str) -> bool {
    word.as_encoded_bytes().starts_with(start.as_bytes())
}

/// The counters of the last launches of a table, which are those of these kernels.
fn counters(table: &str, kernels: &[&str]) -> Result<Vec<Counters>, NcuError> {
    let expected = |expected: &str, found: String| NcuError::Table {
        found,
        expected: expected.to_owned(),
    };
    // Lines of another shape stand before the table.
    let mut reader = csv::ReaderBuilder::new();
    let mut reader = reader
        .has_headers(false)
        .flexible(true)
        .from_reader(table.as_bytes());
    let mut rows = reader
        .records()
        .flatten()
        .skip_while(|row| !row.iter().any(|field| field == NAME));
    let header = rows.next();
    let header = header.ok_or_else(|| expected("a line of names", "none".into()))?;
    let column = |name: &str| {
        let place = header.iter().position(|field| field == name);
        place.ok_or_else(|| expected(&format!("a column {name:?}"), "none".into()))
    };
    let (name, columns) = (
        column(NAME)?,
        [column(TENSOR)?, column(READ)?, column(WRITTEN)?],
    );
    // Behind the names are the units, in a row without a kernel.
    let is_kernel = |row: &StringRecord| row.get(name).is_some_and(|name| !name.is_empty());
    let rows: Vec<StringRecord> = rows.filter(is_kernel).collect();
    let found: Vec<&str> = rows.iter().map(|row| &row[name]).collect();
    // Before these, a forward pass has run for its o and lse.
    if !found.ends_with(kernels) {
        return Err(expected(
            &format!("{} at its end", kernels.join(", ")),
            found.join(", "),
        ));
    }
    let own = rows.iter().skip(rows.len() - kernels.len());
    let of_row = |row: &StringRecord| {
        let mut numbers = [0.0; 3];
        for (number, &column) in numbers.iter_mut().zip(&columns) {
            let text = row.get(column).unwrap_or_default();
            let plain = text.replace(',', "");
            *number = plain
                .parse()
                .map_err(|_| expected("numbers", format!("{text:?}")))?;
        }
        let [tensor_percent, read_bytes, written_bytes] = numbers;
        Ok(Counters {
            tensor_percent,
            read_bytes,
            written_bytes,
        })
    };
    own.map(of_row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `ncu` 2024.1 prints, shortened by columns.
    const TABLE: &str = r#"==PROF== Connected to process 7 (/ferroflash)
==PROF== Profiling "forward_sm90a_bf16_d128" - 0: 0%....50%....100% - 1 pass
==PROF== Disconnected from process 7
"ID","Kernel Name","Block Size","dram__bytes_read.sum","dram__bytes_write.sum","sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
"","","","byte","byte","%"
"0","forward_sm90a_bf16_d128","(384, 1, 1)","1","2","3"
"1","delta_sm90a_bf16","(128, 1, 1)","33,554,432","262,144","0"
"2","backward_sm90a_bf16_d128","(384, 1, 1)","67,108,864","1,024","61.25"
"#;

    #[test]
    fn the_last_rows_are_the_kernels() {
        let kernels = ["delta_sm90a_bf16", "backward_sm90a_bf16_d128"];
        let counted = counters(TABLE, &kernels).unwrap();
        assert_eq!(counted.len(), 2);
        assert_eq!(counted[0].read_bytes, 33_554_432.0);
        assert_eq!(counted[1].tensor_percent, 61.25);
        assert_eq!(counted[1].written_bytes, 1024.0);
    }

    #[test]
    fn another_table_says_what_is_there() {
        let wrong =
            |table: &str, kernels: &[&str]| counters(table, kernels).unwrap_err().to_string();
        let none = "ncu's table has none; expected: a line of names";
        assert_eq!(wrong("no kernels were profiled", &[]), none);
        let other = wrong(TABLE, &["forward_sm80_bf16_d128"]);
        assert!(other.contains("delta_sm90a_bf16, backward"), "{other}");
        let no_number = TABLE.replace("61.25", "n/a");
        let text = wrong(&no_number, &["backward_sm90a_bf16_d128"]);
        assert_eq!(text, "ncu's table has \"n/a\"; expected: numbers");
    }

    #[test]
    fn it_runs_the_passes_once_and_writes_nothing() {
        let words = "profile --ncu --seqlen 4096 --json --svg a.svg --causal --svg=b.svg";
        let words = words.split(' ').map(OsString::from);
        let expected = "profile --once --seqlen 4096 --causal".split(' ');
        assert!(once(words).iter().eq(expected.map(OsStr::new)));
    }
}
