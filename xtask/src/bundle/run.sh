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
names=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    names+=("$1")
    shift
done
[ "$1" = -- ] && shift
if [ ${#names[@]} -eq 0 ]; then
    for program in "$here"/bin/*.test; do
        names+=("$(basename "$program" .test)")
    done
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
broken=()
for name in "${names[@]}"; do
    case $name in
        ferroflash-unit) package=host ;;
        *) package=tests ;;
    esac
    echo "== $name"
    (
        cd "$here/$package" || exit 1
        export CARGO_MANIFEST_DIR=$here/$package REQUIRE=${REQUIRE-cuda}
        timeout --kill-after=10 "${SECONDS_EACH:-300}" "$here/bin/$name.test" "$@"
    ) 2>&1 | tee -a "$log"
    status=${PIPESTATUS[0]}
    case $status in
        0 | 101) ;;
        124 | 137) broken+=("$name: no end after ${SECONDS_EACH:-300} s") ;;
        *) broken+=("$name: exit status $status") ;;
    esac
    [ "$status" -eq 101 ] && failed=1
done

grep -oh 'not run: .*' "$log" | sort | uniq -c
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
    /not run: / { skipped++; passed-- }
    END { printf "%d passed, %d failed, %d not run\n", passed, failed + broken, skipped }
' "$log"
[ ${#broken[@]} -eq 0 ] && [ -z "$failed" ]
