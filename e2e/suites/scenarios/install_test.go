package scenarios

import (
	"path/filepath"
)

// install installs the chart on the cluster, with the pools of disks.sh.
func (s *scenario) install(arguments ...string) {
	s.Helper()
	_, err := s.shell(filepath.Join(root, "e2e/cluster/install.sh"), arguments...)
	s.must(err)
	s.driverReady()
}

// uninstall removes the chart from the cluster again and leaves the namespace, as helm does.
func (s *scenario) uninstall() {
	s.Helper()
	_, err := s.shell("helm", "uninstall", "rootcellar", "--namespace", system, "--wait", "--timeout", "2m")
	s.must(err)
}
