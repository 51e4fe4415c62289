#!/bin/bash
# Runs the tests of this bundle on a machine with a GPU, one program after another, each under a watchdog.
#
#   ./run.sh                              every test program
#   ./run.sh cuda instructions            only these
#   ./run.sh cuda -- --nocapture causal   with arguments for the test program
#
# REQUIRE (default: cuda) names the backends whose absence is a failure; SECONDS_EACH (default: 300) is how long a
# program may run before it is taken for hanging.
here=$(cd "$(dirname "$0")" && pwd)
programs=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    mapfile -t -O ${#programs[@]} programs < <(find "$here/bin" -name "$1.test" | sort)
    shift
done
[ "$1" = -- ] && shift
if [ ${#programs[@]} -eq 0 ]; then
    mapfile -t programs < <(find "$here/bin" -name "*.test" | sort)
fi

scratch=$(mktemp -d)
log=$scratch/log
trap 'rm -rf "$scratch"' EXIT
broken=()
for program in "${programs[@]}"; do
    name=$(basename "$program" .test)
    # cargo runs a test in the folder of its package.
    folder=$(dirname "$program")
    package=$here/${folder#"$here/bin/"}
    echo "== $name"
    (
        cd "$package" || exit 1
        export CARGO_MANIFEST_DIR=$package CARGO_TARGET_TMPDIR=$scratch CARGO_BIN_EXE_ferroflash=$here/bin/ferroflash
        export REQUIRE=${REQUIRE-cuda}
        timeout --kill-after=10 "${SECONDS_EACH:-300}" "$program" "$@"
    ) 2>&1 | tee -a "$log"
    status=${PIPESTATUS[0]}
    case $status in
        0 | 101) ;;
        124 | 137) broken+=("$name: no end after ${SECONDS_EACH:-300} s") ;;
        *) broken+=("$name: exit status $status") ;;
    esac
    [ "$status" -eq 101 ] && failed=1
done

# A test may say so anywhere in a line that the harness has begun.
grep -oh '\[not run\] .*' "$log" | sort | uniq -c
for line in "${broken[@]}"; do
    echo "broken: $line"
done
# A test that says that it could not do its work is counted by the harness as passed.
awk -v broken=${#broken[@]} '
    /^test result:/ {
        for (i = 1; i < NF; i++) {
            if ($(i + 1) ~ /^passed/) passed += $i
            if ($(i + 1) ~ /^failed/) failed += $i
            if ($(i + 1) ~ /^ignored/) skipped += $i
        }
    }
    { idle = gsub(/\[not run\] /, ""); skipped += idle; passed -= idle }
    END { printf "%d passed, %d failed, %d not run\n", passed, failed + broken, skipped }
' "$log"
[ ${#broken[@]} -eq 0 ] && [ -z "$failed" ]
