# Prints "passed failed skipped" for the log of one step: the sum of libtest's result lines and of the last lines of
# other scripts. A test that cannot run here prints SKIP and returns, which libtest counts as passed. If it must run, it
# fails and says so. A step without such lines is one test.
# Variables: status, the step's exit status.
/^failures:/ { failing = 1 }
/^test result:/ { counted = 1; failing = 0; passed += $4; failed += $6; skipped += $8 }
/^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { counted = 1; passed += $1; failed += $3; skipped += $5 }
/^SKIP / && !failing { passed--; skipped++ }
END {
    if (status != 0 && failed == 0) failed = 1
    if (status == 0 && !counted) passed = 1
    print passed + 0, failed + 0, skipped + 0
}
