//! What the command says of itself: exit codes, completions, manual pages, colours.

use super::*;

const SUBCOMMANDS: [&str; 12] = [
    "demo",
    "run",
    "weights",
    "info",
    "bench",
    "plot",
    "estimate",
    "timeline",
    "profile",
    "kernels",
    "completions",
    "man",
];

/// Each code that `--help` lists, by a command that ends with it.
#[test]
fn exit_codes_are_those_that_help_lists() {
    let (help, _) = expect(0, &["--help"]);
    let (_, codes) = help.split_once("Exit codes:\n").expect("a list");
    let wrong = changed("exit_code.safetensors", |tensors, _| {
        stored(tensors, "o").bytes[400..404].copy_from_slice(&3f32.to_le_bytes());
    });
    let right = real("causal_d64.safetensors");
    let of_cpu = ["--backend", "cpu", "--pass", "forward"];
    let on_flash3 = ["--backend", "cpu", "--algorithm", "flash3"];
    let commands: [&[&str]; 4] = [
        &[&["run", &right], &of_cpu[..]].concat(),
        &[&["run", &wrong], &of_cpu[..]].concat(),
        &["run", "no_such_file"],
        &[&["run", &right], &on_flash3[..]].concat(),
    ];
    assert_eq!(codes.trim().lines().count(), commands.len(), "{codes}");
    for (code, command) in commands.into_iter().enumerate() {
        let start = format!("  {code}  ");
        assert!(
            codes.lines().any(|line| line.starts_with(&start)),
            "{codes}"
        );
        expect(code as i32, command);
    }
    expect(2, &["bench", "--no-such-option"]);
}

#[test]
fn completions_know_every_subcommand() {
    let (bash, _) = expect(0, &["completions", "bash"]);
    assert!(bash.contains("complete -F _ferroflash"), "{bash}");
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let (script, _) = expect(0, &["completions", shell]);
        for name in SUBCOMMANDS.into_iter().chain(["--seqlen-k", "flash3"]) {
            let name = match shell {
                "fish" => name.trim_start_matches("--"),
                _ => name,
            };
            assert!(script.contains(name), "{shell}: {name}");
        }
    }
    expect(2, &["completions", "command.com"]);
}

/// bash takes the script, and completes a word by it.
#[test]
fn bash_completes_by_the_script() {
    let (script, _) = expect(0, &["completions", "bash"]);
    let asks = "\nCOMP_WORDS=(ferroflash ti); COMP_CWORD=1; _ferroflash ferroflash ti ferroflash; echo \"${COMPREPLY[@]}\"";
    let bash = Command::new("bash").args(["-c", &(script + asks)]).output();
    match bash {
        Ok(output) => assert_eq!(
            text(&output.stdout).trim(),
            "timeline",
            "{}",
            text(&output.stderr)
        ),
        Err(_) => println!("skipped: no bash"),
    }
}

#[test]
fn pages_have_their_sections() {
    let (page, _) = expect(0, &["man"]);
    for section in [
        ".SH NAME",
        ".SH SYNOPSIS",
        ".SH DESCRIPTION",
        ".SH OPTIONS",
        ".SH SUBCOMMANDS",
        ".SH EXAMPLES",
        ".SH \"EXIT STATUS\"",
        "The command has done its work.",
        "or the driver refuses.",
    ] {
        assert!(page.contains(section), "{section}\n{page}");
    }
    for name in SUBCOMMANDS {
        assert!(
            page.contains(&format!("ferroflash\\-{name}(1)")),
            "{name}\n{page}"
        );
        let (of_subcommand, _) = expect(0, &["man", name]);
        for part in [
            format!("ferroflash\\-{name}"),
            format!("\\fBferroflash {name}"),
        ] {
            assert!(of_subcommand.contains(&part), "{part}\n{of_subcommand}");
        }
    }
    let (page, _) = expect(0, &["man", "kernels", "compile"]);
    assert!(page.contains("\\-\\-compute\\-capability"), "{page}");
    let (_, stderr) = expect(2, &["man", "sing"]);
    assert!(stderr.contains("allowed: demo, run"), "{stderr}");
}

/// In a pipe there are no colours, unless they are asked for; NO_COLOR has the last word but one.
#[test]
fn colours_go_where_nobody_sees_them() {
    let input = real("causal_d64.safetensors");
    let run = |variables: &[(&str, &str)]| {
        let program = place("CARGO_BIN_EXE_ferroflash", env!("CARGO_BIN_EXE_ferroflash"));
        let mut command = Command::new(program);
        command.args(["run", &input, "--backend", "cpu", "--pass", "forward"]);
        command.env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE");
        command.envs(variables.iter().copied());
        text(&command.output().unwrap().stdout)
    };
    assert!(!run(&[]).contains('\u{1b}'));
    assert!(!run(&[("NO_COLOR", "1")]).contains('\u{1b}'));
    let forced = run(&[("CLICOLOR_FORCE", "1")]);
    assert!(forced.contains("\u{1b}[1m\u{1b}[32magrees"), "{forced:?}");
}
