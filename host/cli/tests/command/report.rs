//! `ferroflash bench --report`: a page that stands alone, by its text and in a browser.

use super::*;

/// Chromium and its kin, and Firefox, by the names that systems give them.
const CHROMIUM: [&str; 4] = [
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
];
const FIREFOX: &str = "firefox";

/// Writes a page of two lengths and two passes.
fn page(name: &str) -> (PathBuf, String) {
    let path = scratch(name);
    let line = "bench --backend cpu --seqs 16,32 --hdims 64 --causal 1 --tokens 32 --width 64 --rep 1 --rounds 1 --report";
    let mut words: Vec<&str> = line.split(' ').collect();
    words.push(path.to_str().unwrap());
    let (stdout, _) = expect(0, &words);
    assert_eq!(stdout.lines().count(), 1 + 4, "{stdout}");
    let html = std::fs::read_to_string(&path).unwrap();
    (path, html)
}

#[test]
fn a_report_says_what_was_measured_where_and_how() {
    let (path, html) = page("report of \"bench\".html");
    for part in [
        "<!DOCTYPE html>",
        "ferroflash bench --backend cpu --seqs 16,32",
        // The command as a shell takes it, and its quotes as HTML does.
        "&quot;bench&quot;.html'",
        "4 of 4 rows measured",
        "<td class=\"text\">ferroflash-tiled</td>",
        "TFLOP/s",
        "<svg",
        "float64",
        "agrees",
        "processor",
        concat!("ferroflash ", env!("CARGO_PKG_VERSION")),
    ] {
        assert!(html.contains(part), "{part}\n{html}");
    }
    assert_eq!(
        html.matches("<td class=\"text good\">agrees</td>").count(),
        5,
        "{html}"
    );
    assert_eq!(
        html.matches("<td class=\"text\">ferroflash-tiled</td>")
            .count(),
        4,
        "{html}"
    );
    let (_, date) = html.split_once("datetime=\"").unwrap();
    assert!(
        date.starts_with("20") && date[..20].ends_with('Z'),
        "{}",
        &date[..20]
    );
    // The folder of a page is nobody's business but that of the command.
    assert!(!html.contains("target/debug/ferroflash"), "{html}");
    std::fs::remove_file(path).unwrap();
}

/// Nothing is loaded from anywhere: the only address names SVG's elements.
#[test]
fn a_report_stands_alone() {
    let (_, html) = page("alone.html");
    for part in [
        "<script", "<link", "<img", "<iframe", "src=", "href=", "@import", "url(",
    ] {
        assert!(!html.contains(part), "{part}");
    }
    let addresses = html.split("://").count() - 1;
    assert_eq!(
        addresses,
        html.matches("xmlns=\"http://www.w3.org/2000/svg\"").count()
    );
}

#[test]
fn what_cannot_run_has_a_row_that_says_why() {
    let path = scratch("refused.html");
    let line = "bench --backend cpu --algorithm flash2,tiled --seqs 16 --hdims 64 --causal 0 --tokens 16 --width 64 --passes fwd --rep 1 --rounds 1 --report";
    let mut words: Vec<&str> = line.split(' ').collect();
    words.push(path.to_str().unwrap());
    expect(0, &words);
    let html = std::fs::read_to_string(&path).unwrap();
    assert!(html.contains("1 of 2 rows measured"), "{html}");
    assert!(html.contains("it does not run on cpu"), "{html}");
}

#[test]
fn a_report_that_cannot_be_written_is_told_by_exit_code_2() {
    let path = scratch("no_such_folder").join("report.html");
    let line = "bench --backend cpu --seqs 16 --hdims 64 --causal 0 --tokens 16 --width 64 --passes fwd --rep 1 --rounds 1 --report";
    let mut words: Vec<&str> = line.split(' ').collect();
    words.push(path.to_str().unwrap());
    let (_, stderr) = expect(2, &words);
    assert!(stderr.contains("no_such_folder"), "{stderr}");
}

/// The first of these programs that is on PATH.
fn found<'a>(programs: &[&'a str]) -> Option<&'a str> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&folders).collect();
    let is_there = |program: &&str| folders.iter().any(|folder| folder.join(program).is_file());
    programs.iter().copied().find(is_there)
}

/// Chromium with these arguments on a page, with a profile of its own.
fn chromium(program: &str, arguments: &[&str], page: &Path) -> Output {
    let profile = tempfile::tempdir().unwrap();
    let mut command = Command::new(program);
    command.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
    ]);
    command.arg(format!("--user-data-dir={}", profile.path().display()));
    command
        .args(arguments)
        .arg(format!("file://{}", page.display()));
    command.output().unwrap()
}

/// Width and height of a picture, by the head of its file.
fn size_of_png(path: &Path) -> (u32, u32) {
    let bytes = std::fs::read(path).unwrap_or_default();
    assert!(
        bytes.starts_with(b"\x89PNG\r\n\x1a\n"),
        "{}: {} bytes",
        path.display(),
        bytes.len()
    );
    let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    assert!(bytes.len() > 10_000, "{} bytes: an empty page", bytes.len());
    (number(16), number(20))
}

#[test]
fn a_browser_shows_the_report() {
    let (page, _) = page("browser.html");
    let picture = scratch("browser.png");
    let _ = std::fs::remove_file(&picture);
    let screenshot = format!("--screenshot={}", picture.display());
    if let Some(program) = found(&CHROMIUM) {
        let dom = text(&chromium(program, &["--dump-dom"], &page).stdout);
        for part in [
            "<svg",
            "<td class=\"text\">ferroflash-tiled</td>",
            "<th class=\"text\">variant</th>",
            "agrees</td>",
        ] {
            assert!(dom.contains(part), "{part}\n{dom}");
        }
        assert_eq!(dom.matches("<td").count(), 4 * 14 + 5 * 6, "{dom}");
        chromium(program, &["--window-size=1200,1600", &screenshot], &page);
    } else if let Some(program) = found(&[FIREFOX]) {
        let profile = tempfile::tempdir().unwrap();
        let mut command = Command::new(program);
        command
            .args(["--headless", "--window-size", "1200,1600", "--profile"])
            .arg(profile.path());
        command
            .arg(&screenshot)
            .arg(format!("file://{}", page.display()));
        command.output().unwrap();
    } else {
        println!("skipped: no browser");
        return;
    }
    assert_eq!(size_of_png(&picture), (1200, 1600));
}
