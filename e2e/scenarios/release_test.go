package scenarios

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// dist is the release that release.sh built and published.
var dist = os.Getenv("DIST")

// TestRelease installs a release with nothing but its files, on nodes that have no image of it.
func TestRelease(t *testing.T) {
	t.Cleanup(count)
	for _, entry := range []entry{
		{"a release is verified, installed, upgraded, rolled back and removed by its README", releaseReadme},
		{"a changed or unsigned image is noticed", changedImage},
		{"the offline archive installs the driver without a registry", offline},
	} {
		if !t.Run(entry.title, func(t *testing.T) { play(t, entry) }) {
			return
		}
	}
}

// obey runs the blocks of a section of the release's README in a directory, those for nodes on each node.
func (s *scenario) obey(section, dir string) {
	s.Helper()
	for _, block := range shellBlock.FindAllStringSubmatch(s.section(filepath.Join(dist, "README.md"), section), -1) {
		commands := strings.ReplaceAll(block[2], "amd64", runtime.GOARCH)
		if block[1] == "" {
			s.administrator(dir, commands)
			continue
		}
		for _, n := range nodes() {
			_, err := s.on(n, "env", "CONTAINERD_ADDRESS="+n.containerd(), "sh", "-euc", "cd "+dir+"\n"+commands)
			s.must(err)
		}
	}
}

func releaseReadme(s *scenario) {
	s.obey("Verify", dist)
	s.obey("Install", dist)
	for _, n := range nodes() {
		pod := s.driverPod(n)
		for _, container := range pod.Spec.Containers {
			if !strings.HasPrefix(container.Image, "registry.example/") || !strings.Contains(container.Image, "@sha256:") {
				s.Errorf("%s has the image %s", container.Name, container.Image)
			}
		}
	}
	s.visits(1)
	s.obey("Upgrade and roll back", dist)
	var revisions []struct{ Status, Description string }
	s.must(json.Unmarshal([]byte(s.administrator(dist, "helm history rootcellar --namespace "+system+" --output json 2>/dev/null")), &revisions))
	if len(revisions) != 3 || revisions[2].Description != "Rollback to 1" {
		s.Errorf("the history of Helm is %v", revisions)
	}
	s.visits(1)
	s.obey("Remove", dist)
	s.uninstalled()
}

// visits waits until the pod of the examples has written this many lines.
func (s *scenario) visits(lines int) {
	s.Helper()
	s.eventually("the pod of the examples writes", patience, func() string {
		out, err := s.shell("kubectl", "exec", "cellar", "--", "cat", "/data/visits")
		if err != nil || strings.Count(out, "\n")+1 < lines || out == "" {
			return out
		}
		return ""
	})
}

// uninstalled checks that the driver and its volumes are removed.
func (s *scenario) uninstalled() {
	s.Helper()
	s.gone("the namespace of the driver", func() error {
		_, err := client.CoreV1().Namespaces().Get(s.ctx(), system, metav1.GetOptions{})
		return err
	})
	for _, n := range nodes() {
		if left := s.directories(n, "default", ""); len(left) > 0 {
			s.Errorf("left on %s: %q", n.name, left)
		}
	}
}

// changedImage puts an image with another label under the published name, as an intruder in the registry could.
func changedImage(s *scenario) {
	published := s.administrator(dist, "crane digest "+driverImage)
	verify := []string{"verify", "--key", filepath.Join(dist, "cosign.pub"), "--insecure-ignore-tlog", driverImage}
	_, err := s.shell("cosign", verify...)
	s.must(err)
	s.administrator(dist, "crane mutate --platform linux/"+runtime.GOARCH+" --label changed=yes --tag "+driverImage+" "+driverImage)
	if out, err := s.shell("cosign", verify...); err == nil || !strings.Contains(out, "no signatures found") {
		s.Errorf("cosign verify says of the changed image: %v %s", err, out)
	}
	out, err := s.shell("make", "--no-print-directory", "-C", filepath.Dir(dist), "publish",
		"CARGO_TARGET_DIR="+filepath.Join(os.Getenv("RUN"), "target1"), "COSIGN_KEY="+filepath.Join(os.Getenv("RUN"), "key/cosign.key"))
	if err == nil || !strings.Contains(out, "a version is published once") {
		s.Errorf("make publish says of the changed image: %v %s", err, out)
	}
	s.administrator(dist, "crane tag registry.example/rootcellar@"+strings.TrimSpace(published)+" 0.1.0")
	_, err = s.shell("cosign", verify...)
	s.must(err)

	other := filepath.Join(s.TempDir(), "SHA256SUMS")
	text, err := os.ReadFile(filepath.Join(dist, "SHA256SUMS"))
	s.must(err)
	s.must(os.WriteFile(other, append(text, '\n'), 0o600))
	if _, err := s.shell("cosign", "verify-blob", "--key", filepath.Join(dist, "cosign.pub"), "--bundle",
		filepath.Join(dist, "SHA256SUMS.sigstore.json"), "--insecure-ignore-tlog", other); err == nil {
		s.Error("cosign verifies changed checksums")
	}
}

// unpacked returns a directory with the offline archive, which a node unpacks there.
func (s *scenario) unpacked() string {
	s.Helper()
	dir := filepath.Join(os.Getenv("RUN"), "offline")
	s.must(os.MkdirAll(dir, 0o755))
	archives, err := filepath.Glob(filepath.Join(dist, "*-offline-*.tar"))
	s.must(err)
	for _, archive := range archives {
		if err := os.Link(archive, filepath.Join(dir, filepath.Base(archive))); err != nil && !os.IsExist(err) {
			s.Fatal(err)
		}
	}
	return dir
}

// offline removes every image of the release from the nodes and ends the registry before it installs.
func offline(s *scenario) {
	s.administrator(dist, "kill $(cat "+filepath.Join(os.Getenv("RUN"), "registry.pid")+")")
	for _, n := range nodes() {
		_, err := s.on(n, "env", "CONTAINERD_ADDRESS="+n.containerd(), "CONTAINERD_NAMESPACE=k8s.io", "sh", "-euc",
			"ctr images ls -q | grep -e sig-storage -e rootcellar -e '^sha256:' | xargs ctr images rm --sync >/dev/null")
		s.must(err)
	}
	dir := s.unpacked()
	s.obey("Without a registry", dir)
	s.administrator(dir, "kubectl --namespace "+system+" rollout status --timeout=3m daemonset/rootcellar")
	for _, n := range nodes() {
		if pod := s.driverPod(n); pod.Status.Phase != corev1.PodRunning {
			s.Errorf("the driver on %s is %s", n.name, pod.Status.Phase)
		}
	}
	s.administrator(dir, `kubectl apply --filename examples
kubectl wait --for=condition=Ready --timeout=3m pod/cellar`)
	s.visits(1)
}
