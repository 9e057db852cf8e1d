package scenarios

import (
	"path/filepath"

	"rootcellar.dev/e2e/suites/harness"
)

// install installs the chart on the cluster, with the pools of disks.sh.
func (s *scenario) install(arguments ...string) {
	s.Helper()
	_, err := s.shell(filepath.Join(harness.Root, "e2e/cluster/install.sh"), arguments...)
	s.Must(err)
	s.driverReady()
}

// uninstall removes the chart from the cluster again and leaves the namespace, as helm does.
func (s *scenario) uninstall() {
	s.Helper()
	_, err := s.shell("helm", "uninstall", "rootcellar", "--namespace", harness.System, "--wait", "--timeout", "2m")
	s.Must(err)
}
